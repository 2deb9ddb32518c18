// SPDX-License-Identifier: Apache-2.0
// What `weir run` must know of the program, and where it finds what it preloads.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace weir::command {

struct preload_files {
  std::filesystem::path library;  ///< libweir_preload.so
  std::filesystem::path python;   ///< the folder with weir's sitecustomize.py
};

/// Beside the command, in a build tree or an installed one.
[[nodiscard]] std::optional<preload_files> find_preload_files();

struct program_file {
  bool is_python = false;    ///< the interpreter, or a script for it
  bool is_isolated = false;  ///< Python that ignores PYTHONPATH
  std::string obstacle{};    ///< why nothing can be preloaded; empty: nothing is in the way
};

/// The program that execvp() would start for the first word; if there is none, nothing is known.
[[nodiscard]] program_file examine_program(std::span<const std::string> command);

}  // namespace weir::command

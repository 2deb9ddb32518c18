// SPDX-License-Identifier: Apache-2.0
// What the two forms of weir top share: one process in full, or all of them.
#pragma once

#include <string>
#include <string_view>

namespace weir::command {

inline constexpr std::string_view top_subcommand = "top";

struct top_arguments {
  int process = 0;  ///< 0: all
  double seconds = 1;
  bool once = false;
  std::string sort = "reserved";
  std::string folder{};
  std::string format = "table";
};

/// All processes, a line each, until the user has enough. Returns the exit code.
[[nodiscard]] int show_all_processes(const top_arguments& args);

}  // namespace weir::command

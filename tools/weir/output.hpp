// SPDX-License-Identifier: Apache-2.0
// The file that a subcommand writes.
#pragma once

#include <string>

#include "weir/base/result.hpp"

namespace weir::command {

/// Where a subcommand writes its one file: a regular file, or the standard output for "-".
///
/// Whoever writes to path() does it as formats::write_file() and weir::write_trace() do: to a part
/// beside it that gets the name at the end. If a signal ends the command, the part goes too.
/// One at a time in a process; one thread.
class output_file {
 public:
  /// system, with the path: it exists and is not to be replaced, or is no regular file.
  [[nodiscard]] static result<output_file> open(const std::string& path, bool overwrite);
  ~output_file();
  output_file(output_file&& other) noexcept;
  output_file& operator=(output_file&&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool is_standard() const noexcept { return is_standard_; }
  /// Hands what was written to the standard output, where that is meant.
  [[nodiscard]] result<void> finish();

 private:
  output_file(std::string path, bool is_standard);

  std::string path_;
  bool is_standard_ = false;
};

}  // namespace weir::command

// SPDX-License-Identifier: Apache-2.0
// The file that a subcommand writes.
#pragma once

#include <string>

#include "weir/base/result.hpp"

namespace weir::command {

/// Whether the reader of the standard output has closed it, as `head` does. The command then ends
/// quietly with 0.
[[nodiscard]] bool is_output_closed();

/// The one file that a subcommand writes: a regular file, or the standard output for "-".
///
/// Write to path() with formats::write_file() or weir::write_trace(): they write a part beside it,
/// which gets the name at the end. If a signal ends the command, the part is removed.
/// At most one exists in a process. Single-threaded.
class output_file {
 public:
  /// system, with the path: the file exists and `overwrite` is false, or it is not a regular file.
  [[nodiscard]] static result<output_file> open(const std::string& path, bool overwrite);
  ~output_file();
  output_file(output_file&& other) noexcept;
  output_file& operator=(output_file&&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] bool is_standard() const noexcept { return is_standard_; }
  /// Copies what was written to the standard output if the path is "-". A closed pipe is a success.
  [[nodiscard]] result<void> finish();

 private:
  output_file(std::string path, bool is_standard);

  std::string path_;
  bool is_standard_ = false;
};

}  // namespace weir::command

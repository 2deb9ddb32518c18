// SPDX-License-Identifier: Apache-2.0
// A file that gets its name when it is whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/file.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// A new file `<path>.<process>.part`, or `<path>.<process>.2.part` and so on where there is one,
/// which is renamed to `path` at the end.
///
/// It never follows a link, opens a file that exists, or writes to a descriptor that has become
/// another file's: if the program closed the descriptor, the part is opened again. A file that
/// appeared at `path` in the meantime, up to the last moment, is kept, and one of the two gets a
/// number before its ending. A path that is not absolute is meant as it was at create(). The
/// destructor closes the part and leaves it. Functions return 0, or the reason as errno has it. One
/// thread.
class part_file {
 public:
  part_file() = default;
  ~part_file() { close(); }
  part_file(part_file&& other) noexcept;
  part_file& operator=(part_file&&) = delete;

  [[nodiscard]] int create(const std::string& path);
  [[nodiscard]] int write(std::string_view bytes);
  /// Cuts off what follows the first `size` bytes.
  [[nodiscard]] int truncate(std::uint64_t size);
  /// Whether the file system has everything.
  [[nodiscard]] int flush();
  [[nodiscard]] int rename();
  /// Closes the part, and removes it.
  void remove() noexcept;
  int close() noexcept;

  [[nodiscard]] bool is_open() const noexcept { return file_ >= 0; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  /// Makes sure that the descriptor is the part's.
  [[nodiscard]] int check_descriptor();
  [[nodiscard]] int rename_to_free_name();
  /// Takes the place of what was at `path` at first.
  [[nodiscard]] int replace_former();

  int file_ = -1;
  std::string path_;
  std::string name_;
  file_identity identity_;
  std::optional<file_identity> before_;  // what was at `path`
};

/// `run.weirtrace` is `run.2.weirtrace` with the number 2, and as it is with 1.
[[nodiscard]] std::string numbered_path(std::string path, int number);

}}}  // namespace weir::v0::detail

// SPDX-License-Identifier: Apache-2.0
// Files by what they are, not by what they are called or by the number of a descriptor.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace weir { inline namespace v0 { namespace detail {

/// Which file it is, whatever its name or descriptor.
struct file_identity {
  dev_t device = 0;
  ino_t number = 0;

  friend bool operator==(const file_identity&, const file_identity&) = default;
};

[[nodiscard]] std::optional<file_identity> identity_of(int file) noexcept;
/// Of what has the name, which may be a link.
[[nodiscard]] std::optional<file_identity> identity_at(const std::string& path) noexcept;
/// Of a regular file, not through a link.
[[nodiscard]] std::optional<file_identity> regular_file_at(const std::string& path) noexcept;

/// What open(2) answered, but never as the standard input, output or error output of a program
/// that has closed one of them: what it writes there would go into the file.
[[nodiscard]] int apart(int file) noexcept;
[[nodiscard]] int open_apart(const std::string& path, int flags, mode_t mode = 0) noexcept;

/// The path as it is now, for a program that will change its folder. As it was where nobody can
/// say.
[[nodiscard]] std::string absolute_path(std::string path);

}}}  // namespace weir::v0::detail

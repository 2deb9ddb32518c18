// SPDX-License-Identifier: Apache-2.0
// Files that get their name when they are whole.
#include "base/part_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace weir { inline namespace v0 { namespace detail {
namespace {

/// Names that may be taken before giving up.
constexpr int most_names = 1000;

/// EEXIST where something has the name, however short a time.
int rename_if_free(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // Network file systems have links instead.
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  ::unlink(from.c_str());
  return 0;
}

/// Whether a file system has no such call.
bool is_not_provided(int reason) {
  return reason == EINVAL || reason == ENOSYS || reason == EPERM || reason == EOPNOTSUPP;
}

}  // namespace

std::string numbered_path(std::string path, int number) {
  if (number == 1) return path;
  const auto dot = path.rfind('.');
  const bool has_ending = dot != path.npos && path.find('/', dot) == path.npos && dot != 0;
  return path.insert(has_ending ? dot : path.size(), "." + std::to_string(number));
}

part_file::part_file(part_file&& other) noexcept
    : file_{std::exchange(other.file_, -1)},
      path_{std::move(other.path_)},
      name_{std::move(other.name_)},
      identity_{other.identity_},
      before_{other.before_} {}

int part_file::create(const std::string& path) {
  path_ = absolute_path(path);
  before_ = regular_file_at(path_);
  const std::string stem = path_ + "." + std::to_string(::getpid());
  int reason = EEXIST;
  for (int number = 1; reason == EEXIST && number <= most_names; ++number) {
    name_ = stem + (number == 1 ? "" : "." + std::to_string(number)) + ".part";
    file_ = open_apart(name_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    reason = file_ < 0 ? errno : 0;
  }
  if (reason != 0) return reason;
  const auto made = identity_of(file_);
  if (!made) return errno;
  identity_ = *made;
  return 0;
}

int part_file::check_descriptor() {
  if (file_ >= 0 && identity_of(file_) == identity_) return 0;
  // The program closed it, and may have given the number to a file of its own.
  file_ = open_apart(name_, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file_ < 0) return errno;
  if (identity_of(file_) == identity_) return 0;
  ::close(std::exchange(file_, -1));
  return ESTALE;
}

int part_file::write(std::string_view bytes) {
  while (!bytes.empty()) {
    if (const int reason = check_descriptor(); reason != 0) return reason;
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

int part_file::truncate(std::uint64_t size) {
  if (const int reason = check_descriptor(); reason != 0) return reason;
  return ::ftruncate(file_, static_cast<off_t>(size)) == 0 ? 0 : errno;
}

int part_file::flush() {
  if (const int reason = check_descriptor(); reason != 0) return reason;
  if (::fsync(file_) == 0 || errno == EINVAL || errno == EROFS) return 0;
  return errno;
}

int part_file::close() noexcept {
  const int file = std::exchange(file_, -1);
  if (file < 0 || identity_of(file) != identity_) return 0;
  return ::close(file) == 0 ? 0 : errno;
}

void part_file::remove() noexcept {
  if (file_ < 0) return;
  close();
  if (regular_file_at(name_) == identity_) ::unlink(name_.c_str());
}

int part_file::rename_to_free_name() {
  int reason = EEXIST;
  for (int number = 1; reason == EEXIST && number <= most_names; ++number)
    reason = rename_if_free(name_, numbered_path(path_, number));
  return reason;
}

int part_file::replace_former() {
  const bool exchanged =
      ::renameat2(AT_FDCWD, name_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0;
  if (!exchanged) return errno;
  if (regular_file_at(name_) != before_) return rename_to_free_name();  // another that came first
  ::unlink(name_.c_str());
  return 0;
}

int part_file::rename() {
  if (regular_file_at(name_) != identity_) return ESTALE;
  auto now = regular_file_at(path_);
  if (!now) {
    const int reason = rename_if_free(name_, path_);
    if (reason == 0) return 0;
    if (reason == EEXIST) now = regular_file_at(path_);  // a link, or what came just now
  }
  if (now) {
    const int reason = now == before_ ? replace_former() : rename_to_free_name();
    if (!is_not_provided(reason)) return reason;
  }
  return std::rename(name_.c_str(), path_.c_str()) == 0 ? 0 : errno;
}

}}}  // namespace weir::v0::detail

// SPDX-License-Identifier: Apache-2.0
// Files by what they are.
#include "base/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

namespace weir { inline namespace v0 { namespace detail {
namespace {

constexpr int first_descriptor = 3;

}  // namespace

std::optional<file_identity> identity_of(int file) noexcept {
  struct stat status {};
  if (::fstat(file, &status) != 0) return std::nullopt;
  return file_identity{status.st_dev, status.st_ino};
}

std::optional<file_identity> identity_at(const std::string& path) noexcept {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return file_identity{status.st_dev, status.st_ino};
}

std::optional<file_identity> regular_file_at(const std::string& path) noexcept {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return file_identity{status.st_dev, status.st_ino};
}

int apart(int file) noexcept {
  if (file < 0 || file >= first_descriptor) return file;
  const int moved = ::fcntl(file, F_DUPFD_CLOEXEC, first_descriptor);
  const int reason = errno;
  ::close(file);
  errno = reason;
  return moved;
}

int open_apart(const std::string& path, int flags, mode_t mode) noexcept {
  return apart(::open(path.c_str(), flags, mode));
}

std::string absolute_path(std::string path) {
  if (path.empty() || path.front() == '/') return path;
  const std::unique_ptr<char, void (*)(void*)> folder{::getcwd(nullptr, 0), std::free};
  if (folder == nullptr || *folder != '/') return path;
  return std::string{folder.get()} + "/" + path;
}

}}}  // namespace weir::v0::detail

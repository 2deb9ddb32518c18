// SPDX-License-Identifier: Apache-2.0
// Copies of another process's descriptors.
#include "process_descriptors.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace weir_torch {
namespace {

// Headers may be older than the kernel.
constexpr long pidfd_open_call = 434;
constexpr long pidfd_getfd_call = 438;

weir::error refusal(const char* call, int reason) {
  weir::errc code = weir::errc::system;
  if (reason == ENOSYS) code = weir::errc::not_supported;
  if (reason == EPERM || reason == EACCES) code = weir::errc::not_permitted;
  if (reason == ESRCH || reason == EBADF) code = weir::errc::not_found;
  std::string text = std::string{call} + ": " + std::strerror(reason);
  if (code == weir::errc::not_permitted)
    text +=
        "; memory of torch's expandable segments can be opened by processes only that may trace "
        "the one that shares it";
  return {{.code = code, .detail = std::move(text)}};
}

/// The first bytes of a file; empty: it cannot be read.
std::string read_start(const char* path) {
  const weir::descriptor file{::open(path, O_RDONLY | O_CLOEXEC)};
  if (!file) return {};
  std::array<char, 4096> buffer{};
  const ssize_t length = ::read(file.get(), buffer.data(), buffer.size());
  return length > 0 ? std::string(buffer.data(), static_cast<std::size_t>(length)) : std::string{};
}

bool has_trace_capability() {
  constexpr unsigned trace_capability = 19;  // CAP_SYS_PTRACE
  const std::string status = read_start("/proc/self/status");
  const std::size_t line = status.find("CapEff:");
  if (line == std::string::npos) return false;
  return (std::strtoull(status.c_str() + line + 7, nullptr, 16) >> trace_capability & 1) != 0;
}

bool probe() {
  const weir::descriptor probed{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  if (!probed) return false;
  const std::array<std::int32_t, 1> numbers{probed.get()};
  if (!copy_descriptors(::getpid(), numbers)) return false;
  // Yama's rule: only a process's ancestors may trace it. The file is missing where there is none.
  const std::string scope = read_start("/proc/sys/kernel/yama/ptrace_scope");
  return scope.empty() || scope.front() == '0' || has_trace_capability();
}

}  // namespace

weir::result<std::vector<weir::descriptor>> copy_descriptors(
    pid_t process, std::span<const std::int32_t> numbers) {
  const weir::descriptor source{static_cast<int>(::syscall(pidfd_open_call, process, 0))};
  if (!source) return refusal("pidfd_open", errno);
  std::vector<weir::descriptor> copies;
  copies.reserve(numbers.size());
  for (const std::int32_t number : numbers) {
    copies.emplace_back(static_cast<int>(::syscall(pidfd_getfd_call, source.get(), number, 0)));
    if (!copies.back()) return refusal("pidfd_getfd", errno);
  }
  return copies;
}

bool can_be_copied_from() noexcept {
  static const bool answer = [] {
    try {
      return probe();
    } catch (...) {
      return false;
    }
  }();
  return answer;
}

}  // namespace weir_torch

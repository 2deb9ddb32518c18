// SPDX-License-Identifier: Apache-2.0
// Processes, as /proc tells of them.
#include "base/process.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <string_view>

namespace weir { inline namespace v0 { namespace detail {
namespace {

using text_buffer = std::array<char, 1024>;

/// The beginning of /proc/<number>/<file>.
std::string_view read_process_file(int number, const char* file, text_buffer& buffer) noexcept {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/%s", number, file);
  const int opened = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return {};
  ssize_t size = -1;
  do size = ::read(opened, buffer.data(), buffer.size());
  while (size < 0 && errno == EINTR);
  ::close(opened);
  return {buffer.data(), size < 0 ? 0 : static_cast<std::size_t>(size)};
}

/// Reads "boottime <seconds> …" of a time namespace; 0: there is none.
std::int64_t boot_offset_in(std::string_view text) noexcept {
  constexpr std::string_view clock = "boottime";
  const auto line = text.find(clock);
  if (line == text.npos) return 0;
  text.remove_prefix(line + clock.size());
  const auto number = text.find_first_not_of(' ');
  if (number == text.npos) return 0;
  text.remove_prefix(number);
  std::int64_t seconds = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return status == std::errc{} ? seconds : 0;
}

/// By how many ticks the kernel shifts the times that it shows this process (time namespaces).
std::int64_t shown_shift() noexcept {
  text_buffer buffer;
  return boot_offset_in(read_process_file(::getpid(), "timens_offsets", buffer)) *
         ::sysconf(_SC_CLK_TCK);
}

}  // namespace

std::uint64_t start_of_process(int number) noexcept {
  text_buffer buffer;
  std::string_view text = read_process_file(number, "stat", buffer);
  // "7 (name) S 1 …": the name may hold anything, parentheses as well.
  const auto name_end = text.rfind(')');
  if (name_end == text.npos || name_end + 2 >= text.size()) return 0;
  text.remove_prefix(name_end + 2);
  if (text.front() == 'Z' || text.front() == 'X') return 0;
  constexpr int fields_before_start = 19;  // from the state on
  for (int i = 0; i < fields_before_start; ++i) {
    const auto space = text.find(' ');
    if (space == text.npos) return 0;
    text.remove_prefix(space + 1);
  }
  std::uint64_t start = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), start);
  if (status != std::errc{} || rest == text.data() + text.size()) return 0;
  // As all processes of the computer see it, whatever their time namespace.
  static const std::int64_t shift = shown_shift();
  return start - static_cast<std::uint64_t>(shift);
}

process_identity own_process() noexcept {
  const int number = ::getpid();
  return {number, start_of_process(number)};
}

bool is_running(const process_identity& process) noexcept {
  return process.start != 0 && start_of_process(process.number) == process.start;
}

bool began_after(int number, const timespec& time) noexcept {
  const std::uint64_t ticks = start_of_process(number);
  timespec now{};
  timespec since_boot{};
  if (ticks == 0 || ::clock_gettime(CLOCK_REALTIME, &now) != 0 ||
      ::clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0)
    return false;
  // Both without the shift of a time namespace, which the clock has, too.
  since_boot.tv_sec -= shown_shift() / ::sysconf(_SC_CLK_TCK);
  const auto start =
      static_cast<std::time_t>(ticks / static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK)));
  return now.tv_sec - since_boot.tv_sec + start > time.tv_sec + 1;
}

std::string name_of_process(int number) {
  text_buffer buffer;
  const std::string_view text = read_process_file(number, "comm", buffer);
  return std::string{text.substr(0, text.find('\n'))};
}

std::uint64_t process_namespace() noexcept {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}}}  // namespace weir::v0::detail

// SPDX-License-Identifier: Apache-2.0
// Reading what the system allows.
#include "host/host_limits.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace host {
namespace {

constexpr std::uint64_t no_limit = ~std::uint64_t{0};

std::optional<std::uint64_t> number_in(std::string_view text) noexcept {
  while (!text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0)
    text.remove_prefix(1);
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

/// The number behind `name` in a file of lines "name: number" or "name number".
std::optional<std::uint64_t> field(const std::string& path, std::string_view name) {
  std::ifstream file{path};
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name) || line.size() <= name.size()) continue;
    if (line[name.size()] != ':' && line[name.size()] != ' ') continue;
    return number_in(std::string_view{line}.substr(name.size()));
  }
  return std::nullopt;
}

/// The number that a file consists of; nothing where there is no such file, or "max".
std::optional<std::uint64_t> only_number(const std::string& path) {
  std::ifstream file{path};
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return number_in(line);
}

/// Narrows `memory` to what one control group leaves. `inactive`: file pages that are given up
/// before the limit is reached.
void narrow(system_memory& memory, std::optional<std::uint64_t> most,
            std::optional<std::uint64_t> used, std::uint64_t inactive) noexcept {
  if (!most || !used || *most > no_limit / 4) return;
  const std::uint64_t kept = *used - std::min(*used, inactive);
  const std::uint64_t left = *most - std::min(*most, kept);
  memory.total = std::min(memory.total, *most);
  if (left >= memory.available) return;
  memory.available = left;
  memory.by_control_group = true;
}

/// Of a group and of all groups above it.
void narrow_by_groups(system_memory& memory, const std::string& mount, std::string group,
                      const char* most, const char* used) {
  for (;;) {
    const std::string folder = mount + group + "/";
    narrow(memory, only_number(folder + most), only_number(folder + used),
           field(folder + "memory.stat", "inactive_file").value_or(0));
    if (group.empty() || group == "/") return;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

system_memory read_system_memory(const std::string& root) {
  system_memory memory;
  constexpr std::uint64_t kib = 1024;
  if (const auto total = field(root + "/proc/meminfo", "MemTotal")) memory.total = *total * kib;
  if (const auto free = field(root + "/proc/meminfo", "MemAvailable"))
    memory.available = *free * kib;
  std::ifstream groups{root + "/proc/self/cgroup"};
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      narrow_by_groups(memory, root + "/sys/fs/cgroup", group, "memory.max", "memory.current");
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      narrow_by_groups(memory, root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
                       "memory.usage_in_bytes");
    }
  }
  return memory;
}

std::uint64_t lock_limit() noexcept {
  ::rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return no_limit;
  return limit.rlim_cur;
}

result<void> check_room(std::uint64_t size, std::uint64_t pinned, std::uint64_t limit,
                        const system_memory& system) {
  if (size > limit - std::min(limit, pinned)) {
    return error{{.code = errc::limit_exceeded,
                  .requested = bytes{size},
                  .detail = to_string(bytes{pinned}) +
                            " are pinned, and the limit of the host "
                            "arena is " +
                            to_string(bytes{limit}) +
                            "; raise the limit or free "
                            "pinned memory"}};
  }
  if (size <= system.available) return {};
  return error{
      {.code = errc::no_host_memory,
       .requested = bytes{size},
       .detail = "the " +
                 std::string{system.by_control_group ? "control group of the process" : "machine"} +
                 " has " + to_string(bytes{system.available}) +
                 " left; free memory, or raise memory.max of the control group"}};
}

error explain_refusal(error reason, const system_memory& system) noexcept {
  if (reason.code() != errc::no_host_memory) return reason;
  try {
    std::string detail = "the driver could not pin host memory, of which " +
                         to_string(bytes{system.available}) + " are available";
    if (const std::uint64_t most = lock_limit(); most != no_limit)
      detail += "; RLIMIT_MEMLOCK is " + to_string(bytes{most}) + " (ulimit -l raises it)";
    if (!reason.detail().empty()) detail += "; " + reason.detail();
    reason.set_detail(std::move(detail));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return reason;
}

}}}  // namespace weir::v0::host

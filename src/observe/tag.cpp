// SPDX-License-Identifier: Apache-2.0
// The names of tags, interned for the life of the process.
#include "weir/observe/tag.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <new>
#include <string>

#include "base/host_memory.hpp"
#include "observe/current_tag.hpp"

namespace weir { inline namespace v0 {

constinit thread_local tag observe::thread_tag{};

namespace {

/// Names by number. Entries are written once, before `count` admits them, so readers need no lock.
struct registry {
  std::mutex mutex;
  std::atomic<std::uint16_t> count{1};  // number 0 has no name
  std::array<std::string, tag::most + 1> names;
};

/// Never destroyed: tags are used until the very end of the process.
registry& tags() {
  static registry& all = *new registry;
  return all;
}

}  // namespace

result<tag> tag::named(std::string_view name) try {
  if (name.empty() || name.size() > 255) {
    return error{{.code = errc::invalid_argument, .detail = "name must have 1 to 255 bytes"}};
  }
  registry& all = tags();
  const std::lock_guard lock{all.mutex};
  const std::uint16_t count = all.count.load(std::memory_order_relaxed);
  for (std::uint16_t i = 1; i < count; ++i)
    if (all.names[i] == name) return tag{i};
  if (count > most) {
    return error{{.code = errc::limit_exceeded,
                  .detail = "a process can have " + std::to_string(most) + " tags; reuse one"}};
  }
  all.names[count] = name;
  all.count.store(static_cast<std::uint16_t>(count + 1), std::memory_order_release);
  return tag{count};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<tag> tag::numbered(std::uint16_t number) try {
  if (number >= tags().count.load(std::memory_order_acquire)) return errc::not_found;
  return tag{number};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

std::string_view tag::name() const noexcept {
  if (number_ == 0) return {};
  return tags().names[number_];
}

std::string to_string(tag value) { return value == tag{} ? "(no tag)" : std::string{value.name()}; }

tag current_tag() noexcept { return observe::thread_tag; }

tag_scope::tag_scope(tag now) noexcept : before_{std::exchange(observe::thread_tag, now)} {}
tag_scope::~tag_scope() { observe::thread_tag = before_; }

}}  // namespace weir::v0

// SPDX-License-Identifier: Apache-2.0
// The lives of blocks.
#include "observe/block_history.hpp"

#include <iterator>
#include <utility>

#include "base/call_stack.hpp"
#include "weir/base/bytes.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace observe {
namespace {

constexpr std::size_t most_freed = 65536;

void append(std::string& text, const std::vector<void*>& stack) {
  for (const std::string& each : detail::describe_calls(stack)) text += "\n    " + each;
}

}  // namespace

void block_history::on_event(const memory_event& event) noexcept {
  const bool is_allocation = event.kind == memory_event_kind::allocate;
  if (!is_allocation && event.kind != memory_event_kind::deallocate) return;
  try {
    stack at = detail::call_stack(__builtin_return_address(0));
    const std::lock_guard lock{mutex_};
    is_allocation ? allocated(event, std::move(at)) : freed(event, std::move(at));
  } catch (...) {  // no host memory: this life is not told
  }
}

void block_history::allocated(const memory_event& event, stack at) {
  lives_[event.address] = {.size = event.size,
                           .tag = event.tag,
                           .allocated_on = event.stream.number(),
                           .allocated_at = std::move(at)};
}

void block_history::freed(const memory_event& event, stack at) {
  life& ended = lives_[event.address];
  ended.size = event.size;
  ended.tag = event.tag;
  ended.freed_on = event.stream.number();
  ended.freed_at = std::move(at);
  ended.is_freed = true;
  freed_.push_back(event.address);
  if (freed_.size() <= most_freed) return;
  const auto oldest = lives_.find(freed_.front());
  freed_.pop_front();
  if (oldest != lives_.end() && oldest->second.is_freed) lives_.erase(oldest);
}

std::string block_history::life_of(std::uint64_t address) const {
  const std::lock_guard lock{mutex_};
  const auto entry = lives_.find(address);
  if (entry == lives_.end()) return {};
  const life& found = entry->second;
  std::string text;
  if (!found.allocated_at.empty()) {
    text += "\n  allocated on stream " + std::to_string(found.allocated_on) + ", " +
            to_string(bytes{found.size});
    if (const auto tag = tag::numbered(found.tag); tag && found.tag != 0)
      text += ", tag \"" + std::string{tag->name()} + "\"";
    append(text, found.allocated_at);
  }
  if (found.is_freed) {
    text += "\n  freed on stream " + std::to_string(found.freed_on);
    append(text, found.freed_at);
  }
  return text;
}

block_history::range block_history::block_over(std::uint64_t address) const noexcept {
  const std::lock_guard lock{mutex_};
  const auto above = lives_.upper_bound(address);
  if (above == lives_.begin()) return {};
  const auto& [start, life] = *std::prev(above);
  if (address - start >= life.size) return {};
  return {start, life.size, life.is_freed};
}

}}}  // namespace weir::v0::observe

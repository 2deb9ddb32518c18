// Merging the records of threads.
#include "trace/merge.hpp"

#include <algorithm>

namespace weir::inline v0::trace {
namespace {

/// Of those that a recorder hears of.
bool needs_block(trace_kind kind) noexcept {
  return kind == trace_kind::allocate || kind == trace_kind::deallocate ||
         kind == trace_kind::record_stream;
}

}  // namespace

bool merger::possible(const record& what) const {
  if (!needs_block(what.kind)) return true;
  return live_.contains(what.address) != (what.kind == trace_kind::allocate);
}

/// What makes it possible is the next allocation, or free, of the address on another thread. With
/// it must go what its thread did before.
bool merger::reorder(std::size_t place, std::size_t count) {
  const record& held = waiting_[place];
  const trace_kind wanted =
      held.kind == trace_kind::allocate ? trace_kind::deallocate : trace_kind::allocate;
  for (std::size_t i = place + 1; i < count && waiting_[i].time <= held.time + slack_; ++i) {
    const record& other = waiting_[i];
    if (other.address != held.address || other.kind != wanted || other.thread == held.thread)
      continue;
    const auto first = waiting_.begin() + static_cast<std::ptrdiff_t>(place);
    std::stable_partition(
        first, waiting_.begin() + static_cast<std::ptrdiff_t>(i + 1),
        [mover = other.thread](const record& each) { return each.thread == mover; });
    return true;
  }
  return false;
}

void merger::tell(const record& what, std::vector<record>& to) {
  if (what.kind == trace_kind::allocate) {
    const auto [at, fresh] = live_.try_emplace(what.address);
    if (!fresh) {
      record missing = what;
      missing.kind = trace_kind::deallocate;
      missing.size = at->second.size;
      missing.stream = at->second.stream;
      missing.tag = at->second.tag;
      missing.pool = at->second.pool;
      missing.extra = missing.other = 0;
      to.push_back(missing);
    }
    at->second = {what.size, what.stream, what.tag, what.pool};
  } else if (needs_block(what.kind) && !live_.contains(what.address)) {
    return;
  } else if (what.kind == trace_kind::deallocate) {
    live_.erase(what.address);
  }
  to.push_back(what);
}

void merger::take_until(std::uint64_t settled, std::vector<record>& to) {
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [](const record& a, const record& b) { return a.time < b.time; });
  // What lies within the slack of the end may have to go behind something that is still to come.
  const std::uint64_t end = settled - std::min(settled, slack_);
  const auto count = static_cast<std::size_t>(
      std::partition_point(waiting_.begin(), waiting_.end(),
                           [&](const record& each) { return each.time < end; }) -
      waiting_.begin());
  for (std::size_t i = 0; i < count; ++i) {
    // Each move may uncover another that must come first; a few threads deep at the most.
    for (int tries = 0; tries < 16 && !possible(waiting_[i]); ++tries)
      if (!reorder(i, waiting_.size())) break;
    tell(waiting_[i], to);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace weir::inline v0::trace

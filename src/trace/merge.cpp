// SPDX-License-Identifier: Apache-2.0
// Merging the records of threads.
#include "trace/merge.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace trace {
namespace {

/// Of the kinds that a recorder receives.
bool needs_block(trace_kind kind) noexcept {
  return kind == trace_kind::allocate || kind == trace_kind::deallocate ||
         kind == trace_kind::record_stream;
}

}  // namespace

bool merger::is_possible(const record& next) const {
  if (!needs_block(next.kind)) return true;
  return live_.contains(next.address) != (next.kind == trace_kind::allocate);
}

/// What makes it possible is the next allocation, or free, of the address on another thread. With
/// it must go what its thread did before.
bool merger::reorder(std::size_t index, std::size_t count) {
  const record& held = pending_[index];
  if (has_gaps_ && held.kind != trace_kind::allocate) return false;
  const trace_kind missing_kind =
      held.kind == trace_kind::allocate ? trace_kind::deallocate : trace_kind::allocate;
  for (std::size_t i = index + 1; i < count && pending_[i].time <= held.time + slack_; ++i) {
    const record& other = pending_[i];
    if (other.address != held.address || other.kind != missing_kind || other.thread == held.thread)
      continue;
    const auto begin = pending_.begin() + static_cast<std::ptrdiff_t>(index);
    std::stable_partition(
        begin, pending_.begin() + static_cast<std::ptrdiff_t>(i + 1),
        [mover = other.thread](const record& each) { return each.thread == mover; });
    return true;
  }
  return false;
}

void merger::emit(const record& next, std::vector<record>& out) {
  if (next.kind == trace_kind::allocate) {
    const auto [entry, inserted] = live_.try_emplace(next.address);
    if (!inserted) {
      record missing = next;
      missing.kind = trace_kind::deallocate;
      missing.size = entry->second.size;
      missing.stream = entry->second.stream;
      missing.tag = entry->second.tag;
      missing.pool = entry->second.pool;
      missing.extra = missing.other = 0;
      out.push_back(missing);
    }
    entry->second = {next.size, next.stream, next.tag, next.pool};
  } else if (needs_block(next.kind) && !live_.contains(next.address)) {
    return;
  } else if (next.kind == trace_kind::deallocate) {
    live_.erase(next.address);
  }
  out.push_back(next);
}

void merger::merge_until(std::uint64_t settled, std::vector<record>& out) {
  std::stable_sort(pending_.begin(), pending_.end(),
                   [](const record& a, const record& b) { return a.time < b.time; });
  // What lies within the slack of the end may have to go behind something that is still to come.
  const std::uint64_t end = settled - std::min(settled, slack_);
  const auto count = static_cast<std::size_t>(
      std::partition_point(pending_.begin(), pending_.end(),
                           [&](const record& each) { return each.time < end; }) -
      pending_.begin());
  for (std::size_t i = 0; i < count; ++i) {
    // Each move may uncover another that must come first; a few threads deep at the most.
    for (int tries = 0; tries < 16 && !is_possible(pending_[i]); ++tries)
      if (!reorder(i, pending_.size())) break;
    emit(pending_[i], out);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
}

}}}  // namespace weir::v0::trace

// SPDX-License-Identifier: Apache-2.0
// Windows from the begins and the ends of runs.
#include "placement/window_search.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace placement {

window_search::window_search(const arena_slots& slots, const place_chooser& places,
                             const request& wanted)
    : slots_{slots},
      places_{places},
      wanted_{wanted},
      size_{wanted.units * unit},
      step_{wanted.alignment * unit} {
  row_.reserve(32);
}

void window_search::add(block_index index, const block& there, bool hole) {
  row_.push_back({index, there.address, there.end(), hole});
}

void window_search::end_row() {
  if (row_.empty()) return;
  weigh_row(/*open=*/false);
  row_.clear();
}

room_window window_search::finish() {
  weigh_row(/*open=*/true);
  // Where the row did not reach the end.
  const std::uint64_t start = (slots_.end_address() + step_ - 1) / step_ * step_;
  if (!best_.exists && start + size_ <= slots_.limit()) {
    row_.clear();
    const std::uint64_t gaps = gap_slots(0, slots_.end_address(), start + size_);
    consider({start, start + size_, gaps, 0, no_block, true});
  }
  return best_;
}

void window_search::consider(const room_window& candidate) noexcept {
  const auto score = [](const room_window& w) { return std::pair{w.gap_slots, w.left_over}; };
  if (!best_.exists || score(candidate) < score(best_)) best_ = candidate;
}

void window_search::weigh_row(bool open) {
  if (!open && row_.back().end - row_.front().start < size_) return;
  const std::uint64_t row_end =
      open ? slots_.limit() : places_.limits_in(row_.back().index, wanted_).end;
  for (std::size_t i = 0; i < row_.size(); ++i) {
    const window_limits limits = places_.limits_in(row_[i].index, wanted_);
    weigh_from_start_of(i, limits, row_end);
    weigh_from_end_of(i, limits);
  }
}

void window_search::weigh_from_start_of(std::size_t at, const window_limits& limits,
                                        std::uint64_t row_end) {
  const std::uint64_t end = limits.start + size_;
  if (end > row_end || limits.start >= row_[at].end) return;
  const std::uint64_t gaps = gap_slots(at, limits.start, end);
  consider({limits.start, end, gaps, left_over(end), row_[at].index, true});
}

/// Against the end of a run, reaching down into a hole.
void window_search::weigh_from_end_of(std::size_t at, const window_limits& limits) {
  const row_block& run = row_[at];
  if (run.hole || run.end < row_.front().start + size_ || !limits.ends_with_it) return;
  const std::uint64_t low = (run.end - size_) / step_ * step_;
  if (low < row_.front().start) return;  // rounding down may leave the row
  std::size_t first = at;
  while (row_[first].start > low) --first;
  if (first == at || !row_[first].hole || low < row_[first].start) return;
  const std::uint64_t gaps = gap_slots(first, low, low + size_);
  consider({low, low + size_, gaps, run.end - (low + size_), row_[first].index, true});
}

/// How many slots of [start, end) are holes or beyond the arena's end.
std::uint64_t window_search::gap_slots(std::size_t from, std::uint64_t start,
                                       std::uint64_t end) const noexcept {
  std::uint64_t slots = 0;
  for (std::size_t i = from; i < row_.size() && row_[i].start < end; ++i) {
    if (!row_[i].hole) continue;
    const std::uint64_t low = slots_.slot_of(std::max(start, row_[i].start));
    const std::uint64_t high = slots_.slot_behind(std::min(end, row_[i].end));
    slots += high - low;
  }
  if (end > slots_.end_address())
    slots += slots_.slot_behind(end) - std::max(slots_.count(), slots_.slot_of(start));
  return slots;
}

/// What a window that ends there leaves of the run it ends in, or of the last slot of a hole.
std::uint64_t window_search::left_over(std::uint64_t end) const noexcept {
  const std::uint64_t slot = slots_.slot_size();
  for (auto last = row_.rbegin(); last != row_.rend(); ++last) {
    if (last->start >= end || last->end < end) continue;
    return last->hole ? (slot - (end - slots_.base()) % slot) % slot : last->end - end;
  }
  return 0;
}

}}}  // namespace weir::v0::placement

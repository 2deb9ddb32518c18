// Where an arena could make room: windows over runs and holes, and what to fill the gaps with.
#include <algorithm>

#include "placement/arena.hpp"

namespace weir { inline namespace v0 { namespace placement {

bool arena::usable(const block& run, const request& wanted, reach whose) const noexcept {
  if (run.is() != block_kind::run) return false;
  if (run.stream == no_stream || run.stream == wanted.stream) return true;
  return whose == reach::behind_wait && shared_.order.can_wait_for(stamp_of(run));
}

bool arena::fillable(const block& hole) const noexcept {
  return hole.is() == block_kind::hole && shared_.order.completed(stamp_of(hole));
}

bool arena::others_have_runs(stream_slot stream) const noexcept {
  for (stream_slot other = 1; other < owners_.size(); ++other)
    if (other != stream && owners_[other]->runs.total() != 0) return true;
  return false;
}

/// False where no plan that moves can be complete, and looking for one can be spared: the bytes of
/// a window and of what is moved into its gaps are all in runs that the request may use, and new
/// memory is taken for a gap only where there is headroom for a slot.
bool arena::worth_a_plan(const request& wanted, reach whose) const noexcept {
  std::uint64_t most = 0;
  for (stream_slot each = 0; each < owners_.size(); ++each)
    if (whose == reach::behind_wait || each == no_stream || each == wanted.stream)
      most += owners_[each]->runs.total();
  if (most >= wanted.units * unit) return true;
  return static_cast<double>(reserved_ + slot_size_) <=
         (1 + rules_.headroom) * static_cast<double>(peak_handed_out_);
}

namespace {

/// One block of a row that a window may go over.
struct row_block {
  block_index index = no_block;
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  bool hole = false;
};

}  // namespace

/// Adds a run above all of the stretches.
void arena::add_to(std::vector<stretch>& stretches, block_index run) const {
  const block& added = shared_.blocks[run];
  if (!stretches.empty() && stretches.back().end == added.address) {
    stretches.back().end = added.end();
  } else {
    stretches.push_back({added.address, added.end(), run});
  }
}

/// The window with the fewest slots to map, then with the least left over, then the lowest. Where
/// nothing else serves there is always one at the arena's end, unless the addresses are used up.
arena::window arena::best_window(const request& wanted, reach whose,
                                 std::vector<stretch>& stretches) const {
  const block_store& blocks = shared_.blocks;
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t step = wanted.alignment * unit;
  const bool careful = is_careful();
  window best;
  const auto consider = [&](const window& candidate) {
    const auto score = [](const window& w) { return std::pair{w.gap_slots, w.left_over}; };
    if (!best.exists || score(candidate) < score(best)) best = candidate;
  };

  std::vector<row_block> row;
  row.reserve(32);
  stretches.reserve(64);
  // How many slots of [start, end) are holes or beyond the arena's end.
  const auto gaps = [&](std::size_t from, std::uint64_t start, std::uint64_t end) {
    std::uint64_t slots = 0;
    for (std::size_t i = from; i < row.size() && row[i].start < end; ++i) {
      if (!row[i].hole) continue;
      const std::uint64_t low = slot_of(std::max(start, row[i].start));
      const std::uint64_t high = slot_of(std::min(end, row[i].end) + slot_size_ - 1);
      slots += high - low;
    }
    if (end > end_address())
      slots += slot_of(end + slot_size_ - 1) - std::max(slots_.size(), slot_of(start));
    return slots;
  };
  const auto left_over = [&](std::uint64_t end) -> std::uint64_t {
    for (auto last = row.rbegin(); last != row.rend(); ++last) {
      if (last->start >= end || last->end < end) continue;
      return last->hole ? (slot_size_ - (end - range_.base()) % slot_size_) % slot_size_
                        : last->end - end;
    }
    return 0;
  };
  // The windows of one row of adjoining runs and holes; `open`: it ends with the arena.
  const auto weigh = [&](bool open) {
    if (!open && row.back().end - row.front().start < size) return;
    const std::uint64_t row_end = open      ? limit()
                                  : careful ? careful_end(row.back().index, wanted)
                                            : row.back().end;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::uint64_t start =
          careful ? careful_start(row[i].index, wanted) : (row[i].start + step - 1) / step * step;
      if (start + size <= row_end && start < row[i].end) {
        const std::uint64_t end = start + size;
        consider({start, end, gaps(i, start, end), left_over(end), row[i].index, true});
      }
      if (row[i].hole || row[i].end < row.front().start + size) continue;
      // The same from its other end, reaching down into a hole.
      const std::uint64_t low = (row[i].end - size) / step * step;
      if (careful && row[i].end % slot_size_ != 0) continue;
      if (low < row.front().start) continue;  // rounding down may leave the row
      std::size_t first = i;
      while (row[first].start > low) --first;
      if (first == i || !row[first].hole || low < row[first].start) continue;
      consider({low, low + size, gaps(first, low, low + size), row[i].end - (low + size),
                row[first].index, true});
    }
  };

  for (block_index at = first_; at != no_block; at = blocks[at].after) {
    const block& there = blocks[at];
    const block_kind kind = there.is();
    const bool run = kind == block_kind::run && usable(there, wanted, whose);
    if (run) add_to(stretches, at);
    if (run || (kind == block_kind::hole && fillable(there))) {
      row.push_back({at, there.address, there.end(), !run});
    } else if (!row.empty()) {
      weigh(false);
      row.clear();
    }
  }
  weigh(true);

  // Where the row did not reach the end.
  const std::uint64_t start = (end_address() + step - 1) / step * step;
  if (!best.exists && start + size <= limit()) {
    row.clear();
    consider({start, start + size, gaps(0, end_address(), start + size), 0, no_block, true});
  }
  return best;
}

/// The window that begins with the run at the arena's end, or at the end itself.
arena::window arena::window_at_end(const request& wanted, reach whose) const {
  const std::uint64_t step = wanted.alignment * unit;
  const bool with_run = last_ != no_block && usable(shared_.blocks[last_], wanted, whose);
  const std::uint64_t low = with_run ? shared_.blocks[last_].address : end_address();
  window best{.start = (low + step - 1) / step * step};
  if (with_run && is_careful()) best.start = careful_start(last_, wanted);
  best.end = best.start + wanted.units * unit;
  best.first = with_run && best.start < end_address() ? last_ : no_block;
  best.exists = best.end <= limit();
  return best;
}

bool arena::is_quiescent_up_to(block_index from, std::uint64_t end) const noexcept {
  for (; from != no_block && shared_.blocks[from].address < end; from = shared_.blocks[from].after)
    if (shared_.blocks[from].stream != no_stream) return false;
  return true;
}

/// Wholly free handles outside the window: the largest first, so that few have to be moved; of
/// equals those in the shortest stretches, because a long one can serve a request as it is. Those
/// where planned blocks go come last: they are where they should be.
std::vector<arena::source> arena::free_handles(const window& outside,
                                               const std::vector<stretch>& stretches) const {
  std::vector<source> sources;
  const auto collect = [&](std::uint64_t low, std::uint64_t high, const stretch& in) {
    const std::uint64_t until = slot_of(high);
    std::uint64_t at = slot_of(low + slot_size_ - 1);
    block_index run = in.first;
    while (at < until) {
      const handle_number number = slots_[at].current;
      const handle& there = handles_[number];
      if (there.slot == at && at + there.slots <= until) {
        while (shared_.blocks[run].end() <= address_of(at)) run = shared_.blocks[run].after;
        // What is to be unmapped at once must not be in use any more.
        if (!shared_.unmap_at_once || is_quiescent_up_to(run, address_of(at + there.slots)))
          sources.push_back({number, run, in.end - in.start, false});
      }
      at = there.slot + there.slots;
    }
  };
  for (const stretch& each : stretches) {
    if (outside.end <= each.start || outside.start >= each.end) {
      collect(each.start, each.end, each);
      continue;
    }
    if (each.start < outside.start) collect(each.start, outside.start, each);
    if (outside.end < each.end) collect(outside.end, each.end, each);
  }
  const auto is_planned = [&](const source& each) {
    return rounds_.is_planned(address_of(handles_[each.number].slot));
  };
  std::stable_sort(sources.begin(), sources.end(), [&](const source& a, const source& b) {
    if (is_planned(a) != is_planned(b)) return is_planned(b);
    if (handles_[a.number].slots != handles_[b.number].slots)
      return handles_[a.number].slots > handles_[b.number].slots;
    return a.stretch_length < b.stretch_length;
  });
  return sources;
}

/// The slots of a window that nothing is mapped to.
std::vector<arena::gap> arena::gaps_of(const window& room) const {
  std::vector<gap> gaps;
  for (block_index at = room.first; at != no_block; at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    if (there.address >= room.end) break;
    if (there.is() != block_kind::hole) continue;
    gaps.push_back({slot_of(std::max(room.start, there.address)),
                    slot_of(std::min(room.end, there.end()) + slot_size_ - 1), at});
  }
  if (room.end > end_address())
    gaps.push_back({slots_.size(), slot_of(room.end + slot_size_ - 1), no_block});
  return gaps;
}

/// What left a mapping behind in the gap and is free where it is now comes back, for nothing.
/// Returns what of the gap is still open.
std::vector<arena::gap> arena::plan_returns(room_plan& into, const gap& in,
                                            std::vector<source>& sources) const {
  std::vector<gap> open;
  std::uint64_t low = in.low;
  for (std::uint64_t at = in.low; in.hole != no_block && at < in.high; ++at) {
    const slot& there = slots_[at];
    if (there.retained == 0 || there.retained_offset != 0) continue;
    const auto back = std::find_if(sources.begin(), sources.end(), [&](const source& candidate) {
      return candidate.number == there.retained && !candidate.used;
    });
    if (back == sources.end() || at + handles_[back->number].slots > in.high) continue;
    if (low < at) open.push_back({low, at, in.hole});
    plan_move(into, in, at, *back, /*returns=*/true);
    at += handles_[back->number].slots;
    low = at--;
  }
  if (low < in.high) open.push_back({low, in.high, in.hole});
  return open;
}

void arena::plan_move(room_plan& into, const gap& in, std::uint64_t at, source& with,
                      bool returns) const {
  with.used = true;
  into.fillings.push_back({.slot = static_cast<std::uint32_t>(at),
                           .slots = handles_[with.number].slots,
                           .from = with.number,
                           .returns = returns,
                           .source = with.run,
                           .hole = in.hole});
}

/// The handles that would fill the gap, as far as they go: in the order of the sources, each no
/// larger than what is left. The arena's end is open: there the smallest handle that covers the
/// rest may stick out.
std::vector<arena::source*> arena::choose(const gap& in, std::vector<source>& sources) const {
  std::vector<source*> chosen;
  std::uint64_t left = in.high - in.low;
  for (source& candidate : sources) {
    if (left == 0) break;
    if (candidate.used || handles_[candidate.number].slots > left) continue;
    chosen.push_back(&candidate);
    left -= handles_[candidate.number].slots;
  }
  if (left == 0 || in.hole != no_block) return chosen;
  source* cover = nullptr;
  for (source& candidate : sources) {
    const std::uint32_t size = handles_[candidate.number].slots;
    if (candidate.used || size < left || address_of(in.high - left + size) > limit()) continue;
    if (std::find(chosen.begin(), chosen.end(), &candidate) != chosen.end()) continue;
    if (cover == nullptr || size < handles_[cover->number].slots) cover = &candidate;
  }
  if (cover != nullptr) chosen.push_back(cover);
  return chosen;
}

/// New handles for a gap: large ones, and smaller and smaller ones towards its end, so that what
/// the block leaves of its last handle is little; then the surplus of growth in the same way.
void arena::plan_creation(room_plan& into, const gap& in, const request& wanted) const {
  const std::uint64_t largest = handle_for(wanted) / slot_size_;
  std::uint64_t at = in.low;
  const auto create = [&](std::uint64_t count) {
    for (std::uint64_t size = largest; count > 0; count -= size) {
      while (size > count) size /= 2;
      const auto slots = static_cast<std::uint32_t>(size);
      into.fillings.push_back(
          {.slot = static_cast<std::uint32_t>(at), .slots = slots, .hole = in.hole});
      at += size;
      into.new_slots += slots;
    }
  };
  const std::uint64_t needed = in.high - in.low;
  std::uint64_t surplus = 0;
  if (in.hole == no_block && !is_careful()) {
    const std::uint64_t step = rules_.unit_at(reserved_, slot_size_) / slot_size_;
    const std::uint64_t rounded = (needed + step - 1) / step * step;
    if (address_of(in.low + rounded) <= limit() && shared_.may_reserve(rounded * slot_size_))
      surplus = rounded - needed;
  }
  if (!rules_.moves) return create(needed + surplus);
  create(needed);
  create(surplus);
}

/// Whether to take new memory for a gap although these handles would fill it: it is worth it where
/// they are many small ones, as long as there is headroom.
bool arena::better_new(const gap& in, const std::vector<source*>& chosen, std::uint64_t planned,
                       const request& wanted) const {
  const std::uint64_t size = (in.high - in.low) * slot_size_;
  if (is_careful()) return false;
  const std::uint64_t each = handle_for(wanted);
  const double most = (1 + rules_.headroom) * static_cast<double>(peak_handed_out_);
  const std::uint64_t then = reserved_ + planned * slot_size_ + size;
  return chosen.size() > (size + each - 1) / each && static_cast<double>(then) <= most &&
         shared_.may_reserve(planned * slot_size_ + size);
}

const arena::survey& arena::look_around(const request& wanted, reach whose) {
  if (seen_.holds && seen_.wanted == wanted && seen_.whose == whose) return seen_;
  seen_ = {};
  seen_.wanted = wanted;
  seen_.whose = whose;
  // For less than a slot no window is better than the end, and the walk can be spared.
  seen_.best = wanted.units * unit <= slot_size_ ? window_at_end(wanted, whose)
                                                 : best_window(wanted, whose, seen_.stretches);
  seen_.holds = true;
  return seen_;
}

arena::room_plan arena::make_plan(const request& wanted, reach whose, means by) {
  const survey& seen = look_around(wanted, whose);
  return fill(seen.best, seen.stretches, wanted, by);
}

/// What of the window has to be mapped, and with what: free handles of the stretches, or new ones.
arena::room_plan arena::fill(const window& room, const std::vector<stretch>& stretches,
                             const request& wanted, means by) const {
  room_plan plan;
  plan.window = room;
  if (!plan.window.exists) return plan;
  std::vector<gap> gaps = gaps_of(plan.window);
  std::vector<source> sources;
  if (by != means::growing && rules_.moves && !gaps.empty())
    sources = free_handles(plan.window, stretches);

  std::vector<gap> rest;
  for (const gap& each : gaps) {
    for (const gap& open : plan_returns(plan, each, sources)) {
      const std::vector<source*> chosen = choose(open, sources);
      if (better_new(open, chosen, plan.new_slots, wanted)) {
        plan_creation(plan, open, wanted);
        continue;
      }
      std::uint64_t at = open.low;
      for (source* with : chosen) {
        plan_move(plan, open, at, *with, /*returns=*/false);
        at += handles_[with->number].slots;
      }
      if (at < open.high) rest.push_back({at, open.high, open.hole});
    }
  }
  plan.complete = rest.empty() || by != means::moving;
  if (by == means::moving) return plan;
  for (const gap& each : rest) plan_creation(plan, each, wanted);
  return plan;
}

bool arena::prefers_growth(const request& wanted) const {
  if (!rules_.moves) return true;
  const double most = (1 + rules_.slack) * static_cast<double>(peak_handed_out_);
  return static_cast<double>(reserved_ + wanted.units * unit) <= most;
}

}}}  // namespace weir::v0::placement

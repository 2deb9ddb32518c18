// Where an arena could make room: windows over runs and holes, and what to fill the gaps with.
#include <algorithm>

#include "placement/arena.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// False where no plan that moves can be complete, and looking for one can be spared: the bytes of
/// a window and of what is moved into its gaps are all in runs that the request may use, and new
/// memory is taken for a gap only where there is headroom for a slot.
bool arena::worth_a_plan(const request& wanted, reach whose) const noexcept {
  std::uint64_t most = 0;
  for (stream_slot each = 0; each < runs_.owners(); ++each)
    if (whose == reach::behind_wait || each == no_stream || each == wanted.stream)
      most += runs_.of(each).total();
  if (most >= wanted.units * unit) return true;
  return static_cast<double>(reserved_ + slots_.slot_size()) <=
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
void arena::add_to(std::vector<run_stretch>& stretches, block_index run) const {
  const block& added = shared_.blocks[run];
  if (!stretches.empty() && stretches.back().end == added.address) {
    stretches.back().end = added.end();
  } else {
    stretches.push_back({added.address, added.end(), run});
  }
}

std::vector<run_stretch> arena::usable_stretches(const request& wanted) const {
  std::vector<run_stretch> stretches;
  for (block_index at = runs_.first(); at != no_block; at = shared_.blocks[at].after)
    if (runs_.usable(shared_.blocks[at], wanted.stream, reach::usable)) add_to(stretches, at);
  return stretches;
}

/// The window with the fewest slots to map, then with the least left over, then the lowest. Where
/// nothing else serves there is always one at the arena's end, unless the addresses are used up.
room_window arena::best_window(const request& wanted, reach whose,
                               std::vector<run_stretch>& stretches) const {
  const block_store& blocks = shared_.blocks;
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t step = wanted.alignment * unit;
  room_window best;
  const auto consider = [&](const room_window& candidate) {
    const auto score = [](const room_window& w) { return std::pair{w.gap_slots, w.left_over}; };
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
      const std::uint64_t low = slots_.slot_of(std::max(start, row[i].start));
      const std::uint64_t high = slots_.slot_of(std::min(end, row[i].end) + slots_.slot_size() - 1);
      slots += high - low;
    }
    if (end > slots_.end_address())
      slots += slots_.slot_of(end + slots_.slot_size() - 1) -
               std::max(slots_.count(), slots_.slot_of(start));
    return slots;
  };
  const auto left_over = [&](std::uint64_t end) -> std::uint64_t {
    for (auto last = row.rbegin(); last != row.rend(); ++last) {
      if (last->start >= end || last->end < end) continue;
      return last->hole ? (slots_.slot_size() - (end - slots_.base()) % slots_.slot_size()) %
                              slots_.slot_size()
                        : last->end - end;
    }
    return 0;
  };
  // The windows of one row of adjoining runs and holes; `open`: it ends with the arena.
  const auto weigh = [&](bool open) {
    if (!open && row.back().end - row.front().start < size) return;
    const std::uint64_t row_end =
        open ? slots_.limit() : planned_.limits_in(row.back().index, wanted).end;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const window_limits limits = planned_.limits_in(row[i].index, wanted);
      const std::uint64_t start = limits.start;
      if (start + size <= row_end && start < row[i].end) {
        const std::uint64_t end = start + size;
        consider({start, end, gaps(i, start, end), left_over(end), row[i].index, true});
      }
      if (row[i].hole || row[i].end < row.front().start + size) continue;
      // The same from its other end, reaching down into a hole.
      const std::uint64_t low = (row[i].end - size) / step * step;
      if (!limits.ends_with_it) continue;
      if (low < row.front().start) continue;  // rounding down may leave the row
      std::size_t first = i;
      while (row[first].start > low) --first;
      if (first == i || !row[first].hole || low < row[first].start) continue;
      consider({low, low + size, gaps(first, low, low + size), row[i].end - (low + size),
                row[first].index, true});
    }
  };

  for (block_index at = runs_.first(); at != no_block; at = blocks[at].after) {
    const block& there = blocks[at];
    const block_kind kind = there.is();
    const bool run = kind == block_kind::run && runs_.usable(there, wanted.stream, whose);
    if (run) add_to(stretches, at);
    if (run || (kind == block_kind::hole && runs_.fillable(there))) {
      row.push_back({at, there.address, there.end(), !run});
    } else if (!row.empty()) {
      weigh(false);
      row.clear();
    }
  }
  weigh(true);

  // Where the row did not reach the end.
  const std::uint64_t start = (slots_.end_address() + step - 1) / step * step;
  if (!best.exists && start + size <= slots_.limit()) {
    row.clear();
    consider({start, start + size, gaps(0, slots_.end_address(), start + size), 0, no_block, true});
  }
  return best;
}

/// The window that begins with the run at the arena's end, or at the end itself.
room_window arena::window_at_end(const request& wanted, reach whose) const {
  const std::uint64_t step = wanted.alignment * unit;
  const bool with_run =
      runs_.last() != no_block && runs_.usable(shared_.blocks[runs_.last()], wanted.stream, whose);
  const std::uint64_t behind = (slots_.end_address() + step - 1) / step * step;
  room_window best{.start = with_run ? planned_.limits_in(runs_.last(), wanted).start : behind};
  best.end = best.start + wanted.units * unit;
  best.first = with_run && best.start < slots_.end_address() ? runs_.last() : no_block;
  best.exists = best.end <= slots_.limit();
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
std::vector<free_handle> arena::free_handles(const room_window& outside,
                                             const std::vector<run_stretch>& stretches) const {
  std::vector<free_handle> sources;
  const auto collect = [&](std::uint64_t low, std::uint64_t high, const run_stretch& in) {
    const std::uint64_t until = slots_.slot_of(high);
    std::uint64_t at = slots_.slot_of(low + slots_.slot_size() - 1);
    block_index run = in.first;
    while (at < until) {
      const handle_number number = slots_[at].current;
      const handle_record& there = slots_.handle(number);
      if (there.slot == at && at + there.slots <= until) {
        while (shared_.blocks[run].end() <= slots_.address_of(at)) run = shared_.blocks[run].after;
        // What is to be unmapped at once must not be in use any more.
        if (!shared_.unmap_at_once || is_quiescent_up_to(run, slots_.address_of(at + there.slots)))
          sources.push_back({number, run, in.end - in.start, false});
      }
      at = there.slot + there.slots;
    }
  };
  for (const run_stretch& each : stretches) {
    if (outside.end <= each.start || outside.start >= each.end) {
      collect(each.start, each.end, each);
      continue;
    }
    if (each.start < outside.start) collect(each.start, outside.start, each);
    if (outside.end < each.end) collect(outside.end, each.end, each);
  }
  const auto is_planned = [&](const free_handle& each) {
    return planned_.keeps(slots_.address_of(slots_.handle(each.number).slot));
  };
  std::stable_sort(sources.begin(), sources.end(), [&](const free_handle& a, const free_handle& b) {
    if (is_planned(a) != is_planned(b)) return is_planned(b);
    if (slots_.handle(a.number).slots != slots_.handle(b.number).slots)
      return slots_.handle(a.number).slots > slots_.handle(b.number).slots;
    return a.stretch_length < b.stretch_length;
  });
  return sources;
}

/// The slots of a window that nothing is mapped to.
std::vector<window_gap> arena::gaps_of(const room_window& room) const {
  std::vector<window_gap> gaps;
  for (block_index at = room.first; at != no_block; at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    if (there.address >= room.end) break;
    if (there.is() != block_kind::hole) continue;
    gaps.push_back({slots_.slot_of(std::max(room.start, there.address)),
                    slots_.slot_of(std::min(room.end, there.end()) + slots_.slot_size() - 1), at});
  }
  if (room.end > slots_.end_address())
    gaps.push_back({slots_.count(), slots_.slot_of(room.end + slots_.slot_size() - 1), no_block});
  return gaps;
}

/// What left a mapping behind in the gap and is free where it is now comes back, for nothing.
/// Returns what of the gap is still open.
std::vector<window_gap> arena::plan_returns(room_plan& into, const window_gap& in,
                                            std::vector<free_handle>& sources) const {
  std::vector<window_gap> open;
  std::uint64_t low = in.low;
  for (std::uint64_t at = in.low; in.hole != no_block && at < in.high; ++at) {
    const slot_record& there = slots_[at];
    if (there.retained == 0 || there.retained_offset != 0) continue;
    const auto back =
        std::find_if(sources.begin(), sources.end(), [&](const free_handle& candidate) {
          return candidate.number == there.retained && !candidate.used;
        });
    if (back == sources.end() || at + slots_.handle(back->number).slots > in.high) continue;
    if (low < at) open.push_back({low, at, in.hole});
    plan_move(into, in, at, *back, /*returns=*/true);
    at += slots_.handle(back->number).slots;
    low = at--;
  }
  if (low < in.high) open.push_back({low, in.high, in.hole});
  return open;
}

void arena::plan_move(room_plan& into, const window_gap& in, std::uint64_t at, free_handle& with,
                      bool returns) const {
  with.used = true;
  into.fillings.push_back({.slot = static_cast<std::uint32_t>(at),
                           .slots = slots_.handle(with.number).slots,
                           .from = with.number,
                           .returns = returns,
                           .source = with.run,
                           .hole = in.hole});
}

/// The handles that would fill the gap, as far as they go: in the order of the sources, each no
/// larger than what is left. The arena's end is open: there the smallest handle that covers the
/// rest may stick out.
std::vector<free_handle*> arena::choose(const window_gap& in,
                                        std::vector<free_handle>& sources) const {
  std::vector<free_handle*> chosen;
  std::uint64_t left = in.high - in.low;
  for (free_handle& candidate : sources) {
    if (left == 0) break;
    if (candidate.used || slots_.handle(candidate.number).slots > left) continue;
    chosen.push_back(&candidate);
    left -= slots_.handle(candidate.number).slots;
  }
  if (left == 0 || in.hole != no_block) return chosen;
  free_handle* cover = nullptr;
  for (free_handle& candidate : sources) {
    const std::uint32_t size = slots_.handle(candidate.number).slots;
    if (candidate.used || size < left || slots_.address_of(in.high - left + size) > slots_.limit())
      continue;
    if (std::find(chosen.begin(), chosen.end(), &candidate) != chosen.end()) continue;
    if (cover == nullptr || size < slots_.handle(cover->number).slots) cover = &candidate;
  }
  if (cover != nullptr) chosen.push_back(cover);
  return chosen;
}

/// New handles for a gap: large ones, and smaller and smaller ones towards its end, so that what
/// the block leaves of its last handle is little; then the surplus of growth in the same way.
void arena::plan_creation(room_plan& into, const window_gap& in, const request& wanted) const {
  const std::uint64_t largest = handle_for(wanted) / slots_.slot_size();
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
  if (in.hole == no_block && !planned_.growth_for(wanted).exact) {
    const std::uint64_t step = rules_.unit_at(reserved_, slots_.slot_size()) / slots_.slot_size();
    const std::uint64_t rounded = (needed + step - 1) / step * step;
    if (slots_.address_of(in.low + rounded) <= slots_.limit() &&
        shared_.may_reserve(rounded * slots_.slot_size()))
      surplus = rounded - needed;
  }
  if (!rules_.moves) return create(needed + surplus);
  create(needed);
  create(surplus);
}

/// Whether to take new memory for a gap although these handles would fill it: it is worth it where
/// they are many small ones, as long as there is headroom.
bool arena::better_new(const window_gap& in, const std::vector<free_handle*>& chosen,
                       std::uint64_t planned, const request& wanted) const {
  const std::uint64_t size = (in.high - in.low) * slots_.slot_size();
  if (planned_.growth_for(wanted).exact) return false;
  const std::uint64_t each = handle_for(wanted);
  const double most = (1 + rules_.headroom) * static_cast<double>(peak_handed_out_);
  const std::uint64_t then = reserved_ + planned * slots_.slot_size() + size;
  return chosen.size() > (size + each - 1) / each && static_cast<double>(then) <= most &&
         shared_.may_reserve(planned * slots_.slot_size() + size);
}

const arena::survey& arena::look_around(const request& wanted, reach whose) {
  if (seen_.at == runs_.changes() && seen_.wanted == wanted && seen_.whose == whose) return seen_;
  seen_ = {};
  seen_.wanted = wanted;
  seen_.whose = whose;
  // For less than a slot no window is better than the end, and the walk can be spared.
  seen_.best = wanted.units * unit <= slots_.slot_size()
                   ? window_at_end(wanted, whose)
                   : best_window(wanted, whose, seen_.stretches);
  seen_.at = runs_.changes();
  return seen_;
}

room_plan arena::make_plan(const request& wanted, reach whose, fill_with by) {
  const survey& seen = look_around(wanted, whose);
  return fill(seen.best, seen.stretches, wanted, by);
}

/// What of the window has to be mapped, and with what: free handles of the stretches, or new ones.
room_plan arena::fill(const room_window& room, const std::vector<run_stretch>& stretches,
                      const request& wanted, fill_with by) const {
  room_plan plan;
  plan.window = room;
  if (!plan.window.exists) return plan;
  std::vector<window_gap> gaps = gaps_of(plan.window);
  std::vector<free_handle> sources;
  if (by != fill_with::new_handles && rules_.moves && !gaps.empty())
    sources = free_handles(plan.window, stretches);

  std::vector<window_gap> rest;
  for (const window_gap& each : gaps) {
    for (const window_gap& open : plan_returns(plan, each, sources)) {
      const std::vector<free_handle*> chosen = choose(open, sources);
      if (better_new(open, chosen, plan.new_slots, wanted)) {
        plan_creation(plan, open, wanted);
        continue;
      }
      std::uint64_t at = open.low;
      for (free_handle* with : chosen) {
        plan_move(plan, open, at, *with, /*returns=*/false);
        at += slots_.handle(with->number).slots;
      }
      if (at < open.high) rest.push_back({at, open.high, open.hole});
    }
  }
  plan.complete = rest.empty() || by != fill_with::free_handles;
  if (by == fill_with::free_handles) return plan;
  for (const window_gap& each : rest) plan_creation(plan, each, wanted);
  return plan;
}

bool arena::prefers_growth(const request& wanted) const {
  if (!rules_.moves) return true;
  const double most = (1 + rules_.slack) * static_cast<double>(peak_handed_out_);
  return static_cast<double>(reserved_ + wanted.units * unit) <= most;
}

}}}  // namespace weir::v0::placement

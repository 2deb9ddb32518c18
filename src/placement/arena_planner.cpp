// SPDX-License-Identifier: Apache-2.0
// Windows, and what fills their gaps.
#include "placement/arena_planner.hpp"

#include <algorithm>

#include "placement/window_search.hpp"

namespace weir { inline namespace v0 { namespace placement {

bool arena_planner::prefers_growth(const request& wanted) const noexcept {
  if (!core_.rules.moves) return true;
  const arena_figures held = host_.figures();
  const double most = (1 + core_.rules.slack) * static_cast<double>(held.peak_handed_out);
  return static_cast<double>(held.reserved + wanted.units * unit) <= most;
}

/// The bytes of a window and of what is moved into its gaps are all in runs that the request may
/// use, and new memory is taken for a gap only where there is headroom for a slot.
bool arena_planner::is_worth_a_plan(const request& wanted, reach whose) const noexcept {
  std::uint64_t most = 0;
  for (stream_slot each = 0; each < core_.runs.owners(); ++each)
    if (whose == reach::behind_wait || each == no_stream || each == wanted.stream)
      most += core_.runs.of(each).total();
  if (most >= wanted.units * unit) return true;
  const arena_figures held = host_.figures();
  return static_cast<double>(held.reserved + core_.slots.slot_size()) <=
         (1 + core_.rules.headroom) * static_cast<double>(held.peak_handed_out);
}

room_plan arena_planner::plan(const request& wanted, reach whose, fill_with by) {
  const survey& seen = look_around(wanted, whose);
  return fill(seen.best, seen.stretches, wanted, by);
}

room_plan arena_planner::plan_in(const room_window& window, const request& wanted) const {
  return fill(window, usable_stretches(wanted), wanted, fill_with::free_handles);
}

// --- Windows -------------------------------------------------------------------------------------

const arena_planner::survey& arena_planner::look_around(const request& wanted, reach whose) {
  if (seen_.at == core_.runs.changes() && seen_.wanted == wanted && seen_.whose == whose)
    return seen_;
  seen_ = {};
  seen_.wanted = wanted;
  seen_.whose = whose;
  // For less than a slot no window is better than the end, and the walk can be spared.
  seen_.best = wanted.units * unit <= core_.slots.slot_size()
                   ? window_at_end(wanted, whose)
                   : best_window(wanted, whose, seen_.stretches);
  seen_.at = core_.runs.changes();
  return seen_;
}

room_window arena_planner::best_window(const request& wanted, reach whose,
                                       std::vector<run_stretch>& stretches) const {
  window_search search{core_.slots, places_, wanted};
  stretches.reserve(64);
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    const bool run = core_.runs.usable(there, wanted.stream, whose);
    if (run) add_to(stretches, at);
    if (run || core_.runs.fillable(there)) {
      search.add(at, there, !run);
    } else {
      search.end_row();
    }
  }
  return search.finish();
}

/// The window that begins with the run at the arena's end, or at the end itself.
room_window arena_planner::window_at_end(const request& wanted, reach whose) const {
  const std::uint64_t step = wanted.alignment * unit;
  const bool with_run = core_.runs.last() != no_block &&
                        core_.runs.usable(core_.runs[core_.runs.last()], wanted.stream, whose);
  const std::uint64_t behind = (core_.slots.end_address() + step - 1) / step * step;
  room_window best{.start = with_run ? places_.limits_in(core_.runs.last(), wanted).start : behind};
  best.end = best.start + wanted.units * unit;
  best.first = with_run && best.start < core_.slots.end_address() ? core_.runs.last() : no_block;
  best.exists = best.end <= core_.slots.limit();
  return best;
}

std::vector<run_stretch> arena_planner::usable_stretches(const request& wanted) const {
  std::vector<run_stretch> stretches;
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after)
    if (core_.runs.usable(core_.runs[at], wanted.stream, reach::usable)) add_to(stretches, at);
  return stretches;
}

/// Adds a run above all of the stretches.
void arena_planner::add_to(std::vector<run_stretch>& stretches, block_index run) const {
  const block& added = core_.runs[run];
  if (!stretches.empty() && stretches.back().end == added.address) {
    stretches.back().end = added.end();
  } else {
    stretches.push_back({added.address, added.end(), run});
  }
}

// --- Filling gaps --------------------------------------------------------------------------------

/// What of the window has to be mapped, and with what: free handles of the stretches, or new ones.
room_plan arena_planner::fill(const room_window& window, const std::vector<run_stretch>& stretches,
                              const request& wanted, fill_with by) const {
  room_plan plan;
  plan.window = window;
  if (!window.exists) return plan;
  const std::vector<window_gap> gaps = gaps_of(window);
  std::vector<free_handle> sources;
  if (by != fill_with::new_handles && core_.rules.moves && !gaps.empty())
    sources = free_handles(window, stretches);

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
        at += core_.slots.handle(with->number).slots;
      }
      if (at < open.high) rest.push_back({at, open.high, open.hole});
    }
  }
  plan.complete = rest.empty() || by != fill_with::free_handles;
  if (by == fill_with::free_handles) return plan;
  for (const window_gap& each : rest) plan_creation(plan, each, wanted);
  return plan;
}

/// The slots of a window that nothing is mapped to.
std::vector<window_gap> arena_planner::gaps_of(const room_window& window) const {
  const arena_slots& slots = core_.slots;
  std::vector<window_gap> gaps;
  for (block_index at = window.first; at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    if (there.address >= window.end) break;
    if (there.is() != block_kind::hole) continue;
    gaps.push_back({slots.slot_of(std::max(window.start, there.address)),
                    slots.slot_behind(std::min(window.end, there.end())), at});
  }
  if (window.end > slots.end_address())
    gaps.push_back({slots.count(), slots.slot_behind(window.end), no_block});
  return gaps;
}

/// Wholly free handles outside the window: the largest first, so that few have to be moved; of
/// equals those in the shortest stretches, because a long one can serve a request as it is. Those
/// that are where they should be come last.
std::vector<free_handle> arena_planner::free_handles(
    const room_window& outside, const std::vector<run_stretch>& stretches) const {
  const arena_slots& slots = core_.slots;
  std::vector<free_handle> sources;
  const auto collect = [&](std::uint64_t low, std::uint64_t high, const run_stretch& in) {
    const std::uint64_t until = slots.slot_of(high);
    std::uint64_t at = slots.slot_behind(low);
    block_index run = in.first;
    while (at < until) {
      const handle_number number = slots[at].current;
      const handle_record& there = slots.handle(number);
      const std::uint64_t start = slots.address_of(at);
      if (there.slot == at && at + there.slots <= until) {
        while (core_.runs[run].end() <= start) run = core_.runs[run].after;
        // What is to be unmapped at once must not be in use any more.
        if (!core_.shared.unmap_at_once ||
            is_quiescent_up_to(run, slots.address_of(at + there.slots)))
          sources.push_back({.number = number,
                             .run = run,
                             .stretch_length = in.end - in.start,
                             .kept = places_.keeps(start)});
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
  std::stable_sort(sources.begin(), sources.end(), [&](const free_handle& a, const free_handle& b) {
    if (a.kept != b.kept) return b.kept;
    if (slots.handle(a.number).slots != slots.handle(b.number).slots)
      return slots.handle(a.number).slots > slots.handle(b.number).slots;
    return a.stretch_length < b.stretch_length;
  });
  return sources;
}

bool arena_planner::is_quiescent_up_to(block_index from, std::uint64_t end) const noexcept {
  for (; from != no_block && core_.runs[from].address < end; from = core_.runs[from].after)
    if (core_.runs[from].stream != no_stream) return false;
  return true;
}

/// What left a mapping behind in the gap and is free where it is now comes back, for nothing.
/// Returns what of the gap is still open.
std::vector<window_gap> arena_planner::plan_returns(room_plan& into, const window_gap& in,
                                                    std::vector<free_handle>& sources) const {
  std::vector<window_gap> open;
  std::uint64_t low = in.low;
  for (std::uint64_t at = in.low; in.hole != no_block && at < in.high; ++at) {
    const slot_record& there = core_.slots[at];
    if (there.retained == 0 || there.retained_offset != 0) continue;
    const auto back =
        std::find_if(sources.begin(), sources.end(), [&](const free_handle& candidate) {
          return candidate.number == there.retained && !candidate.used;
        });
    if (back == sources.end() || at + core_.slots.handle(back->number).slots > in.high) continue;
    if (low < at) open.push_back({low, at, in.hole});
    plan_move(into, in, at, *back, /*returns=*/true);
    at += core_.slots.handle(back->number).slots;
    low = at--;
  }
  if (low < in.high) open.push_back({low, in.high, in.hole});
  return open;
}

void arena_planner::plan_move(room_plan& into, const window_gap& in, std::uint64_t at,
                              free_handle& with, bool returns) const {
  with.used = true;
  into.fillings.push_back({.slot = static_cast<std::uint32_t>(at),
                           .slots = core_.slots.handle(with.number).slots,
                           .from = with.number,
                           .returns = returns,
                           .source = with.run,
                           .hole = in.hole});
}

/// The handles that would fill the gap, as far as they go: in the order of the sources, each no
/// larger than what is left. The arena's end is open: there the smallest handle that covers the
/// rest may stick out.
std::vector<free_handle*> arena_planner::choose(const window_gap& in,
                                                std::vector<free_handle>& sources) const {
  const auto slots_of = [&](const free_handle& each) {
    return core_.slots.handle(each.number).slots;
  };
  std::vector<free_handle*> chosen;
  std::uint64_t left = in.high - in.low;
  for (free_handle& candidate : sources) {
    if (left == 0) break;
    if (candidate.used || slots_of(candidate) > left) continue;
    chosen.push_back(&candidate);
    left -= slots_of(candidate);
  }
  if (left == 0 || in.hole != no_block) return chosen;
  free_handle* cover = nullptr;
  for (free_handle& candidate : sources) {
    const std::uint32_t size = slots_of(candidate);
    if (candidate.used || size < left ||
        core_.slots.address_of(in.high - left + size) > core_.slots.limit())
      continue;
    if (std::find(chosen.begin(), chosen.end(), &candidate) != chosen.end()) continue;
    if (cover == nullptr || size < slots_of(*cover)) cover = &candidate;
  }
  if (cover != nullptr) chosen.push_back(cover);
  return chosen;
}

/// The size of new handles for the request.
std::uint64_t arena_planner::handle_for(const request& wanted) const noexcept {
  const std::uint64_t slot = core_.slots.slot_size();
  if (places_.growth_for(wanted).one_slot_handles) return slot;
  return core_.rules.handle_for(wanted.units * unit, host_.figures().reserved, slot,
                                core_.runs.last_owner());
}

/// New handles for a gap: large ones, and smaller and smaller ones towards its end, so that what
/// the block leaves of its last handle is little; then the surplus of growth in the same way.
void arena_planner::plan_creation(room_plan& into, const window_gap& in,
                                  const request& wanted) const {
  const std::uint64_t largest = handle_for(wanted) / core_.slots.slot_size();
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
  if (in.hole == no_block && !places_.growth_for(wanted).exact) {
    const std::uint64_t slot = core_.slots.slot_size();
    const std::uint64_t step = core_.rules.unit_at(host_.figures().reserved, slot) / slot;
    const std::uint64_t rounded = (needed + step - 1) / step * step;
    if (core_.slots.address_of(in.low + rounded) <= core_.slots.limit() &&
        core_.shared.may_reserve(rounded * slot))
      surplus = rounded - needed;
  }
  if (!core_.rules.moves) return create(needed + surplus);
  create(needed);
  create(surplus);
}

/// Whether to take new memory for a gap although these handles would fill it: it is worth it where
/// they are many small ones, as long as there is headroom.
bool arena_planner::better_new(const window_gap& in, const std::vector<free_handle*>& chosen,
                               std::uint64_t planned, const request& wanted) const {
  const std::uint64_t size = core_.slots.bytes_of(in.high - in.low);
  if (places_.growth_for(wanted).exact) return false;
  const std::uint64_t each = handle_for(wanted);
  const arena_figures held = host_.figures();
  const double most = (1 + core_.rules.headroom) * static_cast<double>(held.peak_handed_out);
  const std::uint64_t created = core_.slots.bytes_of(planned) + size;
  return chosen.size() > (size + each - 1) / each &&
         static_cast<double>(held.reserved + created) <= most && core_.shared.may_reserve(created);
}

}}}  // namespace weir::v0::placement

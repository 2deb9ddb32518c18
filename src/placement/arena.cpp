// SPDX-License-Identifier: Apache-2.0
// An arena: which of its parts does what for a request, and in which order.
#include "placement/arena.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace placement {

arena::arena(placement_context& shared, pool_id pool, growth_rules rules, address_range range,
             std::uint64_t slot_size, physical_properties properties)
    : backing_store{shared, pool},
      range_{std::move(range)},
      core_{.shared = shared,
            .pool = pool,
            .rules = rules,
            .properties = properties,
            .slots = {range_.base(), range_.size().count(), slot_size},
            .runs = {shared.blocks, shared.order, range_.base()}},
      usual_{core_.runs, core_.slots, core_.rules},
      careful_{shared, core_.runs, core_.slots, usual_},
      planned_{core_.runs, core_.slots, careful_},
      planner_{core_, planned_, *this},
      mover_{core_, *this},
      suspender_{core_, *this},
      inspector_{core_, *this},
      whole_{core_} {}

arena::~arena() = default;

result<std::unique_ptr<backing_store>> arena::create(placement_context& shared, pool_id pool,
                                                     growth_rules rules, const context_scope& bound,
                                                     physical_properties properties) {
  if (!bound) return bound.error();
  const auto& can = shared.device.capabilities();
  if (!can.virtual_memory) return errc::not_supported;
  const std::uint64_t slot_size =
      std::max<std::uint64_t>(can.granularity.count(), std::uint64_t{2} << 20);
  const std::uint64_t memory = (shared.device.total_memory().count() / slot_size + 1) * slot_size;
  // Moving leaves holes behind, so there are more addresses than memory; private pools, of which
  // there may be hundreds, make do with less. Where addresses are short, less will do, too.
  for (std::uint64_t times = pool == pool_id{} ? 8 : 2;; times /= 2) {
    auto range = address_range::reserve(shared.device, bytes{memory * times}, bytes{slot_size});
    if (!range && times > 1) continue;
    if (!range) return std::move(range).error();
    return std::unique_ptr<backing_store>{
        new arena{shared, pool, rules, *std::move(range), slot_size, properties}};
  }
}

// --- Handing out and taking back -----------------------------------------------------------------

void arena::hand_out(block_index index, const request& wanted) noexcept {
  block& fresh = shared_.blocks[index];
  fresh.stream = wanted.stream;
  fresh.out = {};
  fresh.become_live();
  handed_out_ += fresh.size();
  peak_handed_out_ = std::max(peak_handed_out_, handed_out_);
  planned_.handed_out(fresh);
}

block_index arena::take(const free_place& place, const request& wanted) noexcept {
  if (place.first == no_block || !shared_.blocks.prepare(2)) return no_block;
  const std::uint64_t end = place.start + wanted.units * unit;
  const block_index taken = place.over_runs
                                ? core_.runs.cut(place.first, place.start, end)
                                : core_.runs.carve(place.first, place.start, wanted.units);
  hand_out(taken, wanted);
  return taken;
}

result<block_index> arena::fit_at(std::uint64_t address, const request& wanted) {
  if (wanted.whole_handle) {
    const block_index taken = take(whole_.find_at(address, wanted), wanted);
    if (taken != no_block) return taken;
    return error{{.code = errc::not_ready, .detail = "the handle is not free as a whole"}};
  }
  const std::uint64_t end = address + wanted.units * unit;
  const block_index first = block_over(address);
  for (block_index at = first;; at = core_.runs[at].after) {
    if (at == no_block || core_.runs[at].is() == block_kind::hole)
      return error{
          {.code = errc::foreign_pointer, .detail = "the address is not in the pool's memory"}};
    if (!core_.runs.usable(shared_.blocks[at], wanted.stream, reach::usable))
      return error{
          {.code = errc::not_ready, .detail = "the range is not completely free for this stream"}};
    if (core_.runs[at].end() >= end) break;
  }
  if (!shared_.blocks.prepare(2)) return no_host_memory();
  const block_index taken = core_.runs.cut(first, address, end);
  hand_out(taken, wanted);
  return taken;
}

void arena::free(block_index index, stamp freed) noexcept {
  const block& gone = core_.runs[index];
  planned_.freed(gone);
  handed_out_ -= gone.size();
  core_.runs.free(index, freed);
}

block_index arena::block_over(std::uint64_t address) const noexcept {
  if (address < core_.slots.base() || address >= core_.slots.end_address()) return no_block;
  return core_.runs.over(address);
}

// --- Making room ---------------------------------------------------------------------------------

result<block_index> arena::rearrange(const request& wanted, reach whose,
                                     const context_scope& bound) {
  if (wanted.whole_handle) {
    if (whose == reach::usable) return no_block;  // fit() found all there is
    return borrow_handle(wanted, bound);
  }
  if (whose == reach::behind_wait) {
    // It is asked when what is usable was not enough: without others' runs there is no more.
    if (!core_.runs.others_have_runs(wanted.stream)) return no_block;
    WEIR_TRY_VALUE(borrowed, borrow(wanted, bound));
    if (borrowed != no_block) return borrowed;
  } else if (planned_places::can_plan(wanted.units)) {
    plan_round();
    WEIR_TRY_VALUE(planned, make_planned_room(wanted, bound));
    if (planned != no_block) return planned;
  } else if (careful_.spares_handles(wanted)) {
    // What caches held made no better room: now a free handle may be pinned.
    request pinning = wanted;
    pinning.care = std::max(wanted.care, care::may_pin);
    if (const block_index room = fit(pinning); room != no_block) return room;
  }
  // Where one slot is room enough a free handle would have served as it is.
  if (wanted.units * unit <= core_.slots.slot_size()) return no_block;
  mover_.unblock(bound);
  core_.runs.join_holes();
  if (!planner_.is_worth_a_plan(wanted, whose)) return no_block;
  room_plan plan = planner_.plan(wanted, whose, fill_with::free_handles);
  if (!plan.complete) return no_block;
  return mover_.carry_out(plan, wanted, bound);
}

/// A run of another stream that fits as it is, behind a wait for that stream.
result<block_index> arena::borrow(const request& wanted, const context_scope& bound) {
  const std::uint64_t needed = wanted.units_with_alignment();
  block_index best = no_block;
  for (stream_slot other = 1; other < core_.runs.owners(); ++other) {
    if (other == wanted.stream) continue;
    const block_index match = usual_.best_run(other, needed);
    if (match == no_block) continue;
    const block& run = core_.runs[match];
    if (!shared_.order.can_wait_for(core_.runs.stamp_of(run))) continue;
    if (best == no_block || run.units < core_.runs[best].units) best = match;
  }
  if (best == no_block) return no_block;
  WEIR_TRY_VALUE(waits, shared_.wait(wanted.stream, core_.runs.stamp_of(core_.runs[best]), bound));
  if (!waits) return no_block;
  return take({.first = best, .start = usual_.limits_in(best, wanted).start}, wanted);
}

block_index arena::take_handle(const handle_place& found, const request& wanted) noexcept {
  request part = wanted;
  part.units = static_cast<std::uint32_t>(found.units);
  return take(found.place, part);
}

/// As borrow(), of a whole handle.
result<block_index> arena::borrow_handle(const request& wanted, const context_scope& bound) {
  const free_place place = whole_.find(wanted, reach::behind_wait).place;
  if (place.first == no_block) return no_block;
  const stamp freed = core_.runs.stamp_of(core_.runs[place.first]);
  WEIR_TRY_VALUE(waits, shared_.wait(wanted.stream, freed, bound));
  if (!waits) return no_block;
  return take(place, wanted);
}

/// A handle of exactly the request's size.
result<block_index> arena::create_handle(const request& wanted, const context_scope& bound) {
  if (!shared_.may_reserve(wanted.units * unit)) return no_block;
  mover_.unblock(bound);
  core_.runs.join_holes();
  room_plan plan = whole_.plan_new(wanted);
  if (!plan.complete) return no_block;
  return mover_.carry_out(plan, wanted, bound);
}

result<block_index> arena::grow(const request& wanted, const context_scope& bound) {
  if (wanted.whole_handle) return create_handle(wanted, bound);
  WEIR_TRY_VALUE(hopeless, lacks_memory_for(wanted, bound));
  if (hopeless) return no_block;
  WEIR_TRY_VALUE(room, grow_apart(wanted, bound));
  if (room != no_block || !careful_.applies() || wanted.care == care::may_mix) return room;
  // No room is left that keeps small and large blocks apart.
  request mixing = wanted;
  mixing.care = care::may_mix;
  if (const block_index mixed = fit(mixing); mixed != no_block) return mixed;
  return grow(mixing, bound);
}

/// The same for a request with no more freedom than it has.
result<block_index> arena::grow_apart(const request& wanted, const context_scope& bound) {
  WEIR_TRY_VALUE(planned, make_planned_room(wanted, bound));
  if (planned != no_block) return planned;
  const bool outgrown = planned_.is_outgrown(wanted, figures());
  if (outgrown) planned_.drop_plan();
  if (outgrown || careful_.spares_handles(wanted)) {
    WEIR_TRY_VALUE(moved, rearrange(wanted, reach::usable, bound));
    if (moved != no_block) return moved;
  }
  mover_.unblock(bound);
  core_.runs.join_holes();
  const bool move = !prefers_growth(wanted);
  // Others' memory first, if this goes beyond the slack anyway; then without.
  for (const reach whose : {reach::behind_wait, reach::usable}) {
    if (whose == reach::behind_wait &&
        (!move || !shared_.queues_waits || !core_.runs.others_have_runs(wanted.stream)))
      continue;
    room_plan plan = planner_.plan(wanted, whose, move ? fill_with::both : fill_with::new_handles);
    if (!plan.complete || !shared_.may_reserve(core_.slots.bytes_of(plan.new_slots))) continue;
    auto done = mover_.carry_out(plan, wanted, bound);
    if (!done && done.code() == errc::out_of_memory) continue;
    if (done && *done == no_block) continue;
    return done;
  }
  return no_block;
}

/// Whether all free memory of the arena and all that can be had in addition is less than a large
/// request needs: then no plan is made for it.
result<bool> arena::lacks_memory_for(const request& wanted, const context_scope& bound) const {
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t free = reserved_ - handed_out_;
  if (size <= free + planned_without_question) return false;
  const std::uint64_t least = (size - free) / core_.slots.slot_size() * core_.slots.slot_size();
  if (!shared_.may_reserve(least)) return true;
  WEIR_TRY_VALUE(given, shared_.supply.can_give(least, core_.properties, bound));
  return !given;
}

/// The plan's blocks get addresses of their own, to which memory moves as they come.
void arena::plan_round() {
  try {
    const std::uint64_t slots = planned_.draw_plan(figures());
    if (slots == 0 || !shared_.blocks.prepare(1)) return;
    const std::uint64_t low = core_.slots.end_address();
    core_.slots.prepare_slots(slots);
    core_.append_hole(core_.slots.count() + slots);
    planned_.lay_out(low, figures());
  } catch (const std::bad_alloc&) {
    // Without a plan memory moves as before.
  }
}

/// Moves free memory to the planned place, where fit() left the request alone for it; if that
/// cannot be, room anywhere. no_block: there is none without more.
result<block_index> arena::make_planned_room(const request& wanted, const context_scope& bound) {
  const room_window room = planned_.window_for(wanted);
  if (!room.exists) return no_block;
  room_plan plan = planner_.plan_in(room, wanted);
  if (plan.complete) {
    auto made = mover_.carry_out(plan, wanted, bound);
    if (made ? *made != no_block : made.code() != errc::out_of_memory) return made;
  }
  planned_.missed(wanted);
  return take(careful_.fit(wanted), wanted);
}

// --- Giving back ---------------------------------------------------------------------------------

result<bytes> arena::release(bytes most, const context_scope& bound) {
  WEIR_TRY_VALUE(released, mover_.release(most.count(), bound));
  // What was held before memory went is no measure for what comes.
  if (released != 0) {
    peak_handed_out_ = handed_out_;
    planned_.drop_plan();
  }
  return bytes{released};
}

result<void> arena::close(const context_scope& bound) {
  auto closed = mover_.give_back_all(bound);
  core_.runs.clear();
  core_.slots.clear();
  planned_.forget();
  remove_reserved(reserved_);
  handed_out_ = 0;
  suspended_ = false;
  auto freed = range_.close();
  return closed ? std::move(freed) : std::move(closed);
}

}}}  // namespace weir::v0::placement

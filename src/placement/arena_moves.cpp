// Making room in an arena: creating, moving and releasing handles, so that a failure leaves all as
// it was.
#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "placement/arena.hpp"

namespace weir { inline namespace v0 { namespace placement {

result<block_index> arena::rearrange(const request& wanted, reach whose,
                                     const context_scope& bound) {
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
  unblock(bound);
  core_.runs.join_holes();
  if (!planner_.is_worth_a_plan(wanted, whose)) return no_block;
  room_plan plan = planner_.plan(wanted, whose, fill_with::free_handles);
  if (!plan.complete) return no_block;
  return carry_out(plan, wanted, bound);
}

/// A run of another stream that fits as it is, behind a wait for that stream.
result<block_index> arena::borrow(const request& wanted, const context_scope& bound) {
  const std::uint64_t needed = wanted.units_with_alignment();
  block_index best = no_block;
  for (stream_slot other = 1; other < core_.runs.owners(); ++other) {
    if (other == wanted.stream) continue;
    const block_index match = usual_.best_run(other, needed);
    if (match == no_block) continue;
    const block& run = shared_.blocks[match];
    if (!shared_.order.can_wait_for(core_.runs.stamp_of(run))) continue;
    if (best == no_block || run.units < shared_.blocks[best].units) best = match;
  }
  if (best == no_block) return no_block;
  WEIR_TRY_VALUE(waits,
                 shared_.wait(wanted.stream, core_.runs.stamp_of(shared_.blocks[best]), bound));
  if (!waits) return no_block;
  return take({.first = best, .start = usual_.limits_in(best, wanted).start}, wanted);
}

result<block_index> arena::grow(const request& wanted, const context_scope& bound) {
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
  unblock(bound);
  core_.runs.join_holes();
  const bool move = !prefers_growth(wanted);
  // Others' memory first, if this goes beyond the slack anyway; then without.
  for (const reach whose : {reach::behind_wait, reach::usable}) {
    if (whose == reach::behind_wait &&
        (!move || !shared_.queues_waits || !core_.runs.others_have_runs(wanted.stream)))
      continue;
    room_plan plan = planner_.plan(wanted, whose, move ? fill_with::both : fill_with::new_handles);
    if (!plan.complete || !shared_.may_reserve(plan.new_slots * core_.slots.slot_size())) continue;
    auto done = carry_out(plan, wanted, bound);
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
    append_hole(core_.slots.count() + slots);
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
    auto made = carry_out(plan, wanted, bound);
    if (made ? *made != no_block : made.code() != errc::out_of_memory) return made;
  }
  planned_.missed(wanted);
  return take(careful_.fit(wanted), wanted);
}

result<block_index> arena::carry_out(room_plan& room, const request& wanted,
                                     const context_scope& bound) {
  // Every filling can split a run and a hole twice each, and the window one more.
  if (!shared_.blocks.prepare(5 * room.fillings.size() + 4)) return errc::no_host_memory;
  prepare_records(room, wanted);
  WEIR_TRY_VALUE(waited, wait_for_others(room, wanted, bound));
  if (!waited) return no_block;
  WEIR_TRY(create_handles(room, bound));
  auto mapped = clear_the_way(room, bound);
  if (mapped) mapped = map_handles(room, bound);
  if (!mapped) {
    for (gap_filling& each : room.fillings) undo_creation(each, bound);
    return std::move(mapped).error();
  }
  for (const gap_filling& each : room.fillings)
    if (!each.fresh) room.left.push_back(core_.slots.handle(each.from).slot);
  const block_index taken = commit(room, wanted);
  // A mapping that cannot be taken away stays retained, which is no harm.
  if (shared_.unmap_at_once)
    for (const std::uint32_t place : room.left) static_cast<void>(unmap_retained(place, bound));
  // Someone will want to fill the holes, or to move what is free where nothing may stay mapped: the
  // epoch of the last use must come to an end. If it does not now, it will with the next one.
  if (!room.left.empty() || shared_.unmap_at_once) {
    try {
      static_cast<void>(shared_.order.close(wanted.stream, bound));
    } catch (const std::bad_alloc&) {
    }
  }
  return taken;
}

/// Asks the host for all that carrying out the plan may need, before the driver is asked for
/// anything: what is mapped must be entered.
void arena::prepare_records(room_plan& room, const request& wanted) {
  prepare_free(wanted.stream);
  const std::size_t count = room.fillings.size();
  room.relocations.reserve(count);
  room.changes.reserve(2 * count);
  room.left.reserve(count);
  std::size_t top = core_.slots.count();
  for (const gap_filling& each : room.fillings)
    top = std::max<std::size_t>(top, each.slot + each.slots);
  core_.slots.prepare(count, top);
}

/// Makes the stream wait for what others may still do with the bytes it gets. False: it cannot.
result<bool> arena::wait_for_others(const room_plan& room, const request& wanted,
                                    const context_scope& bound) {
  const auto wait_over = [&](block_index at, std::uint64_t start,
                             std::uint64_t end) -> result<bool> {
    for (; at != no_block && shared_.blocks[at].address < end; at = shared_.blocks[at].after) {
      const block& there = shared_.blocks[at];
      if (there.end() <= start || there.is() != block_kind::run) continue;
      if (there.stream == no_stream || there.stream == wanted.stream) continue;
      WEIR_TRY_VALUE(waits, shared_.wait(wanted.stream, core_.runs.stamp_of(there), bound));
      if (!waits) return false;
    }
    return true;
  };
  WEIR_TRY_VALUE(window_ready, wait_over(room.window.first, room.window.start, room.window.end));
  if (!window_ready) return false;
  for (const gap_filling& each : room.fillings) {
    if (each.from == 0) continue;
    const std::uint64_t start = core_.slots.address_of(core_.slots.handle(each.from).slot);
    WEIR_TRY_VALUE(ready,
                   wait_over(each.source, start, start + each.slots * core_.slots.slot_size()));
    if (!ready) return false;
  }
  return true;
}

result<void> arena::create_handles(room_plan& room, const context_scope& bound) {
  std::uint64_t largest = 0;
  for (const gap_filling& each : room.fillings)
    if (each.from == 0) largest = std::max(largest, each.slots * core_.slots.slot_size());
  WEIR_TRY_VALUE(given, shared_.can_create(room.new_slots * core_.slots.slot_size(), largest,
                                           core_.properties, bound));
  if (!given) {
    shared_.note_refusal();
    return error{.code = errc::out_of_memory,
                 .requested = bytes{room.new_slots * core_.slots.slot_size()}};
  }
  for (std::size_t i = 0; i < room.fillings.size(); ++i) {
    gap_filling& each = room.fillings[i];
    if (each.from != 0) continue;
    auto memory = vmm::create(bound, bytes{each.slots * core_.slots.slot_size()}, core_.properties);
    if (memory) {
      each.fresh = true;
      each.from = core_.slots.add(*memory);
      continue;
    }
    if (memory.code() == errc::out_of_memory) shared_.note_refusal();
    while (i-- > 0) undo_creation(room.fillings[i], bound);
    return std::move(memory).error();
  }
  return {};
}

/// Unmaps mappings that handles left behind where others are to be mapped now.
result<void> arena::clear_the_way(const room_plan& room, const context_scope& bound) {
  for (const gap_filling& each : room.fillings) {
    if (each.returns || each.hole == no_block) continue;
    for (std::uint32_t at = each.slot; at < each.slot + each.slots; ++at)
      if (core_.slots[at].retained != 0) WEIR_TRY(unmap_retained(at, bound));
  }
  return {};
}

/// Unmaps the whole mapping that a handle left behind over `at_slot`.
result<void> arena::unmap_retained(std::uint32_t at_slot, const context_scope& bound) {
  const handle_number number = core_.slots[at_slot].retained;
  const std::uint32_t first = at_slot - core_.slots[at_slot].retained_offset;
  const bytes size{core_.slots.handle(number).slots * core_.slots.slot_size()};
  WEIR_TRY(vmm::unmap(bound, core_.slots.address_of(first), size));
  core_.slots.drop_retained(first);
  return {};
}

result<void> arena::map_handles(const room_plan& room, const context_scope& bound) {
  for (std::size_t i = 0; i < room.fillings.size(); ++i) {
    const gap_filling& each = room.fillings[i];
    if (each.returns) continue;
    const std::uint64_t address = core_.slots.address_of(each.slot);
    const bytes size{each.slots * core_.slots.slot_size()};
    auto done = vmm::map(bound, address, core_.slots.handle(each.from).memory);
    if (done) {
      done = vmm::set_access(bound, address, size, shared_.rights);
      if (!done) undo_mapping(each, bound);
    }
    if (done) continue;
    while (i-- > 0) undo_mapping(room.fillings[i], bound);
    return done;
  }
  return {};
}

void arena::undo_creation(gap_filling& undone, const context_scope& bound) noexcept {
  if (!undone.fresh || undone.from == 0) return;
  detail::report_failure(release_surely(bound, core_.slots.handle(undone.from).memory));
  core_.slots.discard(std::exchange(undone.from, 0));
}

void arena::undo_mapping(const gap_filling& undone, const context_scope& bound) noexcept {
  if (undone.returns) return;
  if (vmm::unmap(bound, core_.slots.address_of(undone.slot),
                 bytes{undone.slots * core_.slots.slot_size()}))
    return;
  block_off(undone.slot, undone.slot + undone.slots);
}

/// The arena ends with slot `high`, in a hole, or two where one record is not enough. There are
/// records for them, and room for their slots.
void arena::append_hole(std::uint64_t high) noexcept {
  const std::uint64_t most_slots = unit_count::most * unit / core_.slots.slot_size();
  while (core_.slots.count() < high) {
    const std::uint64_t end = std::min<std::uint64_t>(high, core_.slots.count() + most_slots);
    const block_index beyond = shared_.blocks.make();
    block& hole = shared_.blocks[beyond];
    hole.address = core_.slots.end_address();
    hole.units = static_cast<std::uint32_t>((core_.slots.address_of(end) - hole.address) / unit);
    hole.stream = no_stream;
    hole.become(block_kind::hole);
    core_.slots.resize(end);
    core_.runs.link_after(core_.runs.last(), beyond);
    core_.runs.note_hole(beyond);
  }
}

/// Something is mapped in these slots, of a hole or beyond the arena's end, that could not be taken
/// away: no plan may count on them. carry_out() has prepared the records.
void arena::block_off(std::uint64_t low, std::uint64_t high) noexcept {
  if (high > core_.slots.count()) append_hole(high);
  block_index at = block_over(core_.slots.address_of(low));
  if (shared_.blocks[at].address < core_.slots.address_of(low))
    at = core_.runs.split(at, core_.slots.address_of(low));
  if (shared_.blocks[at].end() > core_.slots.address_of(high))
    core_.runs.split(at, core_.slots.address_of(high));
  core_.runs.block_off(at);
}

/// Tries once more to take away what blocks addresses.
void arena::unblock(const context_scope& bound) noexcept {
  for (block_index at = core_.runs.first(); core_.runs.stuck() != 0 && at != no_block;
       at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    if (there.is() != block_kind::stuck) continue;
    if (vmm::unmap(bound, there.address, bytes{there.size()})) core_.runs.unblock(at);
  }
}

// --- Release -------------------------------------------------------------------------------------

bool arena::may_be_released(const block& run) const noexcept { return run.stream == no_stream; }

result<bytes> arena::release(bytes most, const context_scope& bound) {
  std::uint64_t released = 0;
  // From the end, so that the arena gets shorter.
  for (block_index at = core_.runs.last(); at != no_block && released < most.count();) {
    const block_index before = shared_.blocks[at].before;
    const block& run = shared_.blocks[at];
    if (run.is() == block_kind::run && may_be_released(run)) {
      std::uint64_t low = core_.slots.slot_of(run.address + core_.slots.slot_size() - 1);
      std::uint64_t high = core_.slots.slot_of(run.end());
      while (low < high && released < most.count()) {
        const handle_number number = core_.slots[high - 1].current;
        const handle_record there = core_.slots.handle(number);
        if (there.slot + there.slots == high && there.slot >= low) {
          WEIR_TRY_VALUE(went, release_handle(number, at, bound));
          if (went) released += there.slots * core_.slots.slot_size();
        }
        high = there.slot;
      }
    }
    at = before;
  }
  drop_trailing_holes();
  // What was held before memory went is no measure for what comes.
  if (released != 0) {
    peak_handed_out_ = handed_out_;
    planned_.drop_plan();
  }
  return bytes{released};
}

/// Gives a wholly free handle back, with the mappings it left behind. False: one of those may still
/// be in use.
result<bool> arena::release_handle(handle_number number, block_index run,
                                   const context_scope& bound) {
  const handle_record going = core_.slots.handle(number);
  if (!shared_.blocks.prepare(2)) return errc::no_host_memory;
  if (going.retained != 0) {
    std::vector<std::uint32_t> left_behind;
    for (block_index at = core_.runs.first(); at != no_block; at = shared_.blocks[at].after) {
      const block& hole = shared_.blocks[at];
      if (hole.is() != block_kind::hole) continue;
      for (std::uint64_t i = core_.slots.slot_of(hole.address); i < core_.slots.slot_of(hole.end());
           ++i) {
        if (core_.slots[i].retained != number) continue;
        if (!core_.runs.fillable(hole)) return false;
        if (core_.slots[i].retained_offset == 0)
          left_behind.push_back(static_cast<std::uint32_t>(i));
      }
    }
    for (const std::uint32_t at : left_behind) WEIR_TRY(unmap_retained(at, bound));
  }
  const std::uint64_t start = core_.slots.address_of(going.slot);
  const bytes size{going.slots * core_.slots.slot_size()};
  const auto tell = [&](memory_event_kind kind) {
    shared_.emit({.kind = kind, .pool = pool_, .address = start, .size = size.count()});
  };
  // Before it goes: who registered the memory elsewhere must deregister it while it is there.
  tell(memory_event_kind::release);
  if (auto unmapped = vmm::unmap(bound, start, size); !unmapped) {
    tell(memory_event_kind::reserve);
    return std::move(unmapped).error();
  }
  leave_hole(number, run, {});
  core_.slots.erase(number);
  remove_reserved(size.count());
  ++shared_.handles_released;
  WEIR_TRY(release_surely(bound, going.memory));
  return true;
}

void arena::drop_trailing_holes() noexcept {
  while (core_.runs.last() != no_block && core_.runs.fillable(shared_.blocks[core_.runs.last()])) {
    const block& hole = shared_.blocks[core_.runs.last()];
    const std::uint64_t low = core_.slots.slot_of(hole.address);
    for (std::uint64_t i = low; i < core_.slots.count(); ++i)
      if (core_.slots[i].retained != 0) return;
    core_.runs.drop_last_hole();
    core_.slots.resize(low);
  }
}

result<void> arena::grant(const vmm::access& peer, const context_scope& bound) {
  // A mapping that was left behind can become the current one again without a driver call.
  for (std::uint64_t at = 0; at < core_.slots.count(); ++at) {
    const slot_record& there = core_.slots[at];
    const bool begins = there.current != 0 ? core_.slots.handle(there.current).slot == at
                                           : there.retained != 0 && there.retained_offset == 0;
    if (!begins) continue;
    const handle_record& mapped =
        core_.slots.handle(there.current != 0 ? there.current : there.retained);
    if (there.current != 0 && mapped.away) continue;  // it gets its rights when it comes back
    WEIR_TRY(vmm::set_access(bound, core_.slots.address_of(at),
                             bytes{mapped.slots * core_.slots.slot_size()}, {&peer, 1}));
  }
  return {};
}

result<void> arena::close(const context_scope& bound) {
  result<void> first_failure;
  const auto note = [&](result<void> done) {
    if (!done && first_failure) first_failure = std::move(done);
  };
  core_.slots.each_retained([&](std::uint64_t at, handle_number number) {
    const bytes size{core_.slots.handle(number).slots * core_.slots.slot_size()};
    note(vmm::unmap(bound, core_.slots.address_of(at), size));
  });
  for (handle_number number = 1; number < core_.slots.handle_count(); ++number) {
    const handle_record& each = core_.slots.handle(number);
    if (each.slots == 0) continue;
    if (each.memory.handle != 0)
      shared_.emit({.kind = memory_event_kind::release,
                    .pool = pool_,
                    .address = core_.slots.address_of(each.slot),
                    .size = each.slots * core_.slots.slot_size()});
    if (!each.away)
      note(vmm::unmap(bound, core_.slots.address_of(each.slot),
                      bytes{each.slots * core_.slots.slot_size()}));
    if (each.memory.handle != 0) note(release_surely(bound, each.memory));
  }
  for (block_index at = core_.runs.first(); at != no_block; at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    if (there.is() == block_kind::stuck)
      note(vmm::unmap(bound, there.address, bytes{there.size()}));
  }
  core_.runs.clear();
  planned_.forget();
  core_.slots.clear();
  remove_reserved(reserved_);
  handed_out_ = 0;
  suspended_ = false;
  note(range_.close());
  return first_failure;
}

}}}  // namespace weir::v0::placement

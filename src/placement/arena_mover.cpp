// SPDX-License-Identifier: Apache-2.0
// Carrying out a plan with the driver, so that a failure leaves all as it was.
#include "placement/arena_mover.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "device/surely.hpp"

namespace weir { inline namespace v0 { namespace placement {

result<block_index> arena_mover::carry_out(room_plan& room, const request& wanted,
                                           const context_scope& bound) {
  // Every filling can split a run and a hole twice each, and the window one more.
  if (!core_.shared.blocks.prepare(5 * room.fillings.size() + 4)) return errc::no_host_memory;
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
  if (core_.shared.unmap_at_once)
    for (const std::uint32_t place : room.left) static_cast<void>(unmap_retained(place, bound));
  // Someone will want to fill the holes, or to move what is free where nothing may stay mapped: the
  // epoch of the last use must come to an end. If it does not now, it will with the next one.
  if (!room.left.empty() || core_.shared.unmap_at_once) {
    try {
      static_cast<void>(core_.shared.order.close(wanted.stream, bound));
    } catch (const std::bad_alloc&) {
    }
  }
  return taken;
}

/// Asks the host for all that carrying out the plan may need, before the driver is asked for
/// anything: what is mapped must be entered.
void arena_mover::prepare_records(room_plan& room, const request& wanted) {
  core_.runs.prepare_owner(wanted.stream);
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
result<bool> arena_mover::wait_for_others(const room_plan& room, const request& wanted,
                                          const context_scope& bound) {
  const auto wait_over = [&](block_index at, std::uint64_t start,
                             std::uint64_t end) -> result<bool> {
    for (; at != no_block && core_.runs[at].address < end; at = core_.runs[at].after) {
      const block& there = core_.runs[at];
      if (there.end() <= start || there.is() != block_kind::run) continue;
      if (there.stream == no_stream || there.stream == wanted.stream) continue;
      WEIR_TRY_VALUE(waits, core_.shared.wait(wanted.stream, core_.runs.stamp_of(there), bound));
      if (!waits) return false;
    }
    return true;
  };
  WEIR_TRY_VALUE(window_ready, wait_over(room.window.first, room.window.start, room.window.end));
  if (!window_ready) return false;
  for (const gap_filling& each : room.fillings) {
    if (each.from == 0) continue;
    const std::uint64_t start = core_.slots.address_of(core_.slots.handle(each.from).slot);
    WEIR_TRY_VALUE(ready, wait_over(each.source, start, start + core_.slots.bytes_of(each.slots)));
    if (!ready) return false;
  }
  return true;
}

result<void> arena_mover::create_handles(room_plan& room, const context_scope& bound) {
  std::uint64_t largest = 0;
  for (const gap_filling& each : room.fillings)
    if (each.from == 0) largest = std::max(largest, core_.slots.bytes_of(each.slots));
  WEIR_TRY_VALUE(given, core_.shared.can_create(core_.slots.bytes_of(room.new_slots), largest,
                                                core_.properties, bound));
  if (!given) {
    core_.shared.note_refusal();
    return error{
        {.code = errc::out_of_memory, .requested = bytes{core_.slots.bytes_of(room.new_slots)}}};
  }
  for (std::size_t i = 0; i < room.fillings.size(); ++i) {
    gap_filling& each = room.fillings[i];
    if (each.from != 0) continue;
    auto memory = vmm::create(bound, bytes{core_.slots.bytes_of(each.slots)}, core_.properties);
    if (memory) {
      each.fresh = true;
      each.from = core_.slots.add(*memory);
      continue;
    }
    if (memory.code() == errc::out_of_memory) core_.shared.note_refusal();
    while (i-- > 0) undo_creation(room.fillings[i], bound);
    return std::move(memory).error();
  }
  return {};
}

/// Unmaps mappings that handles left behind where others are to be mapped now.
result<void> arena_mover::clear_the_way(const room_plan& room, const context_scope& bound) {
  for (const gap_filling& each : room.fillings) {
    if (each.returns || each.hole == no_block) continue;
    for (std::uint32_t at = each.slot; at < each.slot + each.slots; ++at)
      if (core_.slots[at].retained != 0) WEIR_TRY(unmap_retained(at, bound));
  }
  return {};
}

/// Unmaps the whole mapping that a handle left behind over `at_slot`.
result<void> arena_mover::unmap_retained(std::uint32_t at_slot, const context_scope& bound) {
  const handle_number number = core_.slots[at_slot].retained;
  const std::uint32_t first = at_slot - core_.slots[at_slot].retained_offset;
  const bytes size{core_.slots.bytes_of(core_.slots.handle(number).slots)};
  WEIR_TRY(vmm::unmap(bound, core_.slots.address_of(first), size));
  core_.slots.drop_retained(first);
  return {};
}

result<void> arena_mover::map_handles(const room_plan& room, const context_scope& bound) {
  for (std::size_t i = 0; i < room.fillings.size(); ++i) {
    const gap_filling& each = room.fillings[i];
    if (each.returns) continue;
    const std::uint64_t address = core_.slots.address_of(each.slot);
    const bytes size{core_.slots.bytes_of(each.slots)};
    auto done = vmm::map(bound, address, core_.slots.handle(each.from).memory);
    if (done) {
      done = vmm::set_access(bound, address, size, core_.shared.rights);
      if (!done) undo_mapping(each, bound);
    }
    if (done) continue;
    while (i-- > 0) undo_mapping(room.fillings[i], bound);
    return done;
  }
  return {};
}

void arena_mover::undo_creation(gap_filling& undone, const context_scope& bound) noexcept {
  if (!undone.fresh || undone.from == 0) return;
  detail::report_failure(vmm::release_surely(bound, core_.slots.handle(undone.from).memory));
  core_.slots.discard(std::exchange(undone.from, 0));
}

void arena_mover::undo_mapping(const gap_filling& undone, const context_scope& bound) noexcept {
  if (undone.returns) return;
  if (vmm::unmap(bound, core_.slots.address_of(undone.slot),
                 bytes{core_.slots.bytes_of(undone.slots)}))
    return;
  block_off(undone.slot, undone.slot + undone.slots);
}

// --- Holes and addresses that are blocked
// ---------------------------------------------------------

/// Something is mapped in these slots, of a hole or beyond the arena's end, that could not be taken
/// away: no plan may count on them. carry_out() has prepared the records.
void arena_mover::block_off(std::uint64_t low, std::uint64_t high) noexcept {
  if (high > core_.slots.count()) core_.append_hole(high);
  block_index at = core_.runs.over(core_.slots.address_of(low));
  if (core_.runs[at].address < core_.slots.address_of(low))
    at = core_.runs.split(at, core_.slots.address_of(low));
  if (core_.runs[at].end() > core_.slots.address_of(high))
    core_.runs.split(at, core_.slots.address_of(high));
  core_.runs.block_off(at);
}

void arena_mover::unblock(const context_scope& bound) noexcept {
  for (block_index at = core_.runs.first(); core_.runs.stuck() != 0 && at != no_block;
       at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    if (there.is() != block_kind::stuck) continue;
    if (vmm::unmap(bound, there.address, bytes{there.size()})) core_.runs.unblock(at);
  }
}

}}}  // namespace weir::v0::placement

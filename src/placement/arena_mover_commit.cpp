// SPDX-License-Identifier: Apache-2.0
// Entering a plan that the driver has carried out into the arena's metadata.
#include <algorithm>
#include <vector>

#include "placement/arena_mover.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Four phases: addresses at the end get runs, places change hands, the slots learn their handles,
/// and the window becomes the block that was asked for.
block_index arena_mover::commit(room_plan& room, const request& wanted) noexcept {
  find_relocations(room, wanted);
  const block_index first_fresh = append_fresh(room.relocations);
  const block_index first = room.window.first != no_block ? room.window.first : first_fresh;
  const block_index taken = apply_changes(room, first);
  update_slots(room.relocations);
  return hand_out_window(taken, wanted);
}

/// When the old place of every filling was last used, and when its new place is ready.
void arena_mover::find_relocations(room_plan& room, const request& wanted) const noexcept {
  const stamp now = core_.shared.order.now(wanted.stream);
  for (const gap_filling& each : room.fillings) {
    relocation entered{.with = &each};
    if (!each.fresh) {
      entered.from_slot = core_.slots.handle(each.from).slot;
      const std::uint64_t end = core_.slots.address_of(entered.from_slot + each.slots);
      for (block_index at = each.source; at != no_block && core_.runs[at].address < end;
           at = core_.runs[at].after) {
        const block& run = core_.runs[at];
        if (run.end() <= core_.slots.address_of(entered.from_slot) || run.stream == no_stream)
          continue;
        entered.ready = now;
        if (run.stream != wanted.stream) {
          entered.used = now;
        } else if (entered.used.stream == no_stream || is_after(run.in.freed, entered.used.epoch)) {
          entered.used = core_.runs.stamp_of(run);
        }
      }
    }
    room.relocations.push_back(entered);
  }
}

/// New addresses at the end: one run for all that are ready at the same time. The first of them.
block_index arena_mover::append_fresh(const std::vector<relocation>& relocations) noexcept {
  block_index first = no_block;
  block_index fresh = no_block;
  for (const relocation& each : relocations) {
    if (each.with->hole != no_block) continue;
    if (core_.slots.count() < each.with->slot + each.with->slots)
      core_.slots.resize(each.with->slot + each.with->slots);
    const auto units = static_cast<std::uint32_t>(core_.slots.bytes_of(each.with->slots) / unit);
    if (fresh != no_block && core_.runs.stamp_of(core_.runs[fresh]) == each.ready &&
        can_join(core_.runs[fresh].units, units)) {
      core_.shared.blocks[fresh].units += units;
      continue;
    }
    if (fresh != no_block) core_.runs.add_run(fresh);
    fresh = core_.shared.blocks.make();
    block& run = core_.shared.blocks[fresh];
    run.address = core_.slots.address_of(each.with->slot);
    run.units = units;
    run.become(block_kind::run);
    run.stream = each.ready.stream;
    run.in.freed = each.ready.epoch;
    core_.runs.link_after(core_.runs.last(), fresh);
    if (first == no_block) first = fresh;
  }
  if (fresh != no_block) core_.runs.add_run(fresh);
  return first;
}

/// Every place that changes hands, and the window cut out between them. From high addresses to low,
/// because cutting leaves the records of lower addresses as they are: the plan's hints stay good.
block_index arena_mover::apply_changes(room_plan& room, block_index first) noexcept {
  std::vector<place_change>& changes = room.changes;
  for (const relocation& each : room.relocations) {
    if (each.with->hole != no_block)
      changes.push_back({core_.slots.address_of(each.with->slot), &each, false});
    if (!each.with->fresh) changes.push_back({core_.slots.address_of(each.from_slot), &each, true});
  }
  std::sort(changes.begin(), changes.end(),
            [](const place_change& a, const place_change& b) { return a.address > b.address; });
  const auto apply = [&](const place_change& each) {
    const gap_filling& with = *each.of->with;
    if (each.leaves) {
      core_.leave_hole(with.from, with.source, each.of->used);
    } else {
      core_.fill_hole(with, each.of->ready);
    }
  };
  // A window may begin inside a slot that is filled for it.
  const std::uint64_t floor = core_.slots.address_of(core_.slots.slot_of(room.window.start));
  std::size_t at = 0;
  for (; at < changes.size() && changes[at].address >= floor; ++at) apply(changes[at]);
  const block_index taken = core_.runs.cut(first, room.window.start, room.window.end);
  for (; at < changes.size(); ++at) apply(changes[at]);
  return taken;
}

/// Handles are where they were mapped to; counted and emitted.
void arena_mover::update_slots(const std::vector<relocation>& relocations) noexcept {
  for (const relocation& each : relocations) {
    const gap_filling& with = *each.with;
    core_.slots.enter(with.from, with.slot, with.returns);
    if (with.fresh) {
      host_.count_created(core_.slots.bytes_of(with.slots));
      ++core_.shared.handles_created;
    } else {
      ++(with.returns ? core_.shared.handles_returned : core_.shared.handles_moved);
      if (!with.returns) host_.moved(with.slots);
    }
    core_.shared.emit({.kind = with.fresh ? memory_event_kind::reserve : memory_event_kind::move,
                       .pool = core_.pool,
                       .address = core_.slots.address_of(with.slot),
                       .other_address = with.fresh ? 0 : core_.slots.address_of(each.from_slot),
                       .size = core_.slots.bytes_of(with.slots)});
  }
}

/// The window is the user's; what is left beside it joins its neighbours.
block_index arena_mover::hand_out_window(block_index taken, const request& wanted) noexcept {
  host_.hand_out(taken, wanted);
  for (const block_index beside : {core_.runs[taken].after, core_.runs[taken].before})
    if (beside != no_block && core_.runs[beside].is() == block_kind::run)
      core_.runs.merge_same_owner(beside);
  return taken;
}

}}}  // namespace weir::v0::placement

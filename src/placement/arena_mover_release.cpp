// SPDX-License-Identifier: Apache-2.0
// Giving handles back, and access to what is mapped.
#include <algorithm>
#include <utility>

#include "device/surely.hpp"
#include "placement/arena_mover.hpp"

namespace weir { inline namespace v0 { namespace placement {

result<std::uint64_t> arena_mover::release(std::uint64_t most, const context_scope& bound) {
  std::uint64_t released = 0;
  // From the end, so that the arena gets shorter.
  for (block_index at = core_.runs.last(); at != no_block && released < most;) {
    const block_index before = core_.runs[at].before;
    const block& run = core_.runs[at];
    if (run.is() == block_kind::run && run.stream == no_stream) {
      const std::uint64_t low = core_.slots.slot_behind(run.address);
      std::uint64_t high = core_.slots.slot_of(run.end());
      while (low < high && released < most) {
        const handle_number number = core_.slots[high - 1].current;
        const handle_record there = core_.slots.handle(number);
        if (there.slot + there.slots == high && there.slot >= low) {
          WEIR_TRY_VALUE(went, release_handle(number, at, bound));
          if (went) released += core_.slots.bytes_of(there.slots);
        }
        high = there.slot;
      }
    }
    at = before;
  }
  core_.drop_trailing_holes();
  return released;
}

/// Gives a wholly free handle back, with the mappings it left behind. False: one of those may still
/// be in use.
result<bool> arena_mover::release_handle(handle_number number, block_index run,
                                         const context_scope& bound) {
  const handle_record going = core_.slots.handle(number);
  if (!core_.shared.blocks.prepare(2)) return errc::no_host_memory;
  if (going.retained != 0) {
    std::vector<std::uint32_t> left_behind;
    for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
      const block& hole = core_.runs[at];
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
  // While it is mapped anywhere its memory does not go.
  if (core_.shared.outside != nullptr) WEIR_TRY(core_.shared.outside->unmap(going.memory, bound));
  const std::uint64_t start = core_.slots.address_of(going.slot);
  const bytes size{core_.slots.bytes_of(going.slots)};
  const auto tell = [&](memory_event_kind kind) {
    core_.shared.emit({.kind = kind, .pool = core_.pool, .address = start, .size = size.count()});
  };
  // Before it goes: who registered the memory elsewhere must deregister it while it is there.
  tell(memory_event_kind::release);
  if (auto unmapped = vmm::unmap(bound, start, size); !unmapped) {
    tell(memory_event_kind::reserve);
    return std::move(unmapped).error();
  }
  core_.drop_handle(number, run);
  host_.count_released(size.count());
  ++core_.shared.handles_released;
  WEIR_TRY(vmm::release_surely(bound, going.memory));
  return true;
}

result<void> arena_mover::grant(const vmm::access& peer, const context_scope& bound) {
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
                             bytes{core_.slots.bytes_of(mapped.slots)}, {&peer, 1}));
  }
  return {};
}

result<void> arena_mover::give_back_all(const context_scope& bound) {
  result<void> first_failure;
  const auto note = [&](result<void> done) {
    if (!done && first_failure) first_failure = std::move(done);
  };
  core_.slots.each_retained([&](std::uint64_t at, handle_number number) {
    const bytes size{core_.slots.bytes_of(core_.slots.handle(number).slots)};
    note(vmm::unmap(bound, core_.slots.address_of(at), size));
  });
  for (handle_number number = 1; number < core_.slots.handle_count(); ++number) {
    const handle_record& each = core_.slots.handle(number);
    if (each.slots == 0) continue;
    if (each.memory.handle != 0)
      core_.shared.emit({.kind = memory_event_kind::release,
                         .pool = core_.pool,
                         .address = core_.slots.address_of(each.slot),
                         .size = core_.slots.bytes_of(each.slots)});
    if (!each.away)
      note(vmm::unmap(bound, core_.slots.address_of(each.slot),
                      bytes{core_.slots.bytes_of(each.slots)}));
    if (each.memory.handle != 0) note(vmm::release_surely(bound, each.memory));
  }
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    if (there.is() == block_kind::stuck)
      note(vmm::unmap(bound, there.address, bytes{there.size()}));
  }
  return first_failure;
}

}}}  // namespace weir::v0::placement

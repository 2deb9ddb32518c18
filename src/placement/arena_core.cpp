// SPDX-License-Identifier: Apache-2.0
// Changes of an arena's records that concern its blocks and its slots at once.
#include "placement/arena_core.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace placement {

void arena_core::append_hole(std::uint64_t high) noexcept {
  const std::uint64_t most_slots = unit_count::most * unit / slots.slot_size();
  while (slots.count() < high) {
    const std::uint64_t end = std::min<std::uint64_t>(high, slots.count() + most_slots);
    const block_index beyond = shared.blocks.make();
    block& hole = shared.blocks[beyond];
    hole.address = slots.end_address();
    hole.units = static_cast<std::uint32_t>((slots.address_of(end) - hole.address) / unit);
    hole.stream = no_stream;
    hole.become(block_kind::hole);
    slots.resize(end);
    runs.link_after(runs.last(), beyond);
    runs.note_hole(beyond);
  }
}

void arena_core::drop_trailing_holes() noexcept {
  while (runs.last() != no_block && runs.fillable(shared.blocks[runs.last()])) {
    const block& hole = runs[runs.last()];
    const std::uint64_t low = slots.slot_of(hole.address);
    for (std::uint64_t i = low; i < slots.count(); ++i)
      if (slots[i].retained != 0) return;
    runs.drop_last_hole();
    slots.resize(low);
  }
}

void arena_core::leave_hole(handle_number number, block_index hint, stamp used) noexcept {
  const handle_record& moved = slots.handle(number);
  const std::uint64_t start = slots.address_of(moved.slot);
  const block_index hole = runs.cut(hint, start, start + slots.bytes_of(moved.slots));
  block& left = shared.blocks[hole];
  left.become(block_kind::hole);
  left.stream = used.stream;
  left.in = {};
  runs.note_hole(hole);
  left.in.freed = used.epoch;
  slots.leave(number);
}

void arena_core::fill_hole(const gap_filling& with, stamp ready) noexcept {
  const std::uint64_t start = slots.address_of(with.slot);
  const std::uint64_t end = start + slots.bytes_of(with.slots);
  block_index at = with.hole;
  while (runs[at].end() <= start) at = runs[at].after;
  if (runs[at].address < start) at = runs.split(at, start);
  if (runs[at].end() > end) runs.split(at, end);
  runs.forget_hole(at);
  block& run = shared.blocks[at];
  run.become(block_kind::run);
  run.stream = ready.stream;
  run.in = {};
  run.in.freed = ready.epoch;
  runs.add_run(at);
}

void arena_core::drop_handle(handle_number number, block_index run) noexcept {
  leave_hole(number, run, {});
  slots.erase(number);
}

}}}  // namespace weir::v0::placement

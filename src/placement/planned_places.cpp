// SPDX-License-Identifier: Apache-2.0
// Each request goes to the place that the plan of its round has for it.
#include "placement/planned_places.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace placement {

std::uint64_t planned_places::draw_plan(const arena_figures& figures) {
  const std::uint64_t slot = slots_.slot_size();
  const std::uint64_t reserved_slots = figures.reserved / slot;
  if (rounds_.has_failed(reserved_slots)) rounds_.drop_plan();
  if (rounds_.has_plan() || !rounds_.is_worth_a_plan(reserved_slots)) return 0;
  const auto [height, live] = rounds_.plan();
  const std::uint64_t slots = (height + slot - 1) / slot;
  const std::uint64_t half = slots_.base() + (slots_.limit() - slots_.base()) / 2;
  if (slots_.end_address() + slots * slot > half) return 0;
  if (slots * slot + figures.handed_out - live > figures.reserved) return 0;
  return slots;
}

void planned_places::lay_out(std::uint64_t low, const arena_figures& figures) noexcept {
  rounds_.lay_out(low);
  reserved_when_planned_ = figures.reserved;
}

bool planned_places::is_outgrown(const request& wanted,
                                 const arena_figures& figures) const noexcept {
  return rounds_.has_plan() && figures.reserved + wanted.units * unit >
                                   reserved_when_planned_ + reserved_when_planned_ / 64;
}

room_window planned_places::window_for(const request& wanted) const noexcept {
  if (!rounds_.has_plan()) return {};
  return window_at(rounds_.place_of(wanted.units, wanted.stream), wanted);
}

room_window planned_places::window_at(std::uint64_t place, const request& wanted) const noexcept {
  room_window room{.start = place, .end = place + wanted.units * unit};
  if (room.start == rounds::nowhere || room.end > slots_.end_address()) return room;
  if (room.start % (wanted.alignment * unit) != 0) return room;
  room.first = runs_.of(no_stream).over(room.start);
  if (room.first == no_block && wanted.stream < runs_.owners())
    room.first = runs_.of(wanted.stream).over(room.start);
  if (room.first == no_block) room.first = runs_.over(room.start);
  for (block_index at = room.first; at != no_block; at = runs_[at].after) {
    const block& there = runs_[at];
    if (there.address >= room.end) break;
    if (runs_.fillable(there)) {
      room.gap_slots += slots_.slot_behind(std::min(room.end, there.end())) -
                        slots_.slot_of(std::max(room.start, there.address));
    } else if (!runs_.usable(there, wanted.stream, reach::usable)) {
      return room;
    }
  }
  room.exists = true;
  return room;
}

free_place planned_places::fit(const request& wanted) {
  if (!rounds_.has_plan()) return otherwise_.fit(wanted);
  const std::uint64_t place = rounds_.place_of(wanted.units, wanted.stream);
  if (place == rounds::nowhere) return otherwise_.fit(wanted);
  const room_window room = window_at(place, wanted);
  if (!room.exists) {
    missed(wanted);
    return otherwise_.fit(wanted);
  }
  if (room.gap_slots != 0) return {};
  return {.first = room.first, .start = room.start, .over_runs = true};
}

}}}  // namespace weir::v0::placement

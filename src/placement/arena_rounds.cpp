// What an arena does differently where requests repeat: each gets the place that their plan has for
// it, and once all of them were there nothing has to move any more.
#include <algorithm>
#include <new>
#include <vector>

#include "placement/arena.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// The plan's blocks get addresses of their own, to which memory moves as they come. Half of all
/// addresses are left for what nobody planned; and a plan that would take new memory is none.
void arena::plan_round() {
  const std::uint64_t reserved_slots = reserved_ / slots_.slot_size();
  if (rounds_.has_failed(reserved_slots)) rounds_.drop_plan();
  if (rounds_.has_plan() || !rounds_.is_worth_a_plan(reserved_slots)) return;
  try {
    const auto [height, live] = rounds_.plan();
    const std::uint64_t slots = (height + slots_.slot_size() - 1) / slots_.slot_size();
    const std::uint64_t low = slots_.end_address();
    if (slots == 0 ||
        low + slots * slots_.slot_size() > slots_.base() + (slots_.limit() - slots_.base()) / 2)
      return;
    if (slots * slots_.slot_size() + handed_out_ - live > reserved_) return;
    if (!shared_.blocks.prepare(1)) return;
    slots_.prepare_slots(slots);
    append_hole(slots_.count() + slots);
    rounds_.lay_out(low);
    reserved_when_planned_ = reserved_;
  } catch (const std::bad_alloc&) {
    // Without a plan memory moves as before.
  }
}

/// The place, if there is nothing but memory that the stream may use and holes that can be filled.
room_window arena::planned_window(std::uint64_t place, const request& wanted) const noexcept {
  room_window room{.start = place, .end = place + wanted.units * unit};
  if (room.start == rounds::nowhere || room.end > slots_.end_address()) return room;
  if (room.start % (wanted.alignment * unit) != 0) return room;
  room.first = runs_.of(no_stream).over(room.start);
  if (room.first == no_block && wanted.stream < runs_.owners())
    room.first = runs_.of(wanted.stream).over(room.start);
  if (room.first == no_block) room.first = block_over(room.start);
  for (block_index at = room.first; at != no_block; at = shared_.blocks[at].after) {
    const block& there = shared_.blocks[at];
    if (there.address >= room.end) break;
    if (runs_.fillable(there)) {
      room.gap_slots += slots_.slot_of(std::min(room.end, there.end()) + slots_.slot_size() - 1) -
                        slots_.slot_of(std::max(room.start, there.address));
    } else if (!runs_.usable(there, wanted.stream, reach::usable)) {
      return room;
    }
  }
  room.exists = true;
  return room;
}

/// Where the planned place has to be mapped first there is no fit: make_planned_room() is to come.
block_index arena::fit_as_planned(const request& wanted) {
  const std::uint64_t place = rounds_.place_of(wanted.units, wanted.stream);
  if (place == rounds::nowhere) return fit_anywhere(wanted);
  const room_window room = planned_window(place, wanted);
  if (!room.exists) {
    rounds_.miss_place(wanted.units, wanted.stream);
    return fit_anywhere(wanted);
  }
  if (room.gap_slots != 0 || !shared_.blocks.prepare(2)) return no_block;
  return hand_out(runs_.cut(room.first, room.start, room.end), wanted);
}

/// A plan is there to save time: where the arena grows by a sixty-fourth under it, it is a bad one.
bool arena::outgrows_plan(const request& wanted) const noexcept {
  return rounds_.has_plan() &&
         reserved_ + wanted.units * unit > reserved_when_planned_ + reserved_when_planned_ / 64;
}

std::vector<run_stretch> arena::usable_stretches(const request& wanted) const {
  std::vector<run_stretch> stretches;
  for (block_index at = runs_.first(); at != no_block; at = shared_.blocks[at].after)
    if (runs_.usable(shared_.blocks[at], wanted.stream, reach::usable)) add_to(stretches, at);
  return stretches;
}

/// Moves free memory to the planned place, where fit() left the request alone for it; if that
/// cannot be, room anywhere. no_block: there is none without more.
result<block_index> arena::make_planned_room(const request& wanted, const context_scope& bound) {
  if (!rounds_.has_plan()) return no_block;
  const room_window room = planned_window(rounds_.place_of(wanted.units, wanted.stream), wanted);
  if (!room.exists) return no_block;
  room_plan plan = fill(room, usable_stretches(wanted), wanted, fill_with::free_handles);
  if (plan.complete) {
    auto made = carry_out(plan, wanted, bound);
    if (made ? *made != no_block : made.code() != errc::out_of_memory) return made;
  }
  rounds_.miss_place(wanted.units, wanted.stream);
  return fit_anywhere(wanted);
}

}}}  // namespace weir::v0::placement

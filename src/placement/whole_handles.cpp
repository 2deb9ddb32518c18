// SPDX-License-Identifier: Apache-2.0
// Handles that are free as a whole, and plans for new ones.
#include "placement/whole_handles.hpp"

#include <limits>

namespace weir { inline namespace v0 { namespace placement {

handle_place whole_handles::find(const request& wanted, reach whose) const noexcept {
  if (whose == reach::usable) {
    free_place exact = find_among(wanted.stream, wanted, false);
    if (exact.first == no_block) exact = find_among(no_stream, wanted, false);
    return exact.first != no_block ? handle_place{exact, wanted.units} : find_part(wanted);
  }
  for (stream_slot other = 1; other < core_.runs.owners(); ++other) {
    if (other == wanted.stream) continue;
    const free_place lent = find_among(other, wanted, true);
    if (lent.first != no_block) return {lent, wanted.units};
  }
  return {};
}

/// Calls `see(slot, handle)` with every handle that lies in the run as a whole, until it answers
/// that it has seen enough.
template <class Function>
void whole_handles::each_handle(block_index run, Function see) const noexcept {
  const block& in = core_.runs[run];
  const std::uint64_t end = core_.slots.slot_of(in.end());
  for (std::uint64_t at = core_.slots.slot_behind(in.address); at < end;) {
    const handle_record& there = core_.slots.handle_at(at);
    const std::uint64_t behind = std::uint64_t{there.slot} + there.slots;
    if (there.slot == at && behind <= end && see(at, there)) return;
    at = behind;
  }
}

/// The largest of smaller handles that make up the request together.
handle_place whole_handles::find_part(const request& wanted) const noexcept {
  handle_place largest;
  std::uint64_t total = 0;
  const std::uint64_t slot_units = core_.slots.slot_size() / unit;
  const auto count_in = [&](block_index run) {
    each_handle(run, [&](std::uint64_t at, const handle_record& there) {
      const std::uint64_t units = there.slots * slot_units;
      if (units >= wanted.units) return false;
      total += units;
      if (units > largest.units)
        largest = {{.first = run, .start = core_.slots.address_of(at)}, units};
      return false;
    });
    return false;
  };
  for (const stream_slot owner : {wanted.stream, no_stream})
    if (owner < core_.runs.owners())
      core_.runs.of(owner).see_shortest(slot_units, std::numeric_limits<std::size_t>::max(),
                                        count_in);
  return total >= wanted.units ? largest : handle_place{};
}

free_place whole_handles::find_among(stream_slot owner, const request& wanted,
                                     bool behind_wait) const noexcept {
  free_place found;
  if (owner >= core_.runs.owners()) return found;
  core_.runs.of(owner).see_shortest(
      wanted.units, std::numeric_limits<std::size_t>::max(), [&](block_index run) {
        const reach whose = behind_wait ? reach::behind_wait : reach::usable;
        if (core_.runs.usable(core_.runs[run], wanted.stream, whose)) found = find_in(run, wanted);
        return found.first != no_block;
      });
  return found;
}

free_place whole_handles::find_in(block_index run, const request& wanted) const noexcept {
  free_place found;
  each_handle(run, [&](std::uint64_t at, const handle_record& there) {
    if (there.slots != slots_of(wanted)) return false;
    found = {.first = run, .start = core_.slots.address_of(at)};
    return true;
  });
  return found;
}

free_place whole_handles::find_at(std::uint64_t address, const request& wanted) const noexcept {
  if (address < core_.slots.base() || address >= core_.slots.end_address()) return {};
  const std::uint64_t at = core_.slots.slot_of(address);
  const handle_record& there = core_.slots.handle_at(at);
  if (core_.slots[at].current == 0 || there.slot != at || there.slots != slots_of(wanted))
    return {};
  block_index run = core_.runs.of(no_stream).over(address);
  if (run == no_block && wanted.stream < core_.runs.owners())
    run = core_.runs.of(wanted.stream).over(address);
  if (run == no_block) return {};
  const block& in = core_.runs[run];
  if (in.address > address || in.end() < address + wanted.units * unit) return {};
  return {.first = run, .start = address};
}

block_index whole_handles::hole_for(const request& wanted) const noexcept {
  for (block_index at = core_.runs.any_hole(); at != no_block; at = core_.runs[at].in.newer)
    if (core_.runs[at].units >= wanted.units && core_.runs.fillable(core_.runs[at])) return at;
  return no_block;
}

room_plan whole_handles::plan_new(const request& wanted) const {
  const block_index hole = hole_for(wanted);
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t start =
      hole != no_block ? core_.runs[hole].address : core_.slots.end_address();
  room_plan plan;
  if (start + size > core_.slots.limit()) return plan;
  plan.new_slots = slots_of(wanted);
  plan.window = {.start = start,
                 .end = start + size,
                 .gap_slots = plan.new_slots,
                 .first = hole,
                 .exists = true};
  plan.fillings.push_back({.slot = static_cast<std::uint32_t>(core_.slots.slot_of(start)),
                           .slots = static_cast<std::uint32_t>(plan.new_slots),
                           .hole = hole});
  plan.complete = true;
  return plan;
}

}}}  // namespace weir::v0::placement

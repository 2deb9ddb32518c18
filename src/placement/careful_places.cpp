// SPDX-License-Identifier: Apache-2.0
// Small blocks beside small ones, large ones in slots of their own.
#include "placement/careful_places.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Blocks up to this size lie together.
constexpr std::uint64_t small_up_to = std::uint64_t{1} << 20;
/// How many runs of an owner are weighed for one request.
constexpr std::size_t most_weighed = 256;
/// A request of this size gets its large handles however little memory is left.
constexpr std::uint64_t careless_from = std::uint64_t{256} << 20;

}  // namespace

bool careful_places::is_small(std::uint64_t units) noexcept { return units * unit <= small_up_to; }

free_place careful_places::fit(const request& wanted) {
  return applies() ? careful_fit(wanted) : otherwise_.fit(wanted);
}

window_limits careful_places::limits_in(block_index index, const request& wanted) const noexcept {
  return applies() ? careful_limits(index, wanted) : otherwise_.limits_in(index, wanted);
}

growth_limits careful_places::growth_for(const request& wanted) const noexcept {
  if (!applies()) return otherwise_.growth_for(wanted);
  return {.one_slot_handles = wanted.units * unit < careless_from, .exact = true};
}

/// Whether a block covers slots but for an eighth of one.
bool careful_places::fills_slots(std::uint64_t units) const noexcept {
  const std::uint64_t slot = slots_.slot_size();
  const std::uint64_t size = units * unit;
  const std::uint64_t rest = (slot - size % slot) % slot;
  return size >= slot && rest <= slot / 8;
}

/// Whether a block of the request's size should not share a slot with this neighbour.
bool careful_places::keeps_apart(block_index neighbour, const request& wanted) const noexcept {
  if (neighbour == no_block || wanted.care == care::may_mix) return false;
  const block& there = runs_[neighbour];
  const bool free = there.is() == block_kind::run || there.is() == block_kind::hole;
  return !free && is_small(there.units) != is_small(wanted.units);
}

window_limits careful_places::careful_limits(block_index index,
                                             const request& wanted) const noexcept {
  const block& run = runs_[index];
  const std::uint64_t slot = slots_.slot_size();
  const bool whole = keeps_apart(run.before, wanted) ||
                     (fills_slots(wanted.units) && wanted.care != care::may_mix);
  const std::uint64_t step =
      whole ? std::max(wanted.alignment * unit, slot) : wanted.alignment * unit;
  return {.start = (run.address + step - 1) / step * step,
          .end = keeps_apart(run.after, wanted) ? run.end() / slot * slot : run.end(),
          .ends_with_it = run.end() % slot == 0};
}

/// How many bytes of wholly free handles a block at [start, end) of the run would pin.
std::uint64_t careful_places::pinned_by(const block& run, std::uint64_t start,
                                        std::uint64_t end) const noexcept {
  std::uint64_t pinned = 0;
  for (std::uint64_t at = slots_.slot_of(start); at <= slots_.slot_of(end - 1);) {
    const handle_record& under = slots_.handle_at(at);
    const std::uint64_t low = slots_.address_of(under.slot);
    const std::uint64_t high = slots_.address_of(under.slot + under.slots);
    if (low >= run.address && high <= run.end()) pinned += high - low;
    at = under.slot + under.slots;
  }
  return pinned;
}

/// Among the lowest runs the one, and that end of it, where the block pins the least; then the
/// shortest. A small block that would pin a free handle gets nothing unless the request says that
/// it may: what caches hold may make better room.
free_place careful_places::careful_fit(const request& wanted) const {
  struct candidate {
    free_place place;
    std::uint64_t pinned = 0;
    std::uint64_t room = 0;
  } best;
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t step = wanted.alignment * unit;
  const bool small = is_small(wanted.units);
  const auto consider = [&](block_index index) {
    constexpr bool enough = false;
    const block& run = runs_[index];
    const window_limits limits = careful_limits(index, wanted);
    if (limits.end < limits.start + size) return enough;
    const auto weigh = [&](std::uint64_t start) {
      const candidate there{.place = {.first = index, .start = start},
                            .pinned = small ? pinned_by(run, start, start + size) : 0,
                            .room = limits.end - limits.start};
      const auto score = [](const candidate& at) { return std::pair{at.pinned, at.room}; };
      if (best.place.first == no_block || score(there) < score(best)) best = there;
    };
    weigh(limits.start);
    if (small) weigh((limits.end - size) / step * step);
    return enough;
  };
  if (runs_.owners() > wanted.stream && wanted.stream != no_stream)
    runs_.of(wanted.stream).see_lowest(wanted.units, most_weighed, consider);
  runs_.of(no_stream).see_lowest(wanted.units, most_weighed, consider);
  if (best.pinned != 0 && wanted.care == care::full) return {};
  return best.place;
}

}}}  // namespace weir::v0::placement

// What an arena does differently where memory is short.
//
// A live block cannot be moved, so it pins the slots that it lies in. Where memory is short small
// blocks lie in slots with other small ones, and large blocks in slots of their own: when the large
// ones go their slots are free as a whole. Where that leaves no room, sizes mix as ever.
#include <algorithm>
#include <utility>

#include "placement/arena.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Blocks up to this size lie together.
constexpr std::uint64_t small_up_to = std::uint64_t{1} << 20;
/// How many runs of an owner are weighed for one request.
constexpr std::size_t most_weighed = 256;

}  // namespace

bool arena::is_small(std::uint64_t units) const noexcept { return units * unit <= small_up_to; }

/// Whether a block covers slots but for an eighth of one.
bool arena::fills_slots(std::uint64_t units) const noexcept {
  const std::uint64_t size = units * unit;
  const std::uint64_t rest = (slots_.slot_size() - size % slots_.slot_size()) % slots_.slot_size();
  return size >= slots_.slot_size() && rest <= slots_.slot_size() / 8;
}

/// Whether a block of the request's size should not share a slot with this neighbour.
bool arena::keeps_apart(block_index neighbour, const request& wanted) const noexcept {
  if (neighbour == no_block || mixes_) return false;
  const block& there = shared_.blocks[neighbour];
  const bool free = there.is() == block_kind::run || there.is() == block_kind::hole;
  return !free && is_small(there.units) != is_small(wanted.units);
}

/// The first address of a run that the request should be given.
std::uint64_t arena::careful_start(block_index index, const request& wanted) const noexcept {
  const block& run = shared_.blocks[index];
  const bool whole = keeps_apart(run.before, wanted) || (fills_slots(wanted.units) && !mixes_);
  const std::uint64_t step =
      whole ? std::max(wanted.alignment * unit, slots_.slot_size()) : wanted.alignment * unit;
  return (run.address + step - 1) / step * step;
}

/// Where that ends which the request should be given of a run.
std::uint64_t arena::careful_end(block_index index, const request& wanted) const noexcept {
  const block& run = shared_.blocks[index];
  return keeps_apart(run.after, wanted) ? run.end() / slots_.slot_size() * slots_.slot_size()
                                        : run.end();
}

/// How many bytes of wholly free handles a block at [start, end) of the run would pin.
std::uint64_t arena::pinned_by(const block& run, std::uint64_t start,
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
block_index arena::fit_carefully(const request& wanted) {
  struct place {
    block_index run = no_block;
    std::uint64_t start = 0;
    std::uint64_t pinned = 0;
    std::uint64_t room = 0;
  } best;
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t step = wanted.alignment * unit;
  const bool small = is_small(wanted.units);
  const auto consider = [&](block_index index) {
    const block& run = shared_.blocks[index];
    const std::uint64_t low = careful_start(index, wanted);
    const std::uint64_t end = careful_end(index, wanted);
    if (end < low + size) return;
    const auto weigh = [&](std::uint64_t start) {
      const place there{index, start, small ? pinned_by(run, start, start + size) : 0, end - low};
      const auto score = [](const place& at) { return std::pair{at.pinned, at.room}; };
      if (best.run == no_block || score(there) < score(best)) best = there;
    };
    weigh(low);
    if (small) weigh((end - size) / step * step);
  };
  if (runs_.owners() > wanted.stream && wanted.stream != no_stream)
    runs_.of(wanted.stream).see_lowest(wanted.units, most_weighed, consider);
  runs_.of(no_stream).see_lowest(wanted.units, most_weighed, consider);
  if (best.run == no_block || (best.pinned != 0 && !wanted.may_pin)) return no_block;
  if (!shared_.blocks.prepare(3)) return no_block;
  const bool at_its_start = best.start == shared_.blocks[best.run].address;
  return carve(at_its_start ? best.run : runs_.split(best.run, best.start), wanted);
}

}}}  // namespace weir::v0::placement

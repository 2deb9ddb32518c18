// SPDX-License-Identifier: Apache-2.0
// A run that is hardly longer, else the lowest; of large ones the shortest. Where blocks pin least.
#include "placement/usual_places.hpp"

#include <algorithm>
#include <utility>

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// How many runs of an owner a tiny block looks at for one beside a small block.
constexpr std::size_t most_considered = 64;

}  // namespace

block_index usual_places::best_run(stream_slot owner, std::uint64_t units) const noexcept {
  fit_index& runs = runs_.of(owner);
  if (!is_small(units)) return runs.shortest(units);
  if (fits_closely(units))
    if (const block_index close = runs.close_fit(units); close != no_block) return close;
  return runs.lowest(units);
}

free_place usual_places::fit(const request& wanted) {
  runs_.prepare_owner(wanted.stream);
  if (weighs_ends(wanted)) return fit_pinning_few(wanted);
  const std::uint64_t needed = wanted.units_with_alignment();
  block_index match = fits_closely(needed) ? close_fit(wanted.stream, needed) : no_block;
  if (match == no_block) {
    match = fit_anywhere(wanted.stream, needed);
    if (match == no_block) return {};
    if (is_tiny(needed))
      if (const free_place beside = fit_beside_small(wanted); beside.first != no_block)
        return beside;
  }
  return {.first = match, .start = limits_in(match, wanted).start};
}

/// Of two runs the one at the lower address; each may be no_block.
block_index usual_places::lower_of(block_index one, block_index other) const noexcept {
  if (one == no_block || other == no_block) return one == no_block ? other : one;
  return runs_[other].address < runs_[one].address ? other : one;
}

/// A close fit of the stream or of everybody.
block_index usual_places::close_fit(stream_slot stream, std::uint64_t units) const noexcept {
  const fit_index::close_lengths close{units};
  return lower_of(runs_.of(stream).close_fit(close), runs_.of(no_stream).close_fit(close));
}

/// The lowest run of the stream or of everybody; for a large request the shortest.
block_index usual_places::fit_anywhere(stream_slot stream, std::uint64_t units) const noexcept {
  const fit_index& own = runs_.of(stream);
  const fit_index& other = runs_.of(no_stream);
  if (is_small(units)) return lower_of(own.lowest(units), other.lowest(units));
  const block_index one = own.shortest(units);
  const block_index two = other.shortest(units);
  if (one == no_block || two == no_block) return one == no_block ? two : one;
  return runs_[two].units < runs_[one].units ? two : one;
}

std::uint64_t usual_places::high_end(block_index index, const request& wanted) const noexcept {
  const std::uint64_t step = wanted.alignment * unit;  // a power of two
  return (runs_[index].end() - wanted.units * unit) & ~(step - 1);
}

bool usual_places::is_live(block_index index) const noexcept {
  if (index == no_block) return false;
  const block_kind kind = runs_[index].is();
  return kind != block_kind::run && kind != block_kind::hole;
}

// --- Tiny blocks ---------------------------------------------------------------------------------

/// Whether a small block lies beside that border of a run, in the slot that the border is in.
bool usual_places::is_pinned(block_index neighbour, std::uint64_t border) const noexcept {
  return slots_.address_of(slots_.slot_of(border)) != border && is_live(neighbour) &&
         is_small(runs_[neighbour].units);
}

/// The lowest run beside a small block, and that end of it.
free_place usual_places::fit_beside_small(const request& wanted) const {
  const std::uint64_t needed = wanted.units_with_alignment();
  free_place best;
  const auto consider = [&](block_index index) {
    const block& run = runs_[index];
    const bool below = is_pinned(run.before, run.address);
    if (!below && !is_pinned(run.after, run.end())) return false;
    if (best.first != no_block && runs_[best.first].address < run.address) return true;
    best = {.first = index,
            .start = below ? limits_in(index, wanted).start : high_end(index, wanted)};
    return true;
  };
  runs_.of(wanted.stream).see_lowest(needed, most_considered, consider);
  runs_.of(no_stream).see_lowest(needed, most_considered, consider);
  return best;
}

// --- Blocks of one to two slots ------------------------------------------------------------------

/// How many slots that are wholly in the run a block at [start, end) would pin.
std::uint64_t usual_places::slots_pinned(const block& run, std::uint64_t start,
                                         std::uint64_t end) const noexcept {
  const std::uint64_t low = std::max(slots_.slot_of(start), slots_.slot_behind(run.address));
  const std::uint64_t high = std::min(slots_.slot_behind(end), slots_.slot_of(run.end()));
  return high > low ? high - low : 0;
}

/// Of the shortest runs of the two owners the one, and that end of it, where the block pins the
/// fewest slots; then the shortest; then the low end.
free_place usual_places::fit_pinning_few(const request& wanted) const {
  const std::uint64_t size = wanted.units * unit;
  free_place best;
  std::uint64_t least = 0;
  const auto consider = [&](block_index index) {
    const block& run = runs_[index];
    // The neighbour is looked at only where it matters: reading it is most of the cost.
    const auto weigh = [&](std::uint64_t start, block_index beside) {
      const std::uint64_t pinned = slots_pinned(run, start, start + size);
      if (best.first != no_block &&
          std::pair{pinned, run.units} >= std::pair{least, runs_[best.first].units})
        return;
      if (beside != no_block && !(is_live(beside) && runs_[beside].units == wanted.units)) return;
      best = {.first = index, .start = start};
      least = pinned;
    };
    weigh(run.address, no_block);
    if (run.after != no_block) weigh(high_end(index, wanted), run.after);
    return least == 0 && run.units >= runs_[best.first].units;  // what follows is no better
  };
  runs_.of(wanted.stream).see_shortest(wanted.units, rules_.weighs_runs, consider);
  runs_.of(no_stream).see_shortest(wanted.units, rules_.weighs_runs, consider);
  return best;
}

window_limits usual_places::limits_in(block_index index, const request& wanted) const noexcept {
  const std::uint64_t step = wanted.alignment * unit;  // a power of two
  const block& run = runs_[index];
  return {.start = (run.address + step - 1) & ~(step - 1), .end = run.end()};
}

}}}  // namespace weir::v0::placement

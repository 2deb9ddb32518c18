// The lowest run, or the shortest.
#include "placement/usual_places.hpp"

namespace weir { inline namespace v0 { namespace placement {

block_index usual_places::best_run(stream_slot owner, std::uint64_t units) const noexcept {
  const fit_index& runs = runs_.of(owner);
  return goes_low(units) ? runs.lowest(units) : runs.shortest(units);
}

free_place usual_places::fit(const request& wanted) {
  const std::uint64_t needed = wanted.units_with_alignment();
  runs_.prepare_owner(wanted.stream);
  block_index match = best_run(wanted.stream, needed);
  if (const block_index other = best_run(no_stream, needed); other != no_block) {
    if (match == no_block || (goes_low(needed) ? runs_[other].address < runs_[match].address
                                               : runs_[other].units < runs_[match].units))
      match = other;
  }
  if (match == no_block) return {};
  return {.first = match, .start = limits_in(match, wanted).start};
}

window_limits usual_places::limits_in(block_index index, const request& wanted) const noexcept {
  const std::uint64_t step = wanted.alignment * unit;  // a power of two
  const block& run = runs_[index];
  return {.start = (run.address + step - 1) & ~(step - 1), .end = run.end()};
}

}}}  // namespace weir::v0::placement

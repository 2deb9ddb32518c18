// A run that is hardly longer, else the lowest; of large ones the shortest.
#include "placement/usual_places.hpp"

namespace weir { inline namespace v0 { namespace placement {

block_index usual_places::best_run(stream_slot owner, std::uint64_t units) const noexcept {
  fit_index& runs = runs_.of(owner);
  if (!is_small(units)) return runs.shortest(units);
  if (fits_closely(units))
    if (const block_index close = runs.close_fit(units); close != no_block) return close;
  return runs.lowest(units);
}

/// Whether a request of so many units goes to `one` rather than to `other`: each is the best run of
/// its owner.
bool usual_places::is_better(const block& one, const block& other,
                             std::uint64_t units) const noexcept {
  if (!is_small(units)) return one.units < other.units;
  const auto is_close = [&](const block& run) {
    return fits_closely(units) && run.units <= fit_index::longest_close(units);
  };
  if (is_close(one) != is_close(other)) return is_close(one);
  return one.address < other.address;
}

free_place usual_places::fit(const request& wanted) {
  const std::uint64_t needed = wanted.units_with_alignment();
  runs_.prepare_owner(wanted.stream);
  block_index match = best_run(wanted.stream, needed);
  if (const block_index other = best_run(no_stream, needed); other != no_block) {
    if (match == no_block || is_better(runs_[other], runs_[match], needed)) match = other;
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

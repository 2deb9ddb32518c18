// Where blocks go while there is plenty of memory: a close fit, the lowest run, or the shortest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "placement/arena_runs.hpp"
#include "placement/place_chooser.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Small requests go to a run that is at most an eighth longer (fit_index::close_fit()), or else to
/// the lowest run that is long enough; large ones go to the shortest. All of them are runs of the
/// request's stream and of everybody.
///
///   free runs, by address   | 96 KiB |   | 40 KiB |   | 33 KiB |   | 5 MiB |   | 3 MiB |
///   request for 32 KiB                                ^ hardly longer
///   request for 64 KiB      ^ none is: the lowest
///   request for 2 MiB                                                          ^ the shortest
///
/// Windows may begin and end anywhere, new memory comes in handles as large as the rules of growth
/// say, and free memory may be moved from everywhere.
///
/// fit() costs some tens of nanoseconds, whatever the number of runs. Owned by an arena, under the
/// heap's lock.
class usual_places final : public place_chooser {
 public:
  /// Requests of up to `lowest_up_to` bytes are small.
  usual_places(arena_runs& runs, std::uint64_t lowest_up_to, bool fits_closely) noexcept
      : runs_{runs}, lowest_up_to_{lowest_up_to}, fits_closely_{fits_closely} {}

  /// Whether a request of so many units is small.
  [[nodiscard]] bool is_small(std::uint64_t units) const noexcept {
    return units * std::uint64_t{unit} <= lowest_up_to_;
  }
  /// The run of an owner that a request of so many units goes to; no_block if none is long enough.
  [[nodiscard]] block_index best_run(stream_slot owner, std::uint64_t units) const noexcept;

  [[nodiscard]] free_place fit(const request& wanted) override;
  [[nodiscard]] window_limits limits_in(block_index index,
                                        const request& wanted) const noexcept override;
  [[nodiscard]] growth_limits growth_for(const request& /*wanted*/) const noexcept override {
    return {};
  }
  [[nodiscard]] bool keeps(std::uint64_t /*address*/) const noexcept override { return false; }

 private:
  [[nodiscard]] bool fits_closely(std::uint64_t units) const noexcept {
    return fits_closely_ &&
           units <= std::min<std::uint64_t>(lowest_up_to_ / unit, fit_index::large);
  }
  [[nodiscard]] bool is_better(const block& one, const block& other,
                               std::uint64_t units) const noexcept;

  arena_runs& runs_;
  std::uint64_t lowest_up_to_;
  bool fits_closely_;
};

}}}  // namespace weir::v0::placement

// Where blocks go while there is plenty of memory: the lowest run, or the shortest.
#pragma once

#include <cstdint>

#include "placement/arena_runs.hpp"
#include "placement/place_chooser.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Small requests go to the lowest run that is long enough, large ones to the shortest: of the runs
/// of their stream and of everybody's. Windows may begin and end anywhere, new memory comes in
/// handles as large as the rules of growth say, and free memory may be moved from everywhere.
///
/// fit() costs some tens of nanoseconds, whatever the number of runs. Owned by an arena, under the
/// heap's lock.
class usual_places final : public place_chooser {
 public:
  /// Requests of up to `lowest_up_to` bytes are small.
  usual_places(arena_runs& runs, std::uint64_t lowest_up_to) noexcept
      : runs_{runs}, lowest_up_to_{lowest_up_to} {}

  /// Whether a request of so many units goes to the lowest run.
  [[nodiscard]] bool goes_low(std::uint64_t units) const noexcept {
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
  arena_runs& runs_;
  std::uint64_t lowest_up_to_;
};

}}}  // namespace weir::v0::placement

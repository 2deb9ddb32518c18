// SPDX-License-Identifier: Apache-2.0
// Where blocks go while there is plenty of memory: a close fit, the lowest run, or the shortest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "placement/arena_runs.hpp"
#include "placement/arena_slots.hpp"
#include "placement/growth.hpp"
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
/// A live block pins the slots that it lies in: they cannot be moved. Where free memory may be
/// moved two kinds of blocks pin as few as they can.
///
///   slots     |   0   |   1   |   2   |   3   |   4   |   5   |   6   |   7   |
///   blocks    |large|run| large  |s|run|large|        run        |   3 MiB   |
///   64 KiB                          ^ beside s, which pins slot 2 already
///   3 MiB                                             ^----------^ pins slot 5; not 4 and 5
///
/// A tiny block that fits nowhere closely goes beside a small block, in the slot that the small one
/// pins, before it goes to the lowest run. A block of more than one slot, and two at most, goes to
/// the one of the shortest runs in which it pins the fewest slots that are wholly free; and there
/// to the low end, or beside a block of its own length to the high end, because blocks of one
/// length often go together.
///
/// Windows may begin and end anywhere, new memory comes in handles as large as the rules of growth
/// say, and free memory may be moved from everywhere.
///
/// fit() costs some tens of nanoseconds, whatever the number of runs; a tiny block that fits
/// nowhere closely looks at up to 64 runs of each of two owners. Owned by an arena, under the
/// heap's lock.
class usual_places final : public place_chooser {
 public:
  /// Requests of up to `lowest_up_to` bytes of the rules are small.
  usual_places(arena_runs& runs, const arena_slots& slots, const growth_rules& rules) noexcept
      : runs_{runs}, slots_{slots}, rules_{rules} {}

  /// Whether a request of so many units is small.
  [[nodiscard]] bool is_small(std::uint64_t units) const noexcept {
    return units * std::uint64_t{unit} <= rules_.lowest_up_to;
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
  static constexpr std::uint64_t tiny_up_to = std::uint64_t{64} << 10;

  [[nodiscard]] bool fits_closely(std::uint64_t units) const noexcept {
    return rules_.fits_closely &&
           units <= std::min<std::uint64_t>(rules_.lowest_up_to / unit, fit_index::large);
  }
  [[nodiscard]] bool is_tiny(std::uint64_t units) const noexcept {
    return rules_.fits_closely && units * std::uint64_t{unit} <= tiny_up_to;
  }
  /// Whether a request takes more than one slot and two at most: how many it pins depends much on
  /// where it lies.
  [[nodiscard]] bool weighs_ends(const request& wanted) const noexcept {
    const std::uint64_t size = wanted.units * std::uint64_t{unit};
    return rules_.weighs_runs != 0 && wanted.alignment == 1 && size > slots_.slot_size() &&
           size <= 2 * slots_.slot_size();
  }
  [[nodiscard]] block_index lower_of(block_index one, block_index other) const noexcept;
  [[nodiscard]] block_index close_fit(stream_slot stream, std::uint64_t units) const noexcept;
  [[nodiscard]] block_index fit_anywhere(stream_slot stream, std::uint64_t units) const noexcept;
  [[nodiscard]] bool is_live(block_index index) const noexcept;
  [[nodiscard]] bool is_pinned(block_index neighbour, std::uint64_t border) const noexcept;
  [[nodiscard]] free_place fit_beside_small(const request& wanted) const;
  [[nodiscard]] std::uint64_t slots_pinned(const block& run, std::uint64_t start,
                                           std::uint64_t end) const noexcept;
  [[nodiscard]] free_place fit_pinning_few(const request& wanted) const;
  /// Where a block lies against the end of the run.
  [[nodiscard]] std::uint64_t high_end(block_index index, const request& wanted) const noexcept;

  arena_runs& runs_;
  const arena_slots& slots_;
  const growth_rules& rules_;
};

}}}  // namespace weir::v0::placement

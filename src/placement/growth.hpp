// SPDX-License-Identifier: Apache-2.0
// How much new memory to take, in handles of what size, and when to take it rather than move some.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "weir/base/options.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// The rules by which an arena grows and moves. Sizes in bytes; docs/tuning.md tells what each
/// costs and gains, docs/decisions/0007 how they were found.
///
/// A handle costs the same to map whatever its size, and moves only when all of it is free. Large
/// blocks come and go whole, so large handles under them are cheap to move and seldom pinned;
/// blocks of a few megabytes leave gaps that only small handles can get out of. So the size of a
/// handle follows the square of the request it is made for.
struct growth_rules {
  /// Requests up to this size go to the lowest address, larger ones to the shortest run. Low, small
  /// blocks gather; anything larger would come to lie across the large handles there and pin them.
  std::uint64_t lowest_up_to = std::uint64_t{1} << 20;
  /// … unless a run is hardly longer than the request, up to 1 MiB: what would be left of a longer
  /// one is often too short for anything.
  bool fits_closely = true;
  /// A request of one to two slots goes to the one of so many short runs of an owner in which it
  /// pins the fewest slots; 0: to the shortest run.
  std::size_t weighs_runs = 16;
  /// A handle is about request² / this, …
  std::uint64_t handle_scale = std::uint64_t{256} << 20;
  /// … at most this, …
  std::uint64_t largest_handle = std::uint64_t{16} << 20;
  /// … and at most a share of all that is reserved or of the request: where little is held, one
  /// pinned handle must not weigh much. The shares are smaller where several streams have runs of
  /// their own, because more handles are pinned then.
  std::uint64_t reserved_share = 128;
  std::uint64_t request_share = 36;
  /// New memory at the arena's end comes in multiples of the largest power of two up to reserved /
  /// this; 0: of one handle.
  std::uint64_t unit_share = 256;
  /// Up to (1 + slack) times the most that was live, growing is preferred to moving …
  double slack = 0.01;
  /// … and up to (1 + headroom) times it where moving would take more handles than growing.
  double headroom = 0.04;
  bool moves = true;
  /// Where large requests repeat, and move much each time, their blocks get places that are planned
  /// (rounds.hpp). Not where handles are so large that they fit no single block's place.
  bool plans = true;
  /// What is free comes back with the rest when the memory is resumed.
  bool resumes_free = false;

  [[nodiscard]] static constexpr growth_rules of(placement_policy policy) noexcept {
    constexpr std::uint64_t mib = std::uint64_t{1} << 20;
    switch (policy) {
      case placement_policy::throughput:
        // With its large handles nothing was gained by weighing runs.
        return {.weighs_runs = 0,
                .handle_scale = 32 * mib,
                .largest_handle = 64 * mib,
                .reserved_share = 64,
                .request_share = 6,
                .unit_share = 64,
                .slack = 0.02,
                .headroom = 0.06,
                .plans = false};
      case placement_policy::compact:
        return {.weighs_runs = 1,
                .handle_scale = 1024 * mib,
                .largest_handle = 8 * mib,
                .reserved_share = 256,
                .unit_share = 0,
                .slack = 0.005,
                .headroom = 0.015};
      case placement_policy::never_move:
        // Nothing is pinned that never moves; more at low addresses leaves longer runs above.
        return {.lowest_up_to = 4 * mib,
                .fits_closely = false,
                .weighs_runs = 0,
                .handle_scale = 1 * mib,
                .largest_handle = 64 * mib,
                .reserved_share = 128,
                .request_share = 12,
                .unit_share = 64,
                .moves = false};
      case placement_policy::balanced:
      case placement_policy::classic:
      case placement_policy::classic_expandable:
        break;
    }
    return {};
  }

  /// The same for memory that is suspended and resumed: what a handle costs then is paid every
  /// time, and a request's own handles go and come with it.
  [[nodiscard]] constexpr growth_rules for_suspension() const noexcept {
    constexpr std::uint64_t mib = std::uint64_t{1} << 20;
    growth_rules rules = *this;
    rules.handle_scale = 32 * mib;
    rules.largest_handle = 64 * mib;
    rules.reserved_share = 16;
    rules.request_share = 1;
    rules.plans = false;
    return rules;
  }

  /// What growth at the arena's end is rounded up to.
  [[nodiscard]] constexpr std::uint64_t unit_at(std::uint64_t reserved,
                                                std::uint64_t slot) const noexcept {
    if (unit_share == 0) return slot;
    return std::clamp(std::bit_floor(std::max<std::uint64_t>(reserved / unit_share, 1)), slot,
                      std::max(largest_handle, slot));
  }
  /// The size of the handles that are created for a request, with `reserved` held already, where so
  /// many streams take from the arena.
  [[nodiscard]] constexpr std::uint64_t handle_for(std::uint64_t request, std::uint64_t reserved,
                                                   std::uint64_t slot,
                                                   std::uint64_t streams) const noexcept {
    const std::uint64_t square =
        request >= std::uint64_t{1} << 32 ? largest_handle : request * request / handle_scale;
    const std::uint64_t share =
        std::max((reserved + request) / reserved_share, request / request_share);
    const std::uint64_t crowd = 3 + std::clamp<std::uint64_t>(streams, 1, 4);  // quarters
    const std::uint64_t wanted = std::max<std::uint64_t>(std::min(square, share * 4 / crowd), 1);
    return std::clamp(std::bit_floor(wanted), slot, std::max(largest_handle, slot));
  }
};

}}}  // namespace weir::v0::placement

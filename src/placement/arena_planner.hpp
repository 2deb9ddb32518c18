// SPDX-License-Identifier: Apache-2.0
// Where an arena could make room for a request, and with what memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/arena_core.hpp"
#include "placement/arena_types.hpp"
#include "placement/place_chooser.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Plans rooms: a window over runs that the request may use and holes that can be filled, and what
/// its gaps are filled with: free handles from elsewhere, or new ones.
///
///   before   |   A       |  B  |  C  |  D  |     a request for two slots
///            | live      | run | live| run |
///
///   plan     window: D and the slot behind it; gap: that slot; filling: handle B moves there
///
/// Changes nothing and makes no driver call: a plan is carried out by the arena_mover, or dropped.
/// The windows of the last request are kept while nothing changes (arena_runs::changes()): a
/// request that cannot be met by moving is met by growing next, and the search would be the same.
///
/// Owned by an arena, under the heap's lock. Planning walks over all blocks and may throw
/// std::bad_alloc.
class arena_planner {
 public:
  /// `places` says what windows and new memory have to keep to.
  arena_planner(const arena_core& core, const place_chooser& places,
                const arena_host& host) noexcept
      : core_{core}, places_{places}, host_{host} {}

  /// Whether growing is to be preferred to moving for the request.
  [[nodiscard]] bool prefers_growth(const request& wanted) const noexcept;
  /// False where no plan that moves can be complete, and looking for one can be spared.
  [[nodiscard]] bool is_worth_a_plan(const request& wanted, reach whose) const noexcept;
  /// The best window, and what fills its gaps. The plan may be incomplete, or have no window.
  [[nodiscard]] room_plan plan(const request& wanted, reach whose, fill_with by);
  /// The same for a window that is chosen already, filled with free handles that the stream may use
  /// at once.
  [[nodiscard]] room_plan plan_in(const room_window& window, const request& wanted) const;

 private:
  /// What the last search found.
  struct survey {
    std::uint64_t at = ~std::uint64_t{0};  // arena_runs::changes(): it holds while nothing changes
    request wanted;
    reach whose = reach::usable;
    room_window best;
    std::vector<run_stretch> stretches;
  };

  // Windows.
  [[nodiscard]] const survey& look_around(const request& wanted, reach whose);
  [[nodiscard]] room_window best_window(const request& wanted, reach whose,
                                        std::vector<run_stretch>& stretches) const;
  [[nodiscard]] room_window window_at_end(const request& wanted, reach whose) const;
  [[nodiscard]] std::vector<run_stretch> usable_stretches(const request& wanted) const;
  void add_to(std::vector<run_stretch>& stretches, block_index run) const;

  // What fills their gaps.
  [[nodiscard]] room_plan fill(const room_window& window, const std::vector<run_stretch>& stretches,
                               const request& wanted, fill_with by) const;
  [[nodiscard]] std::vector<window_gap> gaps_of(const room_window& window) const;
  [[nodiscard]] std::vector<free_handle> free_handles(
      const room_window& outside, const std::vector<run_stretch>& stretches) const;
  [[nodiscard]] bool is_quiescent_up_to(block_index from, std::uint64_t end) const noexcept;
  [[nodiscard]] std::vector<window_gap> plan_returns(room_plan& into, const window_gap& in,
                                                     std::vector<free_handle>& sources) const;
  void plan_move(room_plan& into, const window_gap& in, std::uint64_t at, free_handle& with,
                 bool returns) const;
  [[nodiscard]] std::vector<free_handle*> choose(const window_gap& in,
                                                 std::vector<free_handle>& sources) const;
  [[nodiscard]] std::uint64_t handle_for(const request& wanted) const noexcept;
  void plan_creation(room_plan& into, const window_gap& in, const request& wanted) const;
  [[nodiscard]] bool better_new(const window_gap& in, const std::vector<free_handle*>& chosen,
                                std::uint64_t planned, const request& wanted) const;

  const arena_core& core_;
  const place_chooser& places_;
  const arena_host& host_;
  survey seen_;
};

}}}  // namespace weir::v0::placement

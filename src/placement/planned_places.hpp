// SPDX-License-Identifier: Apache-2.0
// Where blocks go where large requests repeat: each to the place that the plan of a round has for
// it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "placement/arena_runs.hpp"
#include "placement/arena_slots.hpp"
#include "placement/arena_types.hpp"
#include "placement/place_chooser.hpp"
#include "placement/rounds.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Follows the plan of a round of requests (rounds.hpp), and says when there should be one.
///
/// A planned block has an address of its own, behind all that the arena had when the plan was made.
/// Memory moves there as the requests come; once all of them were there nothing has to move any
/// more. A place is taken if the stream may use all that lies there, or if room can be made there
/// of free memory. Otherwise the request goes where the rule below says. Half of all addresses are
/// left for what nobody planned, and a plan that would take new memory is not made.
///
/// The arena tells it what is handed out, freed and moved. Without a plan all questions go to the
/// rule below. fit() costs a comparison without a plan, and some hundred nanoseconds with one.
/// Owned by an arena, under the heap's lock.
class planned_places final : public place_chooser {
 public:
  planned_places(const arena_runs& runs, const arena_slots& slots,
                 place_chooser& otherwise) noexcept
      : runs_{runs}, slots_{slots}, otherwise_{otherwise}, rounds_{slots.base()} {}

  // --- What the arena tells ---------------------------------------------------------------------

  void handed_out(const block& given) noexcept {
    if (rounds_.notes() && rounds::is_large(given.units)) rounds_.requested(given);
  }
  /// The block is about to become a run.
  void freed(const block& given) noexcept {
    if (rounds_.notes() && rounds::is_large(given.units)) rounds_.freed(given);
  }
  void moved(std::uint64_t slots) noexcept { rounds_.moved(slots); }

  // --- The plan ---------------------------------------------------------------------------------

  /// Whether requests of so many units can be planned.
  [[nodiscard]] static bool can_plan(std::uint64_t units) noexcept {
    return rounds::is_large(units);
  }
  /// If a round is worth a plan, and it can be had: the number of slots behind the arena's end that
  /// its blocks take. 0 if not. A plan that failed is dropped first. May throw std::bad_alloc.
  [[nodiscard]] std::uint64_t draw_plan(const arena_figures& figures);
  /// The plan that was just drawn is followed from now on; its blocks lie from the address on.
  void lay_out(std::uint64_t low, const arena_figures& figures) noexcept;
  /// Whether with the request the arena would have grown by a sixty-fourth since the plan was made:
  /// a plan is there to save time, and one that takes memory is a bad one.
  [[nodiscard]] bool is_outgrown(const request& wanted,
                                 const arena_figures& figures) const noexcept;
  void drop_plan() noexcept { rounds_.drop_plan(); }
  /// Nothing is noted any more, until memory moves again.
  void forget() noexcept { rounds_.forget(); }

  /// The place that the plan has for the request, if all of it is memory that the stream may use or
  /// holes that can be filled.
  [[nodiscard]] room_window window_for(const request& wanted) const noexcept;
  /// No room could be made in that window.
  void missed(const request& wanted) noexcept { rounds_.miss_place(wanted.units, wanted.stream); }

  [[nodiscard]] std::size_t footprint() const noexcept { return rounds_.footprint(); }

  // --- place_chooser ----------------------------------------------------------------------------

  /// There is no place where the planned one has to be mapped first: window_for() says where.
  [[nodiscard]] free_place fit(const request& wanted) override;
  [[nodiscard]] window_limits limits_in(block_index index,
                                        const request& wanted) const noexcept override {
    return otherwise_.limits_in(index, wanted);
  }
  [[nodiscard]] growth_limits growth_for(const request& wanted) const noexcept override {
    return otherwise_.growth_for(wanted);
  }
  [[nodiscard]] bool keeps(std::uint64_t address) const noexcept override {
    return rounds_.is_planned(address) || otherwise_.keeps(address);
  }

 private:
  [[nodiscard]] room_window window_at(std::uint64_t place, const request& wanted) const noexcept;

  const arena_runs& runs_;
  const arena_slots& slots_;
  place_chooser& otherwise_;
  rounds rounds_;
  std::uint64_t reserved_when_planned_ = 0;
};

}}}  // namespace weir::v0::placement

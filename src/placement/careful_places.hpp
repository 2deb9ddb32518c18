// SPDX-License-Identifier: Apache-2.0
// Where blocks go where memory is short.
#pragma once

#include <cstdint>

#include "placement/arena_runs.hpp"
#include "placement/arena_slots.hpp"
#include "placement/place_chooser.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// A live block cannot be moved, so it pins the slots that it lies in. Where memory is short, small
/// blocks lie in slots with other small ones, and large blocks in slots of their own: when the
/// large ones are freed, their slots are wholly free. New handles have one slot, and only as many
/// are created as are missing. request::care says how far a request may depart from that.
///
///   slots       |   0   |   1   |   2   |   3   |   4   |
///   blocks      |sml|              free             |lrg|
///   for small       ^---------------------------^         up to the slot of the large block
///   for large           ^---------------------------^     from the first slot without a small one
///
/// While memory is not short all questions go to the rule below. fit() looks at up to 256 runs of
/// each of two owners. Owned by an arena, under the heap's lock.
class careful_places final : public place_chooser {
 public:
  careful_places(const placement_context& shared, const arena_runs& runs, const arena_slots& slots,
                 place_chooser& otherwise) noexcept
      : shared_{shared}, runs_{runs}, slots_{slots}, otherwise_{otherwise} {}

  /// Whether memory is short.
  [[nodiscard]] bool applies() const noexcept { return shared_.is_short(); }
  /// Whether a block of so many units lies with small ones.
  [[nodiscard]] static bool is_small(std::uint64_t units) noexcept;
  /// Whether wholly free handles are kept from the request.
  [[nodiscard]] bool spares_handles(const request& wanted) const noexcept {
    return applies() && is_small(wanted.units);
  }

  [[nodiscard]] free_place fit(const request& wanted) override;
  [[nodiscard]] window_limits limits_in(block_index index,
                                        const request& wanted) const noexcept override;
  [[nodiscard]] growth_limits growth_for(const request& wanted) const noexcept override;
  [[nodiscard]] bool keeps(std::uint64_t address) const noexcept override {
    return otherwise_.keeps(address);
  }

 private:
  [[nodiscard]] bool fills_slots(std::uint64_t units) const noexcept;
  [[nodiscard]] bool keeps_apart(block_index neighbour, const request& wanted) const noexcept;
  [[nodiscard]] window_limits careful_limits(block_index index,
                                             const request& wanted) const noexcept;
  [[nodiscard]] free_place careful_fit(const request& wanted) const;
  [[nodiscard]] std::uint64_t pinned_by(const block& run, std::uint64_t start,
                                        std::uint64_t end) const noexcept;

  const placement_context& shared_;
  const arena_runs& runs_;
  const arena_slots& slots_;
  place_chooser& otherwise_;
};

}}}  // namespace weir::v0::placement

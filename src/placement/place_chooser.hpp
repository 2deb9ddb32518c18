// SPDX-License-Identifier: Apache-2.0
// The interface of the rules that decide where a block goes.
#pragma once

#include <cstdint>

#include "placement/backing_store.hpp"
#include "placement/block.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// A place for a request in free memory as it lies.
struct free_place {
  block_index first = no_block;  // the run that it begins in; no_block: there is no place
  std::uint64_t start = 0;
  bool over_runs = false;  // false: all of it is in that run; true: it may go on over the next ones

  friend bool operator==(const free_place&, const free_place&) = default;
};

/// What a window for a request may use of a run or hole.
struct window_limits {
  std::uint64_t start = 0;   // a window may begin here, and not below
  std::uint64_t end = 0;     // a window may end up to here
  bool ends_with_it = true;  // whether a window may be laid against the end of the run

  friend bool operator==(const window_limits&, const window_limits&) = default;
};

/// How new memory is taken for a request.
struct growth_limits {
  bool one_slot_handles = false;  // not larger ones, although they cost less
  bool exact = false;             // no more than is missing, although more would cost less

  friend bool operator==(const growth_limits&, const growth_limits&) = default;
};

/// A rule for the places of blocks. Rules lie on top of each other. Each answers the questions that
/// it decides, and passes the others to the rule below.
///
///   planned_places    where large requests repeat: the place that their plan has for them
///   careful_places    where memory is short: small blocks beside small ones
///   usual_places      a close or low run for small blocks, a short one for large ones
///
/// The arena asks the top rule where a request fits. Its planner asks it which limits windows and
/// new memory have. Neither knows which rule answers. Owned by an arena, under the heap's lock.
class place_chooser {
 public:
  /// Where the request goes among runs that its stream may use at once. There may be room although
  /// there is no place: the rule wants room to be made first. May throw std::bad_alloc.
  [[nodiscard]] virtual free_place fit(const request& wanted) = 0;
  /// What a window for the request may use of this run or hole.
  [[nodiscard]] virtual window_limits limits_in(block_index index,
                                                const request& wanted) const noexcept = 0;
  /// How new memory is taken for the request.
  [[nodiscard]] virtual growth_limits growth_for(const request& wanted) const noexcept = 0;
  /// Whether free memory at the address is where it should be, so that other memory is moved first.
  [[nodiscard]] virtual bool keeps(std::uint64_t address) const noexcept = 0;

 protected:
  ~place_chooser() = default;
};

}}}  // namespace weir::v0::placement

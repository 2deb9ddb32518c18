// SPDX-License-Identifier: Apache-2.0
// What the parts of an arena share, and what they ask of it.
#pragma once

#include "placement/arena_runs.hpp"
#include "placement/arena_slots.hpp"
#include "placement/arena_types.hpp"
#include "placement/backing_store.hpp"
#include "placement/growth.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// The records of an arena, and what was decided when it was made.
///
/// Always true between calls: blocks and slots end at the same address; a hole, and what is stuck,
/// covers whole slots without a current handle; all other blocks lie over slots that have one.
///
/// Owned by the arena, under the heap's lock; its parts are constructed with a reference to it. Its
/// functions make no driver call and do not fail.
struct arena_core {
  placement_context& shared;
  const pool_id pool;
  const growth_rules rules;
  const physical_properties properties;  // of handles that are created
  arena_slots slots;
  arena_runs runs;

  /// The arena ends with slot `high`, in a hole, or two where one record is not enough. There are
  /// records for them, and room for their slots.
  void append_hole(std::uint64_t high) noexcept;
  /// Holes that can be filled go from the arena's end, unless something is mapped to them still.
  void drop_trailing_holes() noexcept;
  /// The place of a handle becomes a hole; its mapping stays behind, and was used last at the
  /// stamp. `hint` is the run that the place begins in, or one below it. Makes two records.
  void leave_hole(handle_number number, block_index hint, stamp used) noexcept;
  /// Slots of a hole get memory, and become a run that is ready at the stamp. Makes two records.
  void fill_hole(const gap_filling& with, stamp ready) noexcept;
  /// The handle is gone, and so is what was mapped to its place. As leave_hole().
  void drop_handle(handle_number number, block_index hint) noexcept;
};

/// What the parts of an arena ask of it. Implemented by the arena.
class arena_host {
 public:
  [[nodiscard]] virtual arena_figures figures() const noexcept = 0;
  /// Physical memory was created, or released.
  virtual void count_created(std::uint64_t size) noexcept = 0;
  virtual void count_released(std::uint64_t size) noexcept = 0;
  /// A handle of so many slots was moved, and did not return.
  virtual void moved(std::uint64_t slots) noexcept = 0;
  /// A run that is in no index becomes the request's block.
  virtual void hand_out(block_index index, const request& wanted) noexcept = 0;

 protected:
  ~arena_host() = default;
};

}}}  // namespace weir::v0::placement

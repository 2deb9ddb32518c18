// What the parts of an arena share, and what they ask of it.
#pragma once

#include "placement/arena_runs.hpp"
#include "placement/arena_slots.hpp"
#include "placement/arena_types.hpp"
#include "placement/backing_store.hpp"
#include "placement/growth.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// The records of an arena, and what was decided when it was made. Owned by the arena, under the
/// heap's lock; its parts are constructed with a reference to it.
struct arena_core {
  placement_context& shared;
  const pool_id pool;
  const growth_rules rules;
  const physical_properties properties;  // of handles that are created
  arena_slots slots;
  arena_runs runs;
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

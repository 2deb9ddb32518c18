// SPDX-License-Identifier: Apache-2.0
// Room for requests that want one physical handle for themselves.
#pragma once

#include <cstdint>

#include "placement/arena_core.hpp"
#include "placement/arena_types.hpp"
#include "placement/place_chooser.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// A handle that is free as a whole.
struct handle_place {
  free_place place;
  std::uint64_t units = 0;  // of the handle
};

/// Finds and plans rooms that are exactly one physical handle (request::whole_handle).
///
/// The holder of such a block may map the handle at a second place, because no other block lies in
/// it. A handle serves if it has exactly the request's size and all of it lies in one free run. If
/// there is none, but smaller handles make up the size together, the largest of them is the answer:
/// the block is smaller than the request, and the caller asks again for the rest.
///
/// Changes nothing and makes no driver call. Owned by an arena, under the heap's lock. find() reads
/// the handles below the runs that are long enough, from the shortest run on; where it finds none
/// of the size, those below all runs.
class whole_handles {
 public:
  explicit whole_handles(const arena_core& core) noexcept : core_{core} {}

  /// A handle in free memory that the stream may use; with reach::behind_wait, in memory of another
  /// stream for which waits can be queued.
  [[nodiscard]] handle_place find(const request& wanted, reach whose) const noexcept;
  /// The handle that is mapped at exactly this address, if it serves.
  [[nodiscard]] free_place find_at(std::uint64_t address, const request& wanted) const noexcept;
  /// A new handle, in a hole or at the arena's end. Incomplete: there are no addresses left. May
  /// throw std::bad_alloc.
  [[nodiscard]] room_plan plan_new(const request& wanted) const;

 private:
  [[nodiscard]] std::uint64_t slots_of(const request& wanted) const noexcept {
    return wanted.units * unit / core_.slots.slot_size();
  }
  [[nodiscard]] free_place find_among(stream_slot owner, const request& wanted,
                                      bool behind_wait) const noexcept;
  [[nodiscard]] free_place find_in(block_index run, const request& wanted) const noexcept;
  [[nodiscard]] handle_place find_part(const request& wanted) const noexcept;
  template <class Function>
  void each_handle(block_index run, Function see) const noexcept;
  [[nodiscard]] block_index hole_for(const request& wanted) const noexcept;

  const arena_core& core_;
};

}}}  // namespace weir::v0::placement

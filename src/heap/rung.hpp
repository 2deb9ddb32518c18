// SPDX-License-Identifier: Apache-2.0
// The rungs of the search for room, as numbers.
#pragma once

#include <cstdint>

namespace weir { inline namespace v0 { namespace heap {

/// How far a request climbed beyond its thread's cache, in the order of room_search::find_room().
enum class rung : std::uint8_t {
  free_range,           ///< memory that was free as it lay
  completed,            ///< what streams had completed meanwhile
  flushed,              ///< what threads had cached
  move,                 ///< free handles were mapped where room was missing
  move_behind_wait,     ///< the same with other streams' memory, behind a queued wait
  pending_behind_wait,  ///< a block that recorded streams may still use, behind queued waits
  growth,               ///< memory was taken from the driver
  fallback,             ///< a pool that helps out had room
  release,              ///< cached memory was released to the driver to make room
  eviction,             ///< evictable memory was suspended
  callback,             ///< the user's callbacks freed something
  wait,                 ///< the host waited for streams
  none,                 ///< out of memory
};

/// What a profile reads between two requests: one counter and one number a use of the heap's lock.
struct search_trail {
  std::uint64_t locks = 0;       ///< taken for requests, frees and recorded streams
  rung last = rung::free_range;  ///< where the latest request under the lock ended
};

}}}  // namespace weir::v0::heap

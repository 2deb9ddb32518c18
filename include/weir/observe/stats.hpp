// The counters of an allocator: what is asked for, held and reserved, now and at most.
#pragma once

#include <algorithm>
#include <cstdint>

#include "weir/base/bytes.hpp"

namespace weir::inline v0 {

/// An amount and the most it has been since the peaks were last reset.
struct gauge {
  std::uint64_t current = 0;
  std::uint64_t peak = 0;

  constexpr void set(std::uint64_t now) noexcept {
    current = now;
    peak = std::max(peak, now);
  }
  constexpr void reset_peak() noexcept { peak = current; }
  friend bool operator==(const gauge&, const gauge&) = default;
};

/// What an allocator, one of its pools or one tag holds. Sizes are in bytes.
///
/// requested <= allocated <= active <= reserved, of one moment, whenever it is read. docs/stats.md
/// tells each number's story.
///
/// A tag owns no physical memory: its reserved is its active. Peaks of reserved are exact; the
/// others may be off by what passed through other threads' caches between two reads, by no more
/// than the bounds of those caches.
struct memory_stats {
  gauge requested;  ///< what users asked for and have not freed
  gauge allocated;  ///< the same, rounded to whole blocks
  gauge active;     ///< allocated, and freed memory that other streams may still use
  gauge reserved;   ///< physical memory taken from the driver
  gauge blocks;     ///< live blocks, a count

  /// requested and blocks, with the freed memory that is in active: what was asked for of it, and
  /// how many blocks it is.
  gauge active_requested;
  gauge active_blocks;

  std::uint64_t cached = 0;         ///< reserved - active: free for somebody
  std::uint64_t thread_cached = 0;  ///< of cached: held by threads for their next request
  std::uint64_t pending = 0;        ///< active - allocated: waits for streams to get past it
  std::uint64_t stream_bound = 0;   ///< of cached: free for the stream that used it last only

  std::uint64_t allocations = 0;  ///< successful ones, since the allocator was made
  std::uint64_t frees = 0;
  std::uint64_t hits = 0;              ///< allocations served by the thread's cache
  std::uint64_t failures = 0;          ///< allocations that ended out of memory or at a limit
  std::uint64_t handles_created = 0;   ///< physical handles or segments taken from the driver
  std::uint64_t handles_moved = 0;     ///< mapped somewhere else, with driver calls
  std::uint64_t handles_returned = 0;  ///< went back to a mapping that was kept: no driver call
  std::uint64_t handles_released = 0;  ///< given back to the driver
  std::uint64_t waits = 0;             ///< queued on a stream so that it could reuse memory
  std::uint64_t events = 0;            ///< recorded to know when memory is free for others

  std::uint64_t metadata = 0;  ///< host memory that the books take
};

}  // namespace weir::inline v0

// SPDX-License-Identifier: Apache-2.0
// The counters of an allocator: what is asked for, held and reserved, now and at most.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// An amount and the most it has been since the peaks were last reset.
template <class Amount>
struct basic_gauge {
  Amount current{};
  Amount peak{};

  constexpr void set(Amount now) noexcept {
    current = now;
    peak = std::max(peak, now);
  }
  constexpr void reset_peak() noexcept { peak = current; }
  friend bool operator==(const basic_gauge&, const basic_gauge&) = default;
};

using gauge = basic_gauge<std::uint64_t>;  ///< of a count
using byte_gauge = basic_gauge<bytes>;     ///< of a size

/// "3 (peak 5)", "4 KiB (peak 8 KiB)".
[[nodiscard]] WEIR_API std::string to_string(const gauge& count);
[[nodiscard]] WEIR_API std::string to_string(const byte_gauge& size);

/// What an allocator, one of its pools or one tag holds.
///
/// requested <= allocated <= active <= reserved_and_suspended, the current values, of one moment,
/// whenever they are read, and the peaks. Where nothing was suspended, reserved_and_suspended is
/// reserved. docs/stats.md explains each number.
///
/// A tag owns no physical memory: its reserved is its active, without what is suspended, and the
/// peak is that of active. All figures are exact, but for peaks
/// of programs with several threads: those, except the peak of reserved, may be off by what passed
/// through other threads' caches between two reads, by no more than the bounds of those caches.
struct memory_stats {
  byte_gauge requested;  ///< what users asked for and have not freed
  byte_gauge allocated;  ///< the same, rounded to whole blocks
  byte_gauge active;     ///< allocated, and freed memory that other streams may still use
  byte_gauge reserved;   ///< physical memory taken from the driver
  gauge blocks;          ///< live blocks

  /// requested and blocks, with the freed memory that is in active: what was asked for of it, and
  /// how many blocks it is.
  byte_gauge active_requested;
  gauge active_blocks;

  bytes cached{};         ///< of reserved, not active: free for somebody
  bytes thread_cached{};  ///< of cached: held by threads for their next request
  bytes pending{};        ///< active - allocated: waits for streams to complete their work on it
  bytes stream_bound{};   ///< of cached: free for the stream that used it last only

  // Since the allocator was created. allocations == hits + heap_hits + misses.
  std::uint64_t allocations = 0;  ///< successful ones
  std::uint64_t frees = 0;
  std::uint64_t hits = 0;       ///< allocations served by the thread's cache
  std::uint64_t heap_hits = 0;  ///< served by free memory of the heap, without a driver call
  /// Beyond the thread's cache, with no free memory at hand: the driver was called to reserve, map
  /// or wait.
  std::uint64_t misses = 0;
  std::uint64_t failures = 0;          ///< allocations that ended out of memory or at a limit
  std::uint64_t handles_created = 0;   ///< physical handles or segments taken from the driver
  std::uint64_t handles_moved = 0;     ///< mapped somewhere else, with driver calls
  std::uint64_t handles_returned = 0;  ///< went back to a mapping that was kept: no driver call
  std::uint64_t handles_released = 0;  ///< released to the driver
  std::uint64_t waits = 0;             ///< queued on a stream so that it could reuse memory
  std::uint64_t events = 0;            ///< recorded to know when memory is free for others

  bytes metadata{};  ///< host memory that the bookkeeping takes

  /// Physical memory of suspended pools that went back to the driver, and that resume() takes.
  bytes suspended{};
  /// Host memory that is held for contents of suspended memory, in use or not; of a pool or tag,
  /// the contents that are there, without a peak of their own.
  byte_gauge backup{};
  /// reserved + suspended: what the allocator holds, and what it takes again. Its peak by that of
  /// requested is the cost of caching and fragmentation, whatever was suspended.
  byte_gauge reserved_and_suspended{};

  friend bool operator==(const memory_stats&, const memory_stats&) = default;
};

/// Every member by name, "requested 4 KiB (peak 8 KiB), …", in six lines.
[[nodiscard]] WEIR_API std::string to_string(const memory_stats& stats);

}}  // namespace weir::v0

// SPDX-License-Identifier: Apache-2.0
// The counters of an allocator: requested, held and reserved memory, with peaks.
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
  Amount current{};  ///< the amount now
  Amount peak{};     ///< the most since the last reset_peak()

  /// Changes the amount; raises the peak if it is higher.
  constexpr void set(Amount now) noexcept {
    current = now;
    peak = std::max(peak, now);
  }
  /// The peak becomes the current amount.
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
/// Always: requested <= allocated <= active <= reserved_and_suspended, for the current values (a
/// consistent snapshot) and for the peaks. If nothing was suspended, reserved_and_suspended equals
/// reserved. docs/stats.md explains each number.
///
/// A tag owns no physical memory: its reserved is its active without suspended memory, and the peak
/// is that of active. All figures are exact, except peaks in programs with several threads. Those,
/// except the peak of reserved, may be off by what passed through other threads' caches between two
/// reads; the error is at most the bound of those caches.
struct memory_stats {
  byte_gauge requested;  ///< requested and not freed
  byte_gauge allocated;  ///< the same, rounded to whole blocks
  byte_gauge active;     ///< allocated, and freed memory that other streams may still use
  byte_gauge reserved;   ///< physical memory taken from the driver
  gauge blocks;          ///< live blocks

  /// requested and blocks, plus those of freed memory that is still in active.
  byte_gauge active_requested;
  gauge active_blocks;

  bytes cached{};         ///< of reserved, not active: free for reuse
  bytes thread_cached{};  ///< of cached: held by threads for their next request
  bytes pending{};        ///< active - allocated: freed, but streams may still use it
  bytes stream_bound{};   ///< of cached: free only for the stream that used it last

  // Since the allocator was created. allocations == hits + heap_hits + misses.
  std::uint64_t allocations = 0;  ///< successful ones
  std::uint64_t frees = 0;        ///< successful ones
  std::uint64_t hits = 0;         ///< allocations served by the thread's cache
  std::uint64_t heap_hits = 0;    ///< served by free memory of the heap, without a driver call
  /// Served by neither: the driver was called to reserve, map or wait.
  std::uint64_t misses = 0;
  std::uint64_t failures = 0;          ///< allocations that ended out of memory or at a limit
  std::uint64_t handles_created = 0;   ///< physical handles or segments taken from the driver
  std::uint64_t handles_moved = 0;     ///< mapped at another address, with driver calls
  std::uint64_t handles_returned = 0;  ///< moved back to a retained mapping: no driver call
  std::uint64_t handles_released = 0;  ///< released to the driver
  std::uint64_t waits = 0;             ///< queued on a stream so that it could reuse memory
  std::uint64_t events = 0;            ///< recorded to know when memory is free for others

  bytes metadata{};  ///< host memory of the bookkeeping

  /// Physical memory of suspended pools that was returned to the driver and that resume() needs.
  bytes suspended{};
  /// Host memory held for contents of suspended memory, in use or not. Of a pool or tag: the saved
  /// contents, without a peak of their own.
  byte_gauge backup{};
  /// reserved + suspended: what the allocator holds and what resume() needs. Its peak divided by
  /// that of requested is the cost of caching and fragmentation, independent of suspended memory.
  byte_gauge reserved_and_suspended{};

  friend bool operator==(const memory_stats&, const memory_stats&) = default;
};

/// Every member by name, "requested 4 KiB (peak 8 KiB), …", in six lines.
[[nodiscard]] WEIR_API std::string to_string(const memory_stats& stats);

}}  // namespace weir::v0

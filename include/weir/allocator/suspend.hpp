// SPDX-License-Identifier: Apache-2.0
// Suspended memory: physical memory that goes back to the driver while its addresses, and the
// blocks at them, stay. What caching_allocator and memory_pool take and answer for it.
//
//   // From now on blocks of the tag lie apart.
//   const auto weights = weir::tag::named("weights").value();
//   memory.declare_suspendable(weights).value();
//   // The memory is anybody's; then it is back, at the same addresses, with the same contents.
//   auto away = memory.suspend(weights).value();
//   auto back = memory.resume(weights).value();
//
// docs/suspend.md is the guide.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// What becomes of what is in the memory.
enum class suspended_contents : std::uint8_t {
  keep,     ///< copied to the host, and back when it is resumed
  discard,  ///< lost: after resume() the memory has no particular contents
};

/// What kind of host memory contents are kept in.
enum class host_memory_kind : std::uint8_t {
  pinned,  ///< the device copies to it directly; slow to get for the first time, kept for the next
  pageable,  ///< plain memory, which the system may swap; copies go through a little pinned memory
};

/// What a request to suspended memory does: an allocation with its tag or from its pool.
enum class suspended_requests : std::uint8_t {
  fail,    ///< errc::suspended
  wait,    ///< until another thread has called resume()
  resume,  ///< resumes it first
};

/// Whose queued work suspend_async() waits for before it takes the memory away. suspend() and
/// evictions wait for all streams.
enum class awaited_streams : std::uint8_t {
  /// All streams of the device, known to weir or not, also for work that is queued before the wait
  /// begins. While it lasts, the driver keeps other threads from queueing work, and a page of
  /// device memory (2 MiB) is taken.
  all,
  /// Streams that the allocator has met in requests, that were given to watch_stream(), or that
  /// synchronise with the legacy stream. Nobody is kept from queueing work, and later work is not
  /// waited for. Memory that any other stream still uses is lost under it.
  known,
};

/// "keep", "pinned", "fail", "all", …
[[nodiscard]] WEIR_API std::string to_string(suspended_contents contents);
[[nodiscard]] WEIR_API std::string to_string(host_memory_kind kind);
[[nodiscard]] WEIR_API std::string to_string(suspended_requests requests);
[[nodiscard]] WEIR_API std::string to_string(awaited_streams streams);

/// Told how far the copying of contents is, each time that a chunk has arrived: so many bytes of
/// all that are copied; the last time it is all. Called without locks on the thread that suspends
/// or resumes, which with suspend_async() is one of the allocator's. It may use the allocator, but
/// not wait for the memory that is on its way; what it throws is dropped. Where nothing is copied
/// it is not called.
using suspend_progress = std::function<void(bytes done, bytes total)>;

struct suspend_options {
  suspended_contents contents = suspended_contents::keep;
  host_memory_kind to = host_memory_kind::pinned;
  suspended_requests requests = suspended_requests::fail;
  /// Contents are copied in pieces of at most this size, so that other copies pass between them.
  bytes chunk{std::uint64_t{32} << 20};
  suspend_progress progress{};
  awaited_streams streams = awaited_streams::all;
};

struct resume_options {
  suspend_progress progress{};
};

/// Of a tag or pool that is going to be suspended.
struct suspendable_options {
  /// A request that finds no memory may suspend it, with `eviction`, before callbacks are asked and
  /// before it fails: the lowest priority first, and for requests of evictable memory only what has
  /// a lower priority than theirs. It is resumed by requests to it, or by resume(); whoever uses
  /// its blocks must have called that before.
  bool evictable = false;
  int priority = 0;
  suspend_options eviction{.requests = suspended_requests::resume};
};

/// What suspend() did. All 0: it was suspended already, or had nothing.
struct suspend_outcome {
  bytes released{};       ///< physical memory that went back to the driver, and is free now
  bytes saved{};          ///< contents that were copied to the host
  bytes not_suspended{};  ///< physical memory of pools that cannot be; only where all were meant

  friend bool operator==(const suspend_outcome&, const suspend_outcome&) = default;
};

/// What resume() did. All 0: it was not suspended.
struct resume_outcome {
  bytes reserved{};  ///< physical memory that was taken from the driver
  bytes restored{};  ///< contents that were copied back

  friend bool operator==(const resume_outcome&, const resume_outcome&) = default;
};

/// "released 64 MiB, saved 60 MiB, not_suspended 0 B".
[[nodiscard]] WEIR_API std::string to_string(const suspend_outcome& outcome);
/// "reserved 64 MiB, restored 60 MiB".
[[nodiscard]] WEIR_API std::string to_string(const resume_outcome& outcome);

}}  // namespace weir::v0

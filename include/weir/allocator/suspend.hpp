// SPDX-License-Identifier: Apache-2.0
// Suspended memory: physical memory is returned to the driver while its addresses and blocks stay.
// The options and results of suspend() and resume().
//
//   // From now on blocks of the tag have a pool of their own.
//   const auto weights = weir::tag::named("weights").value();
//   memory.declare_suspendable(weights).value();
//   // The memory is free for others; then it is restored, at the same addresses.
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

/// What happens to the contents of the memory.
enum class suspended_contents : std::uint8_t {
  keep,     ///< copied to the host, and back when it is resumed
  discard,  ///< lost: after resume() the contents are undefined
};

/// The kind of host memory that saved contents are kept in.
enum class host_memory_kind : std::uint8_t {
  pinned,    ///< the device copies to it directly; slow to allocate, kept for the next time
  pageable,  ///< plain memory, which the system may swap; copies go through a small pinned buffer
};

/// What a request to suspended memory does: an allocation with its tag or from its pool.
enum class suspended_requests : std::uint8_t {
  fail,    ///< errc::suspended
  wait,    ///< waits until another thread has called resume()
  resume,  ///< resumes it first
};

/// Which streams suspend_async() waits for before it releases the memory. suspend() and evictions
/// wait for all streams.
enum class awaited_streams : std::uint8_t {
  /// All streams of the device, known to weir or not, including work that is queued before the wait
  /// begins. During the wait the driver blocks other threads that queue work, and a page of device
  /// memory (2 MiB) is taken.
  all,
  /// Streams that the allocator has met in requests, that were given to watch_stream(), or that
  /// synchronise with the legacy stream. Other threads can queue work; later work is not waited
  /// for.
  /// No other stream may still use the memory.
  known,
};

/// "keep", "pinned", "fail", "all", …
[[nodiscard]] WEIR_API std::string to_string(suspended_contents contents);
[[nodiscard]] WEIR_API std::string to_string(host_memory_kind kind);
[[nodiscard]] WEIR_API std::string to_string(suspended_requests requests);
[[nodiscard]] WEIR_API std::string to_string(awaited_streams streams);

/// Reports the progress of copying contents after each chunk: `done` of `total` bytes; in the last
/// call they are equal. Called without locks on the thread that suspends or resumes; for
/// suspend_async() that is a thread of the allocator. It may use the allocator, but must not wait
/// for the memory in transfer. Exceptions are dropped. Not called if nothing is copied.
using suspend_progress = std::function<void(bytes done, bytes total)>;

/// The choices of one suspension.
struct suspend_options {
  suspended_contents contents = suspended_contents::keep;  ///< whether contents are saved
  host_memory_kind to = host_memory_kind::pinned;          ///< where they are saved
  suspended_requests requests = suspended_requests::fail;  ///< what requests to the memory do
  /// Contents are copied in pieces of at most this size, so that other copies can run in between.
  bytes chunk{std::uint64_t{32} << 20};
  suspend_progress progress{};                     ///< may be empty
  awaited_streams streams = awaited_streams::all;  ///< for suspend_async() only
};

/// The choices of one resume.
struct resume_options {
  suspend_progress progress{};  ///< may be empty
};

/// The choices of a tag or pool that will be suspended.
struct suspendable_options {
  /// A request that finds no memory may suspend it, with `eviction`, before callbacks are called
  /// and before the request fails. The lowest priority is evicted first; a request for evictable
  /// memory evicts only lower priorities than its own. Requests to the memory, or resume(), restore
  /// it; call resume() before its blocks are used.
  bool evictable = false;
  int priority = 0;  ///< lower priorities are evicted first
  suspend_options eviction{.requests = suspended_requests::resume};
};

/// What suspend() did. All 0: it was already suspended, or had no memory.
struct suspend_outcome {
  bytes released{};       ///< physical memory that was returned to the driver
  bytes saved{};          ///< contents that were copied to the host
  bytes not_suspended{};  ///< physical memory of pools that cannot be suspended; only if all were
                          ///< meant

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

// SPDX-License-Identifier: Apache-2.0
// weir::host_arena: pinned host memory for copies, in segments that blocks of any size share.
//
//   auto host = weir::host_arena::of(gpu).value();   // the one arena of the device
//   host.reserve(64_MiB).value();                    // optional: pinned before it is needed
//   void* p = host.allocate(1000_B, stream);         // 1024 bytes of a segment
//   weir::copy_bytes(on_device.data(), p, 1000_B, stream).value();
//   host.deallocate(p, stream);                      // the copy may still be under way
//
// docs/host-memory.md says how it works and when to use which kind of host memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 {

namespace host {
class arena;
}

/// How the memory of an arena is pinned.
enum class host_pinning : std::uint8_t {
  /// registered_memory where the device and the system allow it, else driver_memory.
  automatic,
  /// Mapped by weir, near the device and with huge pages where there are any, and registered with
  /// the driver (cuMemHostRegister).
  registered_memory,
  /// Allocated by the driver (cuMemHostAlloc).
  driver_memory,
};

/// What a request gets when the system refuses to pin more memory.
enum class host_fallback : std::uint8_t {
  none,      ///< an error: no_host_memory, limit_exceeded, or the driver's
  pageable,  ///< memory that is not pinned: copies are slower, and wait on the host
};

/// Whether a call waits for memory that is pinned in the background.
enum class host_wait : std::uint8_t {
  yes,  ///< the call returns when the memory is pinned
  no,   ///< it returns at once
};

/// How an arena pins, how much, and what happens where it cannot.
struct host_arena_options {
  /// The most that is pinned at a time.
  bytes limit = bytes::max();
  /// The most that is pinned ahead of need in the background; 0: nothing is.
  bytes max_ahead{std::uint64_t{256} << 20};
  /// Idle segments are given back to the system after so long; 0: never, but by trim().
  std::chrono::milliseconds max_idle{30'000};
  /// Helper threads that pin in the background, and as many that prepare pages of large segments.
  /// They start at first need. 0: everything happens in the calling thread, and nothing ahead.
  unsigned threads = 2;
  host_pinning pinning = host_pinning::automatic;
  host_fallback fallback = host_fallback::none;
  /// Faster for devices to read over the bus, very slow for the host to read. Memory of the driver.
  bool write_combined = false;
  /// Asks the system for huge pages (transparent huge pages of 2 MiB).
  bool huge_pages = true;
  /// Asks for memory of the NUMA node that is nearest to the device.
  bool near_device = true;
};

/// What an arena holds, of one moment.
///
/// requested <= allocated; allocated + pending + free == pinned + pageable; allocations == hits +
/// misses.
struct host_arena_stats {
  byte_gauge requested;  ///< what users asked for and have not freed
  byte_gauge allocated;  ///< the same, rounded to 64 bytes
  byte_gauge pinned;     ///< all pinned segments
  gauge blocks;          ///< live ones

  bytes pending{};             ///< freed; work that was queued before may still use it
  bytes free{};                ///< free for the next request, in whatever segment
  bytes pageable{};            ///< memory that could not be pinned (host_fallback::pageable)
  std::uint64_t segments = 0;  ///< a count

  // Since the arena was made.
  std::uint64_t allocations = 0;  ///< successful ones, of more than zero bytes
  std::uint64_t frees = 0;        ///< successful ones
  std::uint64_t hits = 0;         ///< allocations served without waiting for memory to be pinned
  std::uint64_t misses = 0;       ///< allocations that had to wait for it
  std::uint64_t failures = 0;     ///< requests that ended without memory
  std::uint64_t pins = 0;         ///< segments that were pinned, …
  std::uint64_t pins_ahead = 0;   ///< … of these by helper threads or reserve()
  std::uint64_t unpins = 0;       ///< segments that were given back
  std::uint64_t events = 0;       ///< recorded to know when freed memory is free for others
  std::chrono::nanoseconds pin_time{};  ///< spent pinning, on all threads together

  friend bool operator==(const host_arena_stats&, const host_arena_stats&) = default;
};

/// "requested 4 KiB (peak 8 KiB), …, pins 3, …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const host_arena_stats& stats);

/// What a part of a segment is.
enum class host_block_state : std::uint8_t {
  free,     ///< for the next request
  live,     ///< the user has it
  pending,  ///< freed; queued work may still use it
};

/// "free", "live", "pending".
[[nodiscard]] WEIR_API std::string_view name(host_block_state state) noexcept;

/// A part of a segment: a block, or a free run.
struct host_block_info {
  std::uint64_t address = 0;  ///< of its first byte
  bytes size{};               ///< rounded to 64 bytes
  bytes requested{};          ///< 0 unless live
  host_block_state state{};   ///< whether somebody has it
  weir::tag tag{};            ///< of live blocks
};

/// Memory that was taken from the system in one piece.
struct host_segment_info {
  std::uint64_t address = 0;            ///< of its first byte
  bytes size{};                         ///< whole pages
  bool pinned = true;                   ///< false: pageable memory, of one block
  bool registered = false;              ///< mapped by weir; false: allocated by the driver
  std::vector<host_block_info> blocks;  ///< by address, without gaps
};

/// Everything an arena holds, of one moment.
struct host_snapshot {
  host_arena_stats stats;                   ///< the counters
  std::vector<host_segment_info> segments;  ///< by address
};

/// Pinned host memory that all devices of a runtime reach, for any thread and any stream.
///
/// **Sizes.** Requests are rounded up to 64 bytes and placed best fit in large segments, so that
/// what is pinned stays close to what is asked for. Memory of at least 64 bytes alignment.
///
/// **Order.** What allocate() returns is used by nobody: the host may write it at once. A freed
/// block is given out again once all work is done that was queued, when it was freed, on any known
/// stream of the devices that may use it: those of the streams of its allocation, of its free, and
/// of record_stream(). Known are streams that were named in a call, every weir::stream, and watched
/// ones (weir/device/stream_watch.hpp).
///
/// **Cost.** A request that finds free memory costs a lock and no driver call. A free makes no
/// driver call. Where no free memory fits, streams are asked how far they have come: one event on
/// each, for all frees before. Only then is memory pinned, about 0.65 s/GiB.
///
/// **Ahead of need.** From the first request on, helper threads pin what demand suggests: in rest
/// 1/64 of what is in use is kept free, while demand grows 1/8 of what the last second took, and at
/// most max_ahead. What was pinned ahead and not used goes back after a second. reserve() pins a
/// known amount, which stays until trim().
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr. With the last one all memory
/// is unpinned; blocks that are still live then are reported to the error handler (still_live).
/// weir's pinned_pool, pinned buffers and suspend backups pin memory of their own.
///
/// **fork().** The memory does not exist in a child process, whose calls return driver_gone.
///
/// **Captures** stay valid. A stream that is being captured cannot be asked how far it has come, so
/// what is freed meanwhile stays pending. Memory that a graph uses must stay allocated for as long
/// as the graph is launched.
///
/// **Bad input.** Zero bytes give null, and freeing null does nothing. size_overflow: a size that
/// cannot be rounded; bad_alignment: no power of two or above 2 MiB; foreign_pointer: not the start
/// of a block of this arena; double_free; bad_stream: a stream of another runtime; closed;
/// moved_from.
class WEIR_API host_arena {
 public:
  /// An arena of its own. invalid_argument: write_combined together with registered_memory.
  [[nodiscard]] static result<host_arena> create(weir::device device,
                                                 host_arena_options options = {});
  /// The arena of the device that everybody shares; created with `options` if nobody holds it.
  [[nodiscard]] static result<host_arena> of(weir::device device, host_arena_options options = {});

  /// Throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = bytes{64}) const {
    return try_allocate(size, stream, alignment).value();
  }
  /// no_host_memory, limit_exceeded: nothing more can be pinned, after waiting for freed memory.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{64}) const;
  /// Work queued on `stream` so far may still use the block. Errors go to the error handler.
  void deallocate(void* pointer, const stream_ref& stream) const noexcept;
  /// The same, with the error as a result.
  result<void> try_deallocate(void* pointer, const stream_ref& stream) const;
  /// The same on the streams that the block was allocated and recorded for.
  result<void> try_deallocate(void* pointer) const;
  /// Work queued on `stream` until the block is freed may use it, too. `pointer` may lie anywhere
  /// in a live block.
  result<void> record_stream(const void* pointer, const stream_ref& stream) const;
  /// `stream` will not be used any more. Needed before a stream is destroyed that is not a
  /// weir::stream.
  result<void> release_stream(const stream_ref& stream) const;
  /// Whether `pointer` lies in a live block.
  [[nodiscard]] bool owns(const void* pointer) const;

  /// Pins memory until `size` bytes are free, in segments of at most 1 GiB. With host_wait::no the
  /// helper threads do it, and errors go to the error handler.
  result<void> reserve(bytes size, host_wait wait = host_wait::yes) const;
  /// Gives idle segments back to the system, the longest idle first, until at most `keep` bytes are
  /// pinned. Waits for the devices as the driver does, not for freed blocks. Returns how much it
  /// was.
  result<bytes> trim(bytes keep = {}) const;
  /// The same for all that is idle once the freed blocks are, for which it waits.
  result<bytes> empty_cache() const;
  /// From now on at most so much is pinned; what is idle above it is given back.
  result<void> set_limit(bytes limit) const;
  /// The most that is pinned.
  [[nodiscard]] bytes limit() const;

  /// Whose NUMA node the memory is on; every device of the runtime reaches it.
  [[nodiscard]] weir::device device() const;
  /// The counters, of one moment.
  [[nodiscard]] host_arena_stats stats() const;
  /// Every peak becomes the current value.
  void reset_peaks() const;
  /// Every segment with its blocks, of one moment.
  [[nodiscard]] host_snapshot snapshot() const;
  /// The sink receives allocate, deallocate, record_stream, reserve, release, limit and
  /// out_of_memory events (weir/observe/events.hpp) until remove_observer(); with the arena's lock
  /// held. It must outlive its registration.
  result<void> add_observer(event_sink& sink) const;
  /// The sink receives nothing from here on.
  void remove_observer(event_sink& sink) const noexcept;

  /// Ends the arena: it serves no more requests. Idle memory is unpinned after waiting for the
  /// freed blocks; live blocks stay good until they are freed.
  result<void> close() const;

  /// Whether the handle means an arena: it was not moved from.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  friend bool operator==(const host_arena&, const host_arena&) noexcept = default;

 private:
  explicit host_arena(std::shared_ptr<host::arena> state) noexcept : state_{std::move(state)} {}

  std::shared_ptr<host::arena> state_;
};

}}  // namespace weir::v0

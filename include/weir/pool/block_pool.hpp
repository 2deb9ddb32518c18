// SPDX-License-Identifier: Apache-2.0
// What the pools have in common that cache freed blocks for the next request of their size.
//
// bin_pool hands out device memory this way, pinned_pool pinned host memory; buffer_pool is made of
// the same. docs/pools.md tells when to use which.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/options.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/cuda_mr_calls.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/stats.hpp"
#include "weir/pool/memory_owner.hpp"

namespace weir { inline namespace v0 {

namespace pools {
class block_cache;
}

struct block_pool_options {
  /// How much freed memory is cached; the default caches all of it. See
  /// block_pool::set_threshold().
  bytes threshold = bytes::max();
  /// What must be done before a cached block goes to another stream, or back to the driver.
  crossing_rule crossing = crossing_rule::all_work;
};

/// What a pool holds, of one moment.
///
/// requested <= allocated; allocated + cached <= reserved (equal unless memory is just on its way
/// to the driver); pending <= cached; allocations == hits + misses; blocks.current is what it was
/// at the last reset_counters(), 0 if there was none, + allocations - frees.
struct block_pool_stats {
  byte_gauge requested;  ///< what users asked for and have not freed
  byte_gauge allocated;  ///< the same, rounded to whole blocks
  byte_gauge reserved;   ///< taken from the driver, or from the upstream
  gauge blocks;          ///< live ones

  bytes cached{};   ///< freed, and not given to anybody again
  bytes pending{};  ///< of cached: waits for recorded streams

  // Since the pool was made or reset_counters() was last called.
  std::uint64_t allocations = 0;  ///< successful ones, of more than zero bytes
  std::uint64_t frees = 0;
  std::uint64_t hits = 0;      ///< allocations served by a cached block
  std::uint64_t misses = 0;    ///< allocations for which the driver was asked
  std::uint64_t failures = 0;  ///< requests that ended out of memory
  std::uint64_t waits = 0;     ///< queued on a stream so that it could reuse memory
  std::uint64_t events = 0;    ///< recorded to know when memory is free for others

  friend bool operator==(const block_pool_stats&, const block_pool_stats&) = default;
};

/// "requested 4 KiB (peak 8 KiB), …, hits 3, …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const block_pool_stats& stats);

/// Blocks by size, for any thread and any stream of one device. Made as a bin_pool or pinned_pool.
///
/// **Sizes.** A request is rounded up to one of 8 sizes per power of two, and to 512 bytes at
/// least: less than 12.5 % + 512 B are wasted. An alignment above 256 costs up to that much more.
///
/// **Order.** allocate(size, s) returns memory that work queued on s from now on may use, and
/// deallocate(p, s) says that work queued on s so far may still use it. A cached block goes to s at
/// once, to another stream only when all work is done that was queued on any known stream of the
/// device (weir/device/stream_watch.hpp) when it was freed; with crossing_rule::declared_uses, only
/// that of s and of the recorded streams. Streams of other devices count if they are recorded. If
/// the driver has no memory left, a block of that size may also go to another stream behind a wait
/// queued there. pinned_pool waits for its own stream as well, since the host is nobody's stream.
///
/// **Cost.** A hit costs a lock and no driver call if the stream's own block is there and the
/// reference knows its id (a weir::stream, stream_ref::identified(), the legacy stream). A miss
/// asks the driver, outside the lock. A free makes no driver call; one event on each stream,
/// recorded when another one could use the memory, closes all frees before it.
///
/// **Cache.** Freed memory is cached up to the threshold. What is over it is released to the
/// driver, the longest unused first, with requests, which take what the streams have completed by
/// then and wait for nothing; never with a free. A request that the driver refuses for want of
/// memory releases all that is cached, if need be after waiting for the streams, and is tried
/// again; only then is it out_of_memory.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr; buffers hold one, too. With
/// the last handle all memory is released; blocks still live then are reported to the error handler
/// (errc::still_live, with count and bytes).
///
/// **Captures** are not noticed. Memory that a graph uses must stay allocated for as long as the
/// graph is launched, and be freed on a stream that is not being captured.
///
/// **Bad input.** Zero bytes give null, and freeing null does nothing. A size that cannot be
/// rounded is size_overflow; an alignment that is no power of two or above 2 MiB is bad_alignment;
/// a pointer that is not the start of a block of this pool is foreign_pointer; a block freed twice
/// is double_free; an allocation on a stream of another device is bad_stream, but for a
/// pinned_pool; so is any stream of another runtime, and the per-thread default stream of another
/// device. A pool that was closed is closed, a handle that was moved from is moved_from: calls that
/// return no result throw it (weir::failure).
class WEIR_API block_pool : public cuda_mr_calls<block_pool> {
 public:
  /// Throws out_of_memory or failure. Aligned to default_alignment at least.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const {
    return try_allocate(size, stream, alignment).value();
  }
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;

  // cuda::mr's, which weir/resource/cuda_mr.hpp defines.
  using cuda_mr_calls::allocate;
  using cuda_mr_calls::deallocate;

  /// What is wrong goes to the error handler. Without a stream: the one it was allocated for, which
  /// may be gone if it was a weir::stream. With one of another device: as record_stream() and a
  /// free on the stream it was allocated for. The form with a size also checks that it is the size
  /// that was asked for (invalid_argument; the block is freed all the same).
  void deallocate(void* pointer, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer) const noexcept;
  result<void> try_deallocate(void* pointer, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer) const;

  /// Work queued on `stream` until the block is freed may use it, too: it will not be reused before
  /// that work is done. Recording twice is recording once. No driver call for a weir::stream. One
  /// of another device of the runtime costs an event when the block is freed.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  /// `stream` will not be used any more. Must be called before a stream is destroyed that is not a
  /// weir::stream (which does it by itself): the driver does not survive being asked about a stream
  /// that is gone.
  result<void> release_stream(const stream_ref& stream) const;

  /// Whether the handle means a pool: it was not moved from.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  [[nodiscard]] weir::device device() const;
  /// The size of the block that a request of `size` bytes gets. size_overflow: there is none.
  [[nodiscard]] static result<bytes> rounded_size(bytes size);

  [[nodiscard]] block_pool_stats stats() const;
  /// Every peak becomes the current value.
  void reset_peaks() const;
  /// Every count since the pool was made becomes 0; what is live, cached and reserved stays.
  void reset_counters() const;

  /// Releases cached blocks that nothing uses any more to the driver, the longest unused first,
  /// until at most `keep` bytes are reserved, and what is over the threshold in any case. Waits for
  /// nothing: what streams may still use stays. Returns how much was released; on failure the
  /// blocks that the driver did not take are cached as before.
  result<bytes> trim(bytes keep = {}) const;
  /// The same for all that is cached, after waiting for the streams.
  result<bytes> empty_cache() const;
  /// From now on at most so much is cached. What is over it is released at once, after waiting for
  /// the streams.
  result<void> set_threshold(bytes limit) const;
  [[nodiscard]] bytes threshold() const;
  /// Ends the pool: it serves no more requests and caches nothing. Blocks that are live stay good,
  /// and go to the driver when they are freed. Such a free waits for the work that was queued by
  /// then on all known streams of the device; with crossing_rule::declared_uses, on the streams
  /// that use the block. The driver, unlike a memory_source, also waits for all work of the device.
  /// What goes wrong there goes to the error handler.
  result<void> close() const;

  friend bool operator==(const block_pool&, const block_pool&) noexcept = default;

 protected:
  friend class pooled_memory;
  explicit block_pool(std::shared_ptr<pools::block_cache> state) noexcept
      : state_{std::move(state)} {}
  ~block_pool() = default;
  block_pool(const block_pool&) = default;
  block_pool(block_pool&&) = default;
  block_pool& operator=(const block_pool&) = default;
  block_pool& operator=(block_pool&&) = default;

  std::shared_ptr<pools::block_cache> state_;
};

/// "pool of device 0: requested 1 MiB (peak 2 MiB), reserved …, cached …".
[[nodiscard]] WEIR_API std::string to_string(const block_pool& pool);

}}  // namespace weir::v0

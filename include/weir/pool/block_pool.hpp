// SPDX-License-Identifier: Apache-2.0
// block_pool: the common base of pools that cache freed blocks for the next request of their size.
//
// bin_pool serves device memory, pinned_pool pinned host memory; buffer_pool uses the same parts.
// docs/pools.md explains when to use which.
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

/// The choices of a bin_pool or pinned_pool.
struct block_pool_options {
  /// How much freed memory is cached; the default caches all of it. See
  /// block_pool::set_threshold().
  bytes threshold = bytes::max();
  /// Which work must be complete before a cached block goes to another stream, or to the driver.
  crossing_rule crossing = crossing_rule::all_work;
};

/// The counters of a pool, as a consistent snapshot.
///
/// Always: requested <= allocated; allocated + cached <= reserved (equal unless memory is being
/// released to the driver); pending <= cached; allocations == hits + misses. blocks.current is its
/// value at the last reset_counters() (0 without one) + allocations - frees.
struct block_pool_stats {
  byte_gauge requested;  ///< requested and not freed
  byte_gauge allocated;  ///< the same, rounded to whole blocks
  byte_gauge reserved;   ///< taken from the driver, or from the upstream
  gauge blocks;          ///< live blocks

  bytes cached{};   ///< freed and not allocated again
  bytes pending{};  ///< of cached: waits for recorded streams

  // Since the pool was created or reset_counters() was last called.
  std::uint64_t allocations = 0;  ///< successful ones, of more than zero bytes
  std::uint64_t frees = 0;        ///< successful ones, of more than zero bytes
  std::uint64_t hits = 0;         ///< allocations served by a cached block
  std::uint64_t misses = 0;       ///< allocations served by the driver or the upstream
  std::uint64_t failures = 0;     ///< requests that ended out of memory
  std::uint64_t waits = 0;        ///< queued on a stream so that it could reuse memory
  std::uint64_t events = 0;       ///< recorded to know when memory is free for others

  friend bool operator==(const block_pool_stats&, const block_pool_stats&) = default;
};

/// "requested 4 KiB (peak 8 KiB), …, hits 3, …": every member, on one line.
[[nodiscard]] WEIR_API std::string to_string(const block_pool_stats& stats);

/// Blocks by size, for any thread and any stream of one device. Created as bin_pool or pinned_pool.
///
/// **Sizes.** A request is rounded up to one of 8 sizes per power of two, and to at least 512
/// bytes: less than 12.5 % + 512 B are wasted. An alignment above 256 wastes up to its own size
/// more.
///
/// **Order.** allocate(size, s) returns memory that work queued on s from now on may use. After
/// deallocate(p, s), work queued on s so far may still use it. A cached block can go to s at once.
/// It goes to another stream only when all work is complete that was queued on any known stream of
/// the device (weir/device/stream_watch.hpp) at the time of the free; with
/// crossing_rule::declared_uses, only that of s and of recorded streams. Streams of other devices
/// count if they are recorded. If the driver is out of memory, a block may also go to another
/// stream behind a wait queued there. pinned_pool also waits for the stream of the free, because
/// the host follows no stream's order.
///
/// **Cost.** A hit on a block of the same stream costs a lock and no driver call, if the reference
/// knows its id (a weir::stream, stream_ref::identified(), the legacy stream). A miss calls the
/// driver, outside the lock. A free makes no driver call. When another stream could use the memory,
/// one event on each stream marks all frees before it.
///
/// **Cache.** Freed memory is cached up to the threshold. Requests, not frees, release memory above
/// it to the driver, the longest unused first; they release only idle memory and do not wait. If
/// the driver is out of memory, the request releases all cached memory, if necessary after waiting
/// for the streams, and is tried again before it fails with out_of_memory.
///
/// **Ownership.** A shared handle, as cheap to copy as a shared_ptr; buffers hold one, too. The end
/// of the last handle releases all memory; live blocks are reported to the error handler
/// (errc::still_live, with count and bytes).
///
/// **Captures** are not noticed. Memory that a graph uses must stay allocated while the graph can
/// be launched, and must be freed on a stream that is not being captured.
///
/// **Bad input.** Zero bytes give null, and freeing null does nothing. size_overflow: the size
/// cannot be rounded; bad_alignment: the alignment is not a power of two or is above 2 MiB;
/// foreign_pointer: the pointer is not the start of a block of this pool; double_free: the block
/// was already freed; bad_stream: an allocation on a stream of another device (allowed for a
/// pinned_pool), a stream of another runtime, or the per-thread default stream of another device;
/// closed: the pool is closed; moved_from: the handle was moved from. Calls that return no result
/// throw the last two (weir::failure).
class WEIR_API block_pool : public cuda_mr_calls<block_pool> {
 public:
  /// Memory of at least `size` bytes, aligned to at least default_alignment. The first form throws
  /// out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const {
    return try_allocate(size, stream, alignment).value();
  }
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;

  // cuda::mr's, which weir/resource/cuda_mr.hpp defines.
  using cuda_mr_calls::allocate;
  using cuda_mr_calls::deallocate;

  /// Frees a block. Errors of the first forms go to the error handler. Without a stream: the one it
  /// was allocated for, which may be destroyed if it was a weir::stream. A stream of another device
  /// has the effect of record_stream() and a free on the allocating stream. The form with a size
  /// also checks that it is the requested size (invalid_argument; the block is freed anyway).
  void deallocate(void* pointer, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  void deallocate(void* pointer) const noexcept;
  result<void> try_deallocate(void* pointer, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;
  result<void> try_deallocate(void* pointer) const;

  /// Declares that work queued on `stream` until the free may use the block, too. The block is not
  /// reused before that work is complete. Idempotent. No driver call for a weir::stream. A stream
  /// of another device of the runtime costs an event at the free.
  result<void> record_stream(void* pointer, const stream_ref& stream) const;
  /// Declares that `stream` will not be used any more. Call it before a stream is destroyed,
  /// because querying a destroyed stream crashes the driver. A weir::stream does it by itself.
  result<void> release_stream(const stream_ref& stream) const;

  /// Whether the handle refers to a pool: it was not moved from.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  /// The device that the pool was created for.
  [[nodiscard]] weir::device device() const;
  /// The size of the block that a request of `size` bytes gets. size_overflow: it does not fit.
  [[nodiscard]] static result<bytes> rounded_size(bytes size);

  /// The counters of the pool, as a consistent snapshot.
  [[nodiscard]] block_pool_stats stats() const;
  /// Sets every peak to the current value.
  void reset_peaks() const;
  /// Sets the counters since creation to 0; live, cached and reserved memory is unchanged.
  void reset_counters() const;

  /// Releases idle cached blocks to the driver, the longest unused first, until at most `keep`
  /// bytes are reserved, and always those above the threshold. Does not wait: blocks that streams
  /// may still use stay. Returns how much was released. After a failure, blocks that the driver did
  /// not take are still cached.
  result<bytes> trim(bytes keep = {}) const;
  /// Waits for the streams, then releases all cached memory. Returns how much.
  result<bytes> empty_cache() const;
  /// Limits the cached memory. Memory above the limit is released at once, after waiting for the
  /// streams.
  result<void> set_threshold(bytes limit) const;
  /// How much freed memory is cached at most.
  [[nodiscard]] bytes threshold() const;
  /// Ends the pool: it serves no more requests and caches nothing. Live blocks stay valid and are
  /// released to the driver when they are freed. Such a free waits for the work queued by then on
  /// all known streams of the device; with crossing_rule::declared_uses, only on the streams that
  /// use the block. The driver, unlike a memory_source, also waits for all work of the device.
  /// Failures of such frees go to the error handler.
  result<void> close() const;

  friend bool operator==(const block_pool&, const block_pool&) noexcept = default;

 protected:
  friend class pooled_memory;
  /// For the derived pools: a handle of this state.
  explicit block_pool(std::shared_ptr<pools::block_cache> state) noexcept
      : state_{std::move(state)} {}
  ~block_pool() = default;
  block_pool(const block_pool&) = default;
  block_pool(block_pool&&) = default;
  block_pool& operator=(const block_pool&) = default;
  block_pool& operator=(block_pool&&) = default;

  std::shared_ptr<pools::block_cache> state_;  ///< shared by all handles; null if moved from
};

/// "pool of device 0: requested 1 MiB (peak 2 MiB), reserved …, cached …".
[[nodiscard]] WEIR_API std::string to_string(const block_pool& pool);

}}  // namespace weir::v0

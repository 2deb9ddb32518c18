// SPDX-License-Identifier: Apache-2.0
// weir::memory_pool: a private pool of an allocator. weir::pool_scope: sends a thread's requests to
// a pool. Created by caching_allocator::create_pool().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "weir/allocator/snapshot.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/result.hpp"
#include "weir/device/memory_source.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 {

/// The unit of a caching_allocator and its pools: sizes are rounded up to it, and memory is aligned
/// to at least it.
inline constexpr bytes allocator_granularity{512};

/// The rules of PyTorch's segments, which pools with `segments` and the classic policies follow.
namespace segment_rules {

inline constexpr bytes small_request{std::uint64_t{1}
                                     << 20};  ///< requests up to this size use small segments
inline constexpr bytes small_segment{std::uint64_t{2}
                                     << 20};  ///< the size of segments for small requests
inline constexpr bytes large_segment{std::uint64_t{20}
                                     << 20};  ///< the size of segments for larger requests
inline constexpr bytes own_segment_from{
    std::uint64_t{10} << 20};  ///< requests from this size on have a segment of their own
inline constexpr bytes own_segment_unit{
    std::uint64_t{2} << 20};  ///< segments for one request are rounded up to this unit

}  // namespace segment_rules

/// The size of the segment that a request of `size` bytes takes if it fits in no existing one; 0
/// for a request of 0. size_overflow: the size cannot be rounded.
[[nodiscard]] WEIR_API result<bytes> segment_size(bytes size);

namespace heap {
class central_heap;
class pool;
}  // namespace heap

/// The choices of a private pool, with their defaults.
struct pool_options {
  /// Blocks of the pool can be shared with other processes (weir/share/session.hpp). Its memory
  /// comes in handles of one granularity (2 MiB), so that a block can be shared without its
  /// neighbours; each handle costs a driver call. Needs virtual memory and descriptors under every
  /// policy.
  bool exportable = false;
  /// For captured graphs, which replay at the addresses they were captured with. While a handle of
  /// the pool exists, its physical memory is neither moved nor released, and memory freed by a
  /// stream is reused by that stream alone, at once. Requests make no call that invalidates a
  /// capture of any thread or mode; on a stream that is being captured they neither record nor
  /// query events. docs/allocator.md, "For frameworks".
  bool for_graphs = false;
  /// The pool's memory comes in PyTorch's segments instead of an arena, under every policy: 2 MiB
  /// for requests of at most 1 MiB, 20 MiB for larger ones, and from 10 MiB on the requested size
  /// in multiples of 2 MiB. A segment serves one stream, a block lies in one segment, and a segment
  /// is released when all of it is free. For code that relies on this, or that registers segments
  /// elsewhere.
  bool segments = false;
  /// Segments are not split. A request gets the smallest free segment that fits, or a new one of
  /// the size above; the rest of it stays unused. Alignments above 512 are not_supported.
  bool one_block_per_segment = false;
  /// The source of the segments; null: the driver. Cannot be combined with `exportable`.
  std::shared_ptr<memory_source> source{};
  /// For pools that will be suspended: its handles are large, and it may be evictable. Every pool
  /// that is not in segments can be suspended without it. weir/allocator/suspend.hpp.
  std::optional<suspendable_options> suspendable{};

  /// Whether the pool is in segments: requested, or implied by one_block_per_segment or source.
  [[nodiscard]] bool in_segments() const noexcept {
    return segments || one_block_per_segment || source;
  }
};

/// A private pool of an allocator: memory freed to it is reused by it alone.
///
/// A shared handle, as cheap to copy as a shared_ptr; empty if default-constructed. When the last
/// handle ends, the pool takes no more requests; its physical memory is released when its last
/// block is freed and the streams have completed their work on it. Thread-safe. Calls through an
/// empty handle return moved_from, calls after the end of the allocator closed; calls that return
/// no result throw that (weir::failure).
class WEIR_API memory_pool {
 public:
  memory_pool() noexcept = default;
  /// Whether the handle refers to a pool.
  explicit operator bool() const noexcept { return state_ != nullptr; }
  /// The number of the pool in its allocator, as in snapshots and events.
  [[nodiscard]] pool_id id() const;
  /// The name that create_pool() was given.
  [[nodiscard]] std::string_view name() const;
  /// The counters of this pool, as caching_allocator::stats().
  [[nodiscard]] memory_stats stats() const;

  /// As caching_allocator::allocate(), from this pool. Pools do not use thread caches.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const;
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;

  /// A block at exactly this address, to restore the state of a snapshot. Only from memory that the
  /// pool has free for the stream; no driver call, no move, allowed in a capture. foreign_pointer:
  /// the pool has no memory there; not_ready: part of it is in use, by a block or by work of
  /// another stream; bad_alignment: the address is not a multiple of 512; not_supported: the pool
  /// has expandable classic segments.
  [[nodiscard]] result<void*> allocate_at(void* address, bytes size,
                                          const stream_ref& stream) const;

  /// The physical handles under a live block of an exportable pool. They stay there, and belong to
  /// the pool, until the block is freed. foreign_pointer: the block belongs to another pool;
  /// not_supported: the pool is not exportable.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer) const;

  /// Waits for the streams and releases the free memory of this pool; returns how much. For a pool
  /// for graphs, the caller guarantees that no graph that uses the free memory will be replayed;
  /// memory freed by a capture in progress stays. The pool of a graph_memory, which knows its
  /// graphs, releases nothing.
  result<bytes> empty_cache() const;
  /// While set, a request to the allocator's default pool that gets no new memory is served from
  /// memory that this pool has free for its stream, before cached memory is released. The block
  /// belongs to this pool. Requests to other pools are not affected. Ends with the last handle.
  result<void> set_fallback(bool value) const;
  /// As caching_allocator::suspend() and resume(), for this pool.
  result<suspend_outcome> suspend(const suspend_options& options = {}) const;
  result<resume_outcome> resume(const resume_options& options = {}) const;
  /// As caching_allocator::suspend_async() and resume_async(), for this pool.
  result<void> suspend_async(const suspend_options& options = {}) const;
  result<resume_outcome> resume_async(const stream_ref& stream) const;
  /// Whether the pool's physical memory was returned to the driver by suspend().
  [[nodiscard]] bool is_suspended() const;
  /// The blocks and physical memory of this pool, as a consistent snapshot.
  [[nodiscard]] pool_snapshot snapshot() const;

 private:
  friend class caching_allocator;
  friend class graph_memory;
  friend class pool_scope;
  friend class heap::central_heap;
  explicit memory_pool(std::shared_ptr<heap::pool> state) noexcept : state_{std::move(state)} {}

  std::shared_ptr<heap::pool> state_;
};

/// Directs this thread's requests from the pool's allocator to the pool until the end of the scope.
/// Scopes nest: of several for one allocator the innermost applies. Scopes of other allocators, and
/// of empty handles, have no effect. Must end on the thread and in the block that created it.
class WEIR_API pool_scope {
 public:
  /// Requests of this thread go to `pool` from here on.
  [[nodiscard]] explicit pool_scope(memory_pool pool) noexcept;
  ~pool_scope();
  pool_scope(const pool_scope&) = delete;
  pool_scope& operator=(const pool_scope&) = delete;

 private:
  friend class heap::central_heap;

  memory_pool pool_;
  const pool_scope* outer_;
};

}}  // namespace weir::v0

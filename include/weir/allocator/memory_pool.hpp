// SPDX-License-Identifier: Apache-2.0
// weir::memory_pool: memory of an allocator that is kept apart, and weir::pool_scope, which sends a
// thread's requests there. Made by caching_allocator::create_pool().
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

/// Sizes of a caching_allocator and of its pools are rounded up to it, and their memory is at least
/// so aligned.
inline constexpr bytes allocator_granularity{512};

/// The rules of PyTorch's segments, which pools with `segments` and the classic policies follow.
namespace segment_rules {

inline constexpr bytes small_request{std::uint64_t{1} << 20};      ///< and less: small segments
inline constexpr bytes small_segment{std::uint64_t{2} << 20};      ///< for small requests
inline constexpr bytes large_segment{std::uint64_t{20} << 20};     ///< for larger ones
inline constexpr bytes own_segment_from{std::uint64_t{10} << 20};  ///< such a request has its own
inline constexpr bytes own_segment_unit{std::uint64_t{2} << 20};   ///< to which that is rounded

}  // namespace segment_rules

/// The size of the segment that a request of `size` bytes needs where no segment has room for it.
/// size_overflow: there is none; a size of 0 needs none.
[[nodiscard]] WEIR_API result<bytes> segment_size(bytes size);

namespace heap {
class central_heap;
class pool;
}  // namespace heap

struct pool_options {
  /// Blocks of the pool can be shared with other processes (weir/share/session.hpp). Its memory
  /// comes in handles of one granularity (2 MiB), so that a block can be given away without its
  /// neighbours; that costs a driver call each. Needs virtual memory and descriptors, whatever the
  /// policy.
  bool exportable = false;
  /// For captured graphs of whoever holds the pool, which replay at the addresses they were
  /// captured with. While a handle of the pool lives its physical memory neither moves nor goes
  /// back, and what a stream freed serves that stream alone, at once. Requests make no call that
  /// harms a capture, whoever captures in whatever mode; on a stream that is being captured they
  /// neither record events nor ask for any. docs/allocator.md, "For frameworks".
  bool for_graphs = false;
  /// The pool's memory comes in PyTorch's segments instead of an arena, whatever the policy: 2 MiB
  /// for requests of at most 1 MiB, 20 MiB for larger ones, and from 10 MiB on what is asked for,
  /// in multiples of 2 MiB. A segment serves one stream; blocks lie in one segment each, and a
  /// segment goes back when all of it is free. For who counts on that, or registers segments
  /// elsewhere.
  bool segments = false;
  /// Segments are not divided. A request gets one of its own, of the size above, or the smallest
  /// free one that holds it, and wastes the rest. Alignments above 512 are not_supported.
  bool one_block_per_segment = false;
  /// Where the segments come from; null: from the driver. Not together with `exportable`.
  std::shared_ptr<memory_source> source{};
  /// The pool is going to be suspended: its handles are large, and it may be evictable. Every pool
  /// that is no segments can be suspended without. weir/allocator/suspend.hpp.
  std::optional<suspendable_options> suspendable{};

  /// Whether the pool has segments: asked for, or because one_block_per_segment or source needs
  /// them.
  [[nodiscard]] bool in_segments() const noexcept {
    return segments || one_block_per_segment || source;
  }
};

/// Memory of an allocator that is kept apart: what is freed to it is reused by it alone.
///
/// A shared handle, as cheap to copy as a shared_ptr; empty if default-made. When the last handle
/// is gone the pool takes no requests; its physical memory is released when its last block is freed
/// and the streams have passed it. Any thread. An empty handle answers moved_from, one whose
/// allocator is gone closed; calls that return no result throw that (weir::failure).
class WEIR_API memory_pool {
 public:
  memory_pool() noexcept = default;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  [[nodiscard]] pool_id id() const;
  [[nodiscard]] std::string_view name() const;
  [[nodiscard]] memory_stats stats() const;

  /// As caching_allocator::allocate, from this pool. A pool makes no use of thread caches.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const;
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;

  /// A block at exactly that address, for restoring a state that a snapshot showed. Made of memory
  /// that the pool has free for the stream; no driver call, no move, legal in a capture.
  /// foreign_pointer: the pool has no memory there; not_ready: something there is in use, by a
  /// block or by work of another stream; bad_alignment: the address is no multiple of 512;
  /// not_supported: a pool made of expandable classic segments.
  [[nodiscard]] result<void*> allocate_at(void* address, bytes size,
                                          const stream_ref& stream) const;

  /// What lies under a live block of an exportable pool. It stays there, and is the pool's, until
  /// the block is freed. foreign_pointer: the block is of another pool; not_supported: the pool is
  /// not exportable.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer) const;

  /// Waits for the streams and releases what is free in this pool; returns how much. Of a
  /// pool for graphs, to call this is to say that no graph will be replayed any more that uses
  /// the free part; what a capture that is under way freed stays. The pool of a graph_memory, which
  /// knows its graphs, gives nothing back.
  result<bytes> empty_cache() const;
  /// While set, a request to the allocator itself for which no new memory is to be had is given
  /// what this pool has free for its stream, before anything that is cached is released. The block
  /// is the pool's. Not for requests to other pools. Ends with the pool's last handle.
  result<void> set_fallback(bool value) const;
  /// As caching_allocator::suspend(), of this pool.
  result<suspend_outcome> suspend(const suspend_options& options = {}) const;
  result<resume_outcome> resume(const resume_options& options = {}) const;
  /// As caching_allocator::suspend_async(), of this pool.
  result<void> suspend_async(const suspend_options& options = {}) const;
  result<resume_outcome> resume_async(const stream_ref& stream) const;
  [[nodiscard]] bool is_suspended() const;
  /// Of one moment, as caching_allocator::snapshot().
  [[nodiscard]] pool_snapshot snapshot() const;

 private:
  friend class caching_allocator;
  friend class graph_memory;
  friend class pool_scope;
  friend class heap::central_heap;
  explicit memory_pool(std::shared_ptr<heap::pool> state) noexcept : state_{std::move(state)} {}

  std::shared_ptr<heap::pool> state_;
};

/// Sends this thread's requests to the pool's allocator to the pool, until the end of the scope.
/// Scopes nest: of several for one allocator the innermost counts; those of other allocators, and
/// the scope of an empty handle, change nothing. Stays on the thread and in the block where it was
/// made.
class WEIR_API pool_scope {
 public:
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

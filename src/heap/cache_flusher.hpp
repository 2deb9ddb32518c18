// SPDX-License-Identifier: Apache-2.0
// Thread caches with the heap's lock: flushing them to the stores, and adding up what they counted.
#pragma once

#include <array>
#include <cstddef>

#include "heap/heap_core.hpp"
#include "heap/thread_cache.hpp"
#include "heap/vocabulary.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What a cache_flusher asks of the heap. Implemented by the central heap. Called with the heap's
/// lock.
class cache_flusher_host {
 public:
  /// A freed block that is in no cache any more goes to the store of its pool.
  virtual void free_to_store(block_index index, stamp freed) noexcept = 0;
  /// The block was freed by another thread after its home's owner had freed it. That call has
  /// returned success.
  virtual void report_second_free(const block& block) noexcept = 0;

 protected:
  ~cache_flusher_host() = default;
};

/// Moves freed blocks between the threads' caches and the stores, and what the caches counted into
/// the accounts of the heap.
///
/// Peaks are exact for one thread because of two rules. Before a central figure falls, the peaks
/// are raised to the most that the thread's cache counted (raise_peaks). Before one rises, the
/// cache is folded in, so that its most is not added to what was not live at the time (fold).
///
/// Owned by the central heap. The caller holds the heap's lock. A cache that a function is given is
/// the calling thread's own, or its owner is stopped (thread_caches::stop). No function fails or
/// makes a driver call. The cost is that of a walk over the blocks that leave.
class cache_flusher {
 public:
  cache_flusher(heap_core& core, cache_flusher_host& host) noexcept : core_{core}, host_{host} {}
  cache_flusher(const cache_flusher&) = delete;
  cache_flusher& operator=(const cache_flusher&) = delete;

  // --- What caches counted ----------------------------------------------------------------------

  /// Raises the peaks to what was live when the cache's owner had most of what it has counted.
  void raise_peaks(const thread_cache& cache) noexcept;
  /// The same for the calling thread's cache, if it has one.
  void raise_own_peaks() noexcept;
  /// Moves what the cache counted into the accounts.
  void fold(thread_cache& cache) noexcept;
  /// Every cache's counts, and what others left in it. All caches are stopped.
  void settle_caches() noexcept;

  // --- From caches to stores. Each counts what the cache counted. -------------------------------

  /// Everything that the cache has; true if that is anything.
  bool flush(thread_cache& cache) noexcept;
  /// The same for all caches, which are stopped.
  bool flush_all() noexcept;
  /// Stops, settles and flushes all caches.
  void flush_caches() noexcept;
  /// What the caches have of one stream, which they forget. Stops and settles them.
  void flush_stream(stream_slot slot) noexcept;
  void flush_large(thread_cache& cache) noexcept;
  void flush_unplaced(thread_cache& cache) noexcept;
  /// The cache's thread has ended: flushes everything and closes the cache to other threads.
  void close(thread_cache& cache) noexcept;

  // --- Which of several frees is the first ------------------------------------------------------

  /// Ends the life of a live block. False: another thread frees it, or has freed it.
  [[nodiscard]] bool begin_free(block_index index) noexcept;

  // --- Into caches ------------------------------------------------------------------------------

  /// Puts a freed block, counted as freed, into the cache; flushes what has to make way for it.
  /// False: there is no place for it.
  [[nodiscard]] bool keep(thread_cache& cache, block_index index, stream_slot slot,
                          stream_id id) noexcept;
  /// Sees to it that the allocator's own store can serve and take back what the stream uses without
  /// host memory; false where there is none.
  [[nodiscard]] bool prepare_store_for(stream_slot slot) noexcept;
  /// The cache's table of the stream; a new one may take the place of the one that was not used for
  /// longest. Null: none makes way (thread_cache::makes_way_for()), or no host memory.
  [[nodiscard]] stream_bins* ensure_bins(thread_cache& cache, stream_id id,
                                         stream_slot slot) noexcept;

 private:
  /// Lists on their way to the store, counted. What the first block of each will touch there is
  /// fetched when it is queued, to be here when its turn comes. They are flushed in the order they
  /// came.
  struct flush_queue {
    std::array<block_index, 8> heads{};
    std::size_t count = 0;
  };

  /// Blocks of a list by size, which are counted as freed.
  void flush_list(block_index head) noexcept WEIR_REQUIRES(core_.mutex_);
  /// Claimed blocks, which are not.
  void flush_given(block_index head) noexcept WEIR_REQUIRES(core_.mutex_);
  /// The cache whose owner may be writing the block's kind at this moment; null if no other thread
  /// can be.
  [[nodiscard]] thread_cache* writer_of(const block& block) const noexcept
      WEIR_REQUIRES(core_.mutex_);
  /// No thread has claimed the freed block any more; frees of others that came second are reported.
  void end_claims_on(const block& block) noexcept WEIR_REQUIRES(core_.mutex_);
  void flush_soon(block_index head, flush_queue& queue) noexcept WEIR_REQUIRES(core_.mutex_);
  void flush_queued(flush_queue& queue) noexcept WEIR_REQUIRES(core_.mutex_);
  void fetch_for_flush(const block& block) const noexcept WEIR_REQUIRES(core_.mutex_);
  void flush_bins(thread_cache& cache, stream_bins& bins) noexcept WEIR_REQUIRES(core_.mutex_);
  void flush_half(thread_cache& cache, stream_bins& newest) noexcept WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  cache_flusher_host& host_;
};

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// The central heap: what every thread of an allocator shares, and what its one lock guards.
//
// docs/allocator.md draws the way of a request and of a free through the files, with the lock that
// is held at each step, and says what each file holds. The parts of the heap share its state
// (heap_core); each has a header and a source of its name. Other components see the heap through
// heap_view. The words are explained in vocabulary.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/any_size.hpp"
#include "base/mutex.hpp"
#include "device/state.hpp"
#include "heap/cache_flusher.hpp"
#include "heap/capture_pools.hpp"
#include "heap/checked_frees.hpp"
#include "heap/graph_pools.hpp"
#include "heap/handle_lender.hpp"
#include "heap/heap_backup.hpp"
#include "heap/heap_callbacks.hpp"
#include "heap/heap_core.hpp"
#include "heap/heap_limits.hpp"
#include "heap/identified_stream.hpp"
#include "heap/inspector.hpp"
#include "heap/observer_registry.hpp"
#include "heap/peer_access.hpp"
#include "heap/pool_registry.hpp"
#include "heap/private_pools.hpp"
#include "heap/reclamation.hpp"
#include "heap/residency.hpp"
#include "heap/rung.hpp"
#include "heap/stream_progress.hpp"
#include "heap/thread_cache.hpp"
#include "heap/trimming.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir { inline namespace v0 { namespace heap {

using detail::any_size;
using order::driver_access;

/// Frees a block behind the work of the stream that it was allocated for.
struct allocation_stream {};

/// Everything a caching_allocator holds.
///
/// What the fast path reads is fixed from creation on, or its thread's own. Everything else is
/// guarded by `mutex_`; what another thread's cache holds is reached by stopping it as well
/// (thread_caches::stop).
///
/// Owned by the handles of users; pools, claims and threads refer to it weakly. Any thread may call
/// what is public. After close(), and in a forked child, no call touches anything.
class central_heap final : public std::enable_shared_from_this<central_heap>,
                           private heap_core,
                           private detail::stream_listener,
                           private cache_flusher_host,
                           private stream_progress_host,
                           private reclamation_host,
                           private inspector_host,
                           private peer_access_host,
                           private handle_lender_host,
                           private heap_limits_host,
                           private pool_registry_host,
                           private capture_pools_host,
                           private placement::unlocked_calls {
 public:
  [[nodiscard]] static result<std::shared_ptr<central_heap>> create(
      weir::device device, const allocator_options& options);
  /// The heap of an allocator, for tests and for the fast path of the C ABI.
  [[nodiscard]] static central_heap& of(const caching_allocator& allocator) noexcept {
    return *allocator.heap_;
  }
  central_heap(weir::device device, const allocator_options& options);
  ~central_heap() override;
  central_heap(const central_heap&) = delete;
  central_heap& operator=(const central_heap&) = delete;

  // --- Without the lock: fast_path.hpp, fast_path.cpp -------------------------------------------

  /// Memory of exactly that size from the calling thread's cache; null: the slower paths know.
  /// `reasons` is what the cache must ask attention for: nothing; or, for a second instance that
  /// emits what it does, that somebody observes.
  template <std::uint32_t reasons = 0>
  [[nodiscard]] void* fast_allocate(bytes size, const stream_ref& stream) noexcept;
  /// Whether the calling thread's cache took the block; if not, the slower paths do or say what is
  /// wrong. `Stream` is a stream_ref, or allocation_stream.
  template <std::uint32_t reasons = 0, class Stream>
  [[nodiscard]] bool fast_free(void* pointer, const Stream& stream) noexcept;

  /// The same for requests and frees above 1 MiB, of which a cache keeps one block, after the fast
  /// path left them undone. A free makes one atomic read-modify-write.
  [[nodiscard]] void* take_large(bytes size, const stream_ref& stream) noexcept;
  template <class Stream>
  [[nodiscard]] bool keep_large(void* pointer, const Stream& stream) noexcept;

  /// The same for what the fast paths left undone: other large blocks, streams other than the last,
  /// default streams, blocks of other threads, observers, limits. Then, with the lock, for requests
  /// that fit into free memory as it lies and frees that the cache has no room for. Makes no driver
  /// call.
  [[nodiscard]] void* allocate_without_driver(bytes size, const stream_ref& stream) noexcept
      WEIR_EXCLUDES(mutex_);
  [[nodiscard]] bool free_without_driver(void* pointer, const stream_ref* stream,
                                         bytes expected) noexcept WEIR_EXCLUDES(mutex_);

  // --- The slow paths: allocate.cpp, free.cpp ---------------------------------------------------

  /// From the pool, or where the request belongs if that is null.
  [[nodiscard]] result<void*> slow_allocate(bytes size, const stream_ref& stream, bytes alignment,
                                            const pool* from) WEIR_EXCLUDES(mutex_);
  /// A block of the pool at exactly that address.
  [[nodiscard]] result<void*> allocate_at(std::uint64_t address, bytes size,
                                          const stream_ref& stream, const pool& from)
      WEIR_EXCLUDES(mutex_);
  result<void> slow_free(void* pointer, const stream_ref* stream, bytes expected)
      WEIR_EXCLUDES(mutex_);
  result<void> record_stream(void* pointer, const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<bool> assume_joined(const void* freed) WEIR_EXCLUDES(mutex_);

  // --- Streams, threads and the heap itself: central_heap.cpp -----------------------------------

  [[nodiscard]] weir::device device() const noexcept { return device_; }
  result<void> release_stream(const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  /// Waits for all work that may use the memory and gives the memory back. What may still be in
  /// use because that wait failed is kept, and the error says how much.
  result<void> close() WEIR_EXCLUDES(mutex_);
  /// Expires when the heap, which is being destroyed, has told its last event.
  [[nodiscard]] std::weak_ptr<const void> events() const noexcept { return events_; }
  /// A weir::stream is about to be destroyed: from then on it cannot be asked.
  void stream_closing(const stream_ref& stream) noexcept override WEIR_EXCLUDES(mutex_);
  /// A thread is at its end: its cache is flushed.
  void thread_ended(thread_cache& cache) noexcept WEIR_EXCLUDES(mutex_);

  // --- Its parts --------------------------------------------------------------------------------

  /// Suspending pools and bringing them back.
  [[nodiscard]] heap::residency& residency() noexcept { return residency_; }
  /// Private pools: creating, sharing and ending them.
  [[nodiscard]] pool_registry& pools() noexcept { return pool_registry_; }
  /// Captures: declaring them, their pools, and the graphs that keep these.
  [[nodiscard]] capture_pools& captures() noexcept { return capture_pools_; }
  /// Releasing free memory to the driver.
  [[nodiscard]] heap::trimming& trimming() noexcept { return trimming_; }
  /// The host memory for what suspended pools contain.
  [[nodiscard]] heap_backup& backup() noexcept { return backup_; }
  /// How much it may reserve, and the shares of the card's budget.
  [[nodiscard]] heap_limits& limits() noexcept { return limits_; }
  /// The user's callbacks that may free memory.
  [[nodiscard]] heap_callbacks& callbacks() noexcept { return callbacks_; }
  /// Adding observers and removing them.
  [[nodiscard]] observer_registry& observation() noexcept { return observation_; }
  using heap_core::usable;
  /// Access of other devices to the memory.
  [[nodiscard]] peer_access& peers() noexcept { return peers_; }
  /// Lending whole handles to growable memory.
  [[nodiscard]] handle_lender& lender() noexcept { return lender_; }
  /// What the heap holds, and why it refused something.
  [[nodiscard]] inspector& inspection() noexcept { return inspector_; }
  /// How the latest requests went. For who knows that no other thread is inside: reading it takes
  /// no lock, or it would count itself.
  [[nodiscard]] const search_trail& trail() const noexcept WEIR_UNCHECKED_LOCKING { return trail_; }

 private:
  /// Where a request is to be met.
  struct destination {
    const pool* from = nullptr;  // null: where it belongs
    bool chosen_by_user = false;
    std::uint64_t address = 0;   // exactly there; 0: anywhere
    bool whole_handle = false;   // of the allocator's own memory, as handle_lender needs it
    bool only_free_now = false;  // errc::not_found rather than a search for room
  };

  // --- fast_path.hpp, fast_path.cpp. A stream of id 0 stands for the block's own. ---------------

  template <std::uint32_t reasons>
  [[nodiscard]] bool fast_path_is_open() const noexcept;
  [[nodiscard]] bool is_stream_of(const stream_bins& bins, const block& block,
                                  const stream_ref& stream) const noexcept;
  [[nodiscard]] bool is_stream_of(const stream_bins& bins, const block& block,
                                  allocation_stream stream) const noexcept;
  void emit_fast(const thread_cache& cache, memory_event_kind kind, const block& block,
                 std::uint64_t requested) const noexcept;
  [[nodiscard]] stream_id fast_id(const stream_ref& stream,
                                  const thread_cache& cache) const noexcept;
  void note_observer(const thread_cache& own) const noexcept;
  [[nodiscard]] void* cached_allocate(thread_cache& cache, bytes size, stream_id stream,
                                      std::uint32_t accepted) noexcept;
  [[nodiscard]] bool cached_free(thread_cache& cache, void* pointer, stream_id stream,
                                 bytes expected, std::uint32_t accepted) noexcept;
  [[nodiscard]] void* locked_fit(thread_cache& cache, bytes size, stream_id stream) noexcept
      WEIR_EXCLUDES(mutex_);
  [[nodiscard]] bool locked_free(thread_cache& cache, void* pointer, stream_id stream,
                                 bytes expected) noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] bool free_to_owner(thread_cache& cache, block_index index, stream_bins& bins,
                                   std::uint64_t address) noexcept;
  void flush_own_unplaced(thread_cache& own) noexcept WEIR_EXCLUDES(mutex_);
  /// Of blocks of the allocator's own pool, whose account is their tag's number.
  void emit_own(event_sink& sink, memory_event_kind kind, const block& block,
                stream_id stream) const noexcept;

  // --- central_heap.cpp -------------------------------------------------------------------------

  /// The parts of close(). `leaked`: set if there were live blocks.
  [[nodiscard]] result<void> release_all(std::optional<error>& leaked) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> wait_before_release(driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] error keep_memory(error reason, driver_access& driver) noexcept
      WEIR_REQUIRES(mutex_);
  /// Of stores: the driver waits for the device before it takes memory back.
  void call_unlocked(call made, void* argument) noexcept override WEIR_UNCHECKED_LOCKING;
  /// The pool that a pool_scope of the calling thread sends its requests to; null: none.
  [[nodiscard]] const pool* scoped_pool() const noexcept;
  /// The calling thread's cache, created by its first request; null where there is none.
  [[nodiscard]] thread_cache* local() WEIR_EXCLUDES(mutex_);
  /// The same, or null where a pool_scope sends the thread's requests elsewhere.
  [[nodiscard]] thread_cache* own_serving_cache() const noexcept {
    return this_thread.serial == serial_ ? this_thread.cache : nullptr;
  }

  // --- allocate.cpp -----------------------------------------------------------------------------

  [[nodiscard]] result<void*> allocate_locked(bytes size, const request& wanted,
                                              const identified_stream& stream,
                                              const destination& to,
                                              std::optional<capture_status> capturing)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<pool_state*> route(const pool* from) WEIR_REQUIRES(mutex_);
  /// A block of a store becomes live: it enters the table and the accounts.
  void enter_block(block& block, block_index index, bytes size, account_number account,
                   pool_state& from) noexcept WEIR_REQUIRES(mutex_);
  /// The same, and is told to observers. `cache` is its home, if it may have one.
  void hand_out(block_index index, bytes size, account_number account, pool_state& from,
                stream_id stream, thread_cache* cache) noexcept WEIR_REQUIRES(mutex_);
  /// From now on the cache counts what happens to the account, if the host has memory for that.
  void count_in(thread_cache& cache, account_number account) noexcept WEIR_REQUIRES(mutex_) {
    if (account >= cache.delta_count) [[unlikely]]
      count_more_in(cache, account);
  }
  void count_more_in(thread_cache& cache, account_number account) noexcept WEIR_REQUIRES(mutex_);
  void emit(memory_event_kind kind, const block& block, stream_id stream,
            account_number account) const noexcept WEIR_REQUIRES(mutex_) {
    if (placement_.observer != nullptr) [[unlikely]]
      emit_to_observer(kind, block, stream, account);
  }
  void emit_to_observer(memory_event_kind kind, const block& block, stream_id stream,
                        account_number account) const noexcept WEIR_REQUIRES(mutex_);

  // --- lend.cpp ---------------------------------------------------------------------------------

  [[nodiscard]] bool lends_handles() const override WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block_index> allocate_handle(bytes size, const identified_stream& stream,
                                                    const handle_source& from) override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> free_handle(std::uint64_t block,
                                         const identified_stream& stream) override
      WEIR_REQUIRES(mutex_);

  // --- free.cpp ---------------------------------------------------------------------------------

  [[nodiscard]] result<void> free_locked(void* pointer, const identified_stream* stream,
                                         bytes expected) WEIR_REQUIRES(mutex_);
  void free_recorded(block_index index, stream_slot slot, driver_access& driver) noexcept
      WEIR_REQUIRES(mutex_);

  /// All streams that the block waited for have completed: it leaves `pending`.
  void free_waited(block_index index, stamp freed) noexcept override WEIR_REQUIRES(mutex_);
  void free_to_store(block_index index, stamp freed) noexcept override WEIR_REQUIRES(mutex_);
  void report_second_free(const block& block) noexcept override WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block_index> find_live(const void* pointer) override WEIR_REQUIRES(mutex_);

  void record_use(block_index index, stream_slot slot, stream_id stream) override
      WEIR_REQUIRES(mutex_);

  // --- What several parts ask of the caches and of streams ---------------------------------------

  void settle_caches() noexcept override WEIR_REQUIRES(mutex_) { flusher_.settle_caches(); }
  [[nodiscard]] result<identified_stream> identify(const stream_ref& stream) override
      WEIR_EXCLUDES(mutex_) {
    return heap::identify(*this, stream, local());
  }

  // --- central_heap.cpp: which tags the caches may serve ----------------------------------------

  /// Whether the tag has a limit or a pool of its own, so that no thread's cache serves it.
  [[nodiscard]] bool is_apart(std::uint16_t tag) const noexcept WEIR_REQUIRES(mutex_);
  /// Tells the caches; inside a stop.
  void update_limits() noexcept override WEIR_REQUIRES(mutex_);

  // --- central_heap.cpp: what the inspector asks for ---------------------------------------------

  [[nodiscard]] const pool_state* suspendable_pool(tag tag) const noexcept override
      WEIR_REQUIRES(mutex_);

  search_trail trail_ WEIR_GUARDED_BY(mutex_);
  cache_flusher flusher_;
  stream_progress progress_;
  heap_callbacks callbacks_;
  heap_limits limits_;
  reclamation reclamation_;
  heap_backup backup_;
  suspended_peak suspended_peak_;
  heap::residency residency_;
  pool_registry pool_registry_;
  capture_pools capture_pools_;
  heap::trimming trimming_;
  inspector inspector_;
  observer_registry observation_;
  peer_access peers_;
  checked_frees checked_frees_;
  handle_lender lender_;
};

}}}  // namespace weir::v0::heap

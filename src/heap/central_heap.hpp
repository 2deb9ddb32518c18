// The central heap: what every thread of an allocator shares, and what its one lock guards.
//
// The way of a request and of a free, from the inline hit to the driver call. Left of the bar: the
// lock that is held. "own cache" is no lock: between enter() and leave() the calling thread alone
// uses its cache, and whoever wants to look into it stops its owner first.
//
//   caching_allocator::allocate                                             caching_allocator.cpp
//   own cache |  fast_allocate          same stream as last time, by size   fast_path.hpp
//             |  allocate_without_driver                                    fast_path.cpp
//   own cache |    cached_allocate      any stream of the thread, large     fast_path.cpp
//   mutex_    |    locked_fit           free memory as it lies              fast_path.cpp
//             |  slow_allocate          pools, captures, limits             allocate.cpp
//   mutex_    |    allocate_locked                                          allocate.cpp
//   mutex_    |      room_search::find_room    rung by rung                 room_search.cpp
//   mutex_    |        backing_store::fit, rearrange, grow, release         placement/arena*.cpp
//   mutex_    |          vmm::create, map, unmap: the driver                device/virtual_memory*
//   mutex_    |        reclaimer: flush, retire, sweep, wait                reclaim.cpp
//   none      |        the user's out-of-memory callbacks                   reclaim.cpp
//   mutex_    |      hand_out           table, accounts, event              allocate.cpp
//
//   caching_allocator::deallocate                                           caching_allocator.cpp
//   own cache |  fast_free              same stream as last time, by size   fast_path.hpp
//             |  free_without_driver                                        fast_path.cpp
//   own cache |    cached_free          any stream of the thread, large     fast_path.cpp
//   atomics   |      free_to_owner      into the cache it came from, some   fast_path.cpp
//             |                         at a time
//   mutex_    |    locked_free          the cache is full: flush half       fast_path.cpp
//             |  slow_free              recorded streams, private pools     free.cpp
//   mutex_    |    free_locked                                              free.cpp
//   mutex_    |      free_recorded      waits for the recorded streams      free.cpp
//   mutex_    |      free_checked       waits, and inspects (heap_debug)    checked_free.cpp
//   mutex_    |      free_to_store      stamped with the open epoch         free.cpp
//   mutex_    |        backing_store::free                                  placement/arena.cpp
//
// Words:
//   unit          512 bytes; sizes inside the heap count in units
//   block         a piece of address space with a record: live, cached, pending, a run or a hole
//   run           a free piece in a store: of one stream, or quiescent
//   epoch, stamp  a cut through time, the same for all streams; a stream and an epoch
//   completed     all work queued by the end of an epoch is done
//   quiescent     freed memory whose stamp is completed: any stream may use it
//   pending       freed, but a recorded stream may still use it
//   flush         thread cache → store;  free: user → cache or store;  trim, release: → driver
//   handle, slot  physical memory of the driver; a granule of addresses that one is mapped to
//   hole          addresses that no handle is mapped to as its current place
//   store         where a pool's blocks lie: an arena, or PyTorch's segments (component placement)
//   account       a pool and a tag, as one number; its ledger counts what is live
//   suspended     of a pool: its memory went to the driver, its blocks and addresses stay
//   reason        why a thread's cache must leave its fast path (thread_cache.hpp)
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/any_size.hpp"
#include "base/mutex.hpp"
#include "base/releases_under_way.hpp"
#include "device/state.hpp"
#include "heap/accounts.hpp"
#include "heap/address_table.hpp"
#include "heap/backup.hpp"
#include "heap/card_shares.hpp"
#include "heap/foreign_uses.hpp"
#include "heap/graph_pools.hpp"
#include "heap/observers.hpp"
#include "heap/private_pools.hpp"
#include "heap/reclaimer.hpp"
#include "heap/rung.hpp"
#include "heap/thread_cache.hpp"
#include "heap/vocabulary.hpp"
#include "observe/block_history.hpp"
#include "observe/misuse.hpp"
#include "observe/shortage.hpp"
#include "order/all_work_wait.hpp"
#include "order/driver_access.hpp"
#include "order/pending_frees.hpp"
#include "order/stream_order.hpp"
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
                           private detail::stream_listener,
                           private reclaimer,
                           private placement::unlocked_calls,
                           private placement::damage_sink {
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

  /// The same for what the fast path left undone: large blocks, streams other than the last,
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
  [[nodiscard]] result<bool> forget_uses(const void* freed) WEIR_EXCLUDES(mutex_);

  // --- Trimming, limits, callbacks, observers: trim.cpp, limits.cpp, observers.cpp --------------

  result<bytes> trim(bytes keep) WEIR_EXCLUDES(mutex_);
  result<bytes> shrink(bytes keep) WEIR_EXCLUDES(mutex_);
  result<bytes> empty_cache() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<bytes> empty_cache(pool_id id) WEIR_EXCLUDES(mutex_);
  result<void> release_stream(const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  /// Waits for all work that may use the memory and gives the memory back. What may still be in
  /// use because that wait failed is kept, and the error says how much.
  result<void> close() WEIR_EXCLUDES(mutex_);

  result<void> set_limit(bytes most) WEIR_EXCLUDES(mutex_);
  result<void> set_limit(tag tag, bytes most) WEIR_EXCLUDES(mutex_);
  /// The smaller of the user's own limit and the lowest ceiling of a share.
  [[nodiscard]] bytes limit() const noexcept {
    return bytes{limit_.load(std::memory_order_relaxed)};
  }

  // --- Shares of the card's budget, each named by its holder: card_shares.cpp --------------------

  result<void> add_share(const void* holder, bytes ceiling, neighbourhood known)
      WEIR_EXCLUDES(mutex_);
  result<void> set_ceiling(const void* holder, bytes most) WEIR_EXCLUDES(mutex_);
  void remove_share(const void* holder) noexcept WEIR_EXCLUDES(mutex_);

  [[nodiscard]] std::uint64_t add_callback(out_of_memory_callback callback) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] std::uint64_t add_growth_callback(out_of_memory_callback callback)
      WEIR_EXCLUDES(mutex_);
  void remove_callback(std::uint64_t key) noexcept WEIR_EXCLUDES(mutex_);
  /// Null: the heap is closed.
  [[nodiscard]] std::shared_ptr<observers> add_observer(event_sink& sink) WEIR_EXCLUDES(mutex_);
  void remove_observer(event_sink& sink) noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] weir::device device() const noexcept { return device_; }
  result<void> enable_peer(weir::device peer) WEIR_EXCLUDES(mutex_);

  /// A weir::stream is about to be destroyed: from then on it cannot be asked.
  void stream_closing(const stream_ref& stream) noexcept override WEIR_EXCLUDES(mutex_);
  /// A thread is at its end: its cache is flushed.
  void thread_ended(thread_cache& cache) noexcept WEIR_EXCLUDES(mutex_);

  // --- Private pools and captures: private_pools.cpp, graph_pools.cpp ---------------------------

  [[nodiscard]] result<std::shared_ptr<pool>> create_pool(std::string_view name,
                                                          pool_options options)
      WEIR_EXCLUDES(mutex_);
  void release_pool(pool_id id) noexcept WEIR_EXCLUDES(mutex_);
  result<void> set_fallback(pool_id id, bool value) WEIR_EXCLUDES(mutex_);
  /// A handle to a claim's pool.
  [[nodiscard]] std::shared_ptr<pool> share_pool(pool_id id) WEIR_EXCLUDES(mutex_);
  /// The physical memory under any block, or only under one of that pool.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer,
                                                    std::optional<pool_id> owner = {})
      WEIR_EXCLUDES(mutex_);
  /// Captures may be under way until end_notice(); both are counted.
  void begin_notice() noexcept WEIR_EXCLUDES(mutex_);
  void end_notice() noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<std::shared_ptr<graph_claim>> begin_capture(const stream_ref& stream)
      WEIR_EXCLUDES(mutex_);
  void end_capture(const graph_claim& claim) noexcept WEIR_EXCLUDES(mutex_);
  void release_claim(const graph_claim& claim) noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> keep_with(const graph_claim& claim, driver::CUgraph graph)
      WEIR_EXCLUDES(mutex_);

  // --- Suspended memory: suspend.cpp, suspend_async.cpp
  // ------------------------------------------------

  struct all_pools {};
  using pool_selection = std::variant<all_pools, tag, pool_id>;

  result<void> declare_suspendable(tag tag, const suspendable_options& options)
      WEIR_EXCLUDES(mutex_);
  result<suspend_outcome> suspend(const pool_selection& which, const suspend_options& options)
      WEIR_EXCLUDES(mutex_);
  result<resume_outcome> resume(const pool_selection& which, const resume_options& options)
      WEIR_EXCLUDES(mutex_);
  result<void> suspend_async(const pool_selection& which, const suspend_options& options)
      WEIR_EXCLUDES(mutex_);
  result<resume_outcome> resume_async(const pool_selection& which, const stream_ref& stream)
      WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<bool> is_suspended(const pool_selection& which) WEIR_EXCLUDES(mutex_);
  result<void> reserve_backup(bytes size, host_memory_kind kind);
  result<bytes> trim_backup();

  // --- Inspection: snapshot.cpp, report.cpp -----------------------------------------------------

  [[nodiscard]] memory_stats stats() WEIR_EXCLUDES(mutex_);
  /// What stats() counts as reserved, for the price of the lock.
  [[nodiscard]] bytes reserved() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] memory_stats stats(tag tag) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] memory_stats stats(pool_id id) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] std::vector<tag_stats> stats_by_tag() WEIR_EXCLUDES(mutex_);
  void reset_peaks() WEIR_EXCLUDES(mutex_);
  void reset_counters() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] allocator_snapshot snapshot() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] pool_snapshot snapshot(pool_id id) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<bytes> size_of(const void* pointer) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<block_info> block_at(const void* pointer) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<std::string> describe_address(const void* pointer) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] memory_report explain(bytes size, const stream_ref& stream) WEIR_EXCLUDES(mutex_);
  /// How the latest requests went. For who knows that no other thread is inside: reading it takes
  /// no lock, or it would count itself.
  [[nodiscard]] const search_trail& trail() const noexcept WEIR_UNCHECKED_LOCKING { return trail_; }
  /// What contradicts itself; empty if nothing. For tests.
  [[nodiscard]] std::string check() WEIR_EXCLUDES(mutex_);

 private:
  /// A stream as the slow paths know it.
  struct identified_stream {
    stream_ref ref;
    stream_id id{};  // 0: it cannot be asked now
  };
  /// Where a request is to be met.
  struct destination {
    const pool* from = nullptr;  // null: where it belongs
    bool chosen_by_user = false;
    std::uint64_t address = 0;  // exactly there; 0: anywhere
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
  /// To the cache that the blocks came from, or where that takes no more among those without a
  /// place.
  void hand_back_aside(thread_cache& cache) noexcept;
  void leave_aside_unplaced(thread_cache& cache) noexcept;
  [[nodiscard]] bool free_to_owner(thread_cache& cache, block_index index, stream_bins& bins,
                                   thread_cache& owner) noexcept;
  /// Of blocks of the allocator's own pool, whose account is their tag's number.
  void emit_own(event_sink& sink, memory_event_kind kind, const block& block,
                stream_id stream) const noexcept;

  // --- central_heap.cpp -------------------------------------------------------------------------

  /// Keeps a pool alive while the lock is released. Made and destroyed with the lock.
  class pool_hold {
   public:
    pool_hold(central_heap& heap, pool_state& held) noexcept
        : heap_{heap}, held_{held}, was_released_{held.holders == 0} {
      ++held_.holders;
    }
    ~pool_hold() WEIR_UNCHECKED_LOCKING {  // whoever holds it, locks
      if (!was_released_) {
        heap_.drop_holder(held_);
      } else {  // its end was told already
        --held_.holders;
        heap_.pools_to_sweep_ = true;
      }
    }
    pool_hold(const pool_hold&) = delete;
    pool_hold& operator=(const pool_hold&) = delete;

   private:
    central_heap& heap_;
    pool_state& held_;
    const bool was_released_;
  };
  /// The parts of close(). `leaked`: set if there were live blocks.
  [[nodiscard]] result<void> release_all(std::optional<error>& leaked) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> wait_before_release(driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] error keep_memory(error reason, driver_access& driver) noexcept
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> usable() const;
  /// Runs `work` without the lock, for waits and for code of the user's. Returns whether the heap
  /// can still be used: another thread may have closed it meanwhile. Everything else that was read
  /// before has to be read again, and a pool that is needed afterwards has to be held (pool_hold).
  template <class Work>
  [[nodiscard]] result<void> without_lock(const Work& work) WEIR_REQUIRES(mutex_) {
    {
      const order::unnamed_stream others_name_theirs{order_};
      const detail::mutex_unlock unlocked{mutex_};
      work();
    }
    return usable();
  }
  /// Of stores: the driver waits for the device before it takes memory back.
  void call_unlocked(call made, void* argument) noexcept override WEIR_UNCHECKED_LOCKING;
  /// Waits for the releases that other threads make without the lock now. False: there are none.
  bool await_releases() noexcept WEIR_REQUIRES(mutex_);
  /// Waits until a pool has arrived where it was going, or the heap is closed; the same holds.
  /// not_permitted: the thread is in a progress callback, which would wait for itself.
  [[nodiscard]] result<void> await_move() WEIR_REQUIRES(mutex_) {
    if (heap_of_progress == this) return refuse_in_progress();
    {
      const order::unnamed_stream others_name_theirs{order_};
      moved_.wait(mutex_);
    }
    return usable();
  }
  [[nodiscard]] static error refuse_in_progress() {
    return {.code = errc::not_permitted,
            .detail =
                "a progress callback cannot wait for memory that is on its way, nor close "
                "the allocator; do it after suspend() or resume() has returned"};
  }
  /// The pool that a pool_scope of the calling thread sends its requests to; null: none.
  [[nodiscard]] const pool* scoped_pool() const noexcept;
  /// The calling thread's cache, created by its first request; null where there is none.
  [[nodiscard]] thread_cache* local() WEIR_EXCLUDES(mutex_);
  [[nodiscard]] thread_cache* own_cache() const noexcept {
    return this_thread.owner == serial_ ? this_thread.cache : nullptr;
  }
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
  [[nodiscard]] result<void> make_table_room() WEIR_REQUIRES(mutex_);
  /// Into the table and the accounts.
  void enter_block(block& block, block_index index, bytes size, account_number account,
                   pool_state& from) noexcept WEIR_REQUIRES(mutex_);
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

  // --- free.cpp ---------------------------------------------------------------------------------

  [[nodiscard]] result<void> free_locked(void* pointer, const identified_stream* stream,
                                         bytes expected) WEIR_REQUIRES(mutex_);
  void free_recorded(block_index index, stream_slot slot, driver_access& driver) noexcept
      WEIR_REQUIRES(mutex_);

  // --- checked_free.cpp: blocks of stores that inspect them --------------------------------------

  /// A free whose caller waits to learn whether the block was damaged.
  struct awaited_free {
    std::uint64_t address = 0;
    std::optional<error> damaged{};
  };
  /// Lets go of the lock while it waits for the streams that were declared.
  [[nodiscard]] result<void> free_checked(block_index index, stream_slot slot,
                                          driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> wait_for(const std::vector<stamp>& declared, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  /// Has the stores look at what was freed and is not in use any more.
  result<void> inspect_freed(driver_access& driver) WEIR_REQUIRES(mutex_);
  void on_damage(const placement::damage& found) noexcept override WEIR_UNCHECKED_LOCKING;
  /// Puts a freed block, counted as freed, into the cache; false: there is no place for it.
  [[nodiscard]] bool keep(thread_cache& cache, block_index index, stream_slot slot,
                          stream_id id) noexcept WEIR_REQUIRES(mutex_);
  /// All streams that the block waited for have completed: it leaves `pending`.
  void end_waiting(const block& block) noexcept WEIR_REQUIRES(mutex_);
  void free_to_store(block_index index, stamp freed) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<block_index> find_live(const void* pointer) WEIR_REQUIRES(mutex_);

  // --- misuse.cpp -------------------------------------------------------------------------------

  [[nodiscard]] error why_not_live(std::uint64_t address) WEIR_REQUIRES(mutex_);
  [[nodiscard]] error freed_already(const block& block) const WEIR_REQUIRES(mutex_);
  [[nodiscard]] observe::accused_block accused_near(const placement::nearest_block& block) const;
  /// Of an allocator that ends with live blocks: what they are.
  [[nodiscard]] error leak() WEIR_REQUIRES(mutex_);
  [[nodiscard]] std::string life_of(std::uint64_t address) const;

  void emit_recorded(const block& block, stream_id stream) const noexcept WEIR_REQUIRES(mutex_);

  // --- peers.cpp: streams of other devices that use blocks ---------------------------------------

  /// The other devices that can reach the memory, or whose streams are owed a wait.
  [[nodiscard]] std::vector<weir::device> other_devices() const WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> record_foreign_stream(void* pointer, const stream_ref& stream)
      WEIR_EXCLUDES(mutex_);

  // --- flush.cpp. A foreign cache is stopped. Each counts what the cache counted. ---------------
  //
  // Peaks are exact for one thread because of two rules. Before a central figure falls, the peaks
  // are raised to the most that the thread's cache counted (raise_peaks). Before one rises, the
  // cache is folded in, so that its most is not added to what was not live at the time (fold).

  /// To what was live when the cache's owner had most of what it has counted.
  void raise_peaks(const thread_cache& cache) noexcept WEIR_REQUIRES(mutex_);
  void fold(thread_cache& cache) noexcept WEIR_REQUIRES(mutex_);
  void flush_list(block_index head, bool counted) noexcept WEIR_REQUIRES(mutex_);
  /// Lists on their way to the store, counted. What the first block of each will touch there is
  /// fetched when it is queued, to be here when its turn comes. They are flushed in the order they
  /// came.
  struct flush_queue {
    std::array<block_index, 8> heads{};
    std::size_t count = 0;
  };
  void flush_soon(block_index head, flush_queue& queue) noexcept WEIR_REQUIRES(mutex_);
  void flush_queued(flush_queue& queue) noexcept WEIR_REQUIRES(mutex_);
  void fetch_for_flush(const block& block) const noexcept WEIR_REQUIRES(mutex_);
  void flush_large(thread_cache& cache) noexcept WEIR_REQUIRES(mutex_);
  void flush_unplaced(thread_cache& cache) noexcept WEIR_REQUIRES(mutex_);
  void flush_bins(thread_cache& cache, stream_bins& bins) noexcept WEIR_REQUIRES(mutex_);
  void flush_half(thread_cache& cache, stream_bins& newest) noexcept WEIR_REQUIRES(mutex_);
  bool flush(thread_cache& cache) noexcept override WEIR_REQUIRES(mutex_);
  bool flush_all() noexcept WEIR_REQUIRES(mutex_);
  /// All that threads hold; stops them for it.
  void flush_caches() noexcept WEIR_REQUIRES(mutex_);
  /// The same for one stream, which caches forget.
  void flush_stream(stream_slot slot) noexcept WEIR_REQUIRES(mutex_);
  void flush_own_unplaced(thread_cache& own) noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] stream_bins* ensure_bins(thread_cache& cache, stream_id id,
                                         stream_slot slot) noexcept WEIR_REQUIRES(mutex_);
  /// Every cache's counts and what others left in them; inside a stop.
  void settle_caches() noexcept WEIR_REQUIRES(mutex_);

  // --- streams.cpp ------------------------------------------------------------------------------

  [[nodiscard]] result<identified_stream> identify(const stream_ref& stream, thread_cache* cache);
  [[nodiscard]] result<stream_slot> slot_of(const identified_stream& stream, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  /// What is completed becomes quiescent in the pool.
  void retire(pool_state& pool) noexcept WEIR_REQUIRES(mutex_);
  bool retire_all() noexcept WEIR_REQUIRES(mutex_);
  /// The same where no stream is behind: one that ended may have completed what was freed. True:
  /// memory became usable by other streams.
  bool retire_unnoticed() noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> poll_streams(driver_access& driver, stream_slot spared)
      WEIR_REQUIRES(mutex_);
  /// Closes the epoch of a stream that freed a lot and looks who else has come on: where streams
  /// share memory, it should not take a miss for others to profit.
  void share_freed(driver_access& driver) WEIR_REQUIRES(mutex_);
  void share_if_due() noexcept WEIR_REQUIRES(mutex_) {
    if (to_share_ != no_stream) [[unlikely]]
      share_now();
  }
  void share_now() noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> any_capturing(driver_access& driver) WEIR_REQUIRES(mutex_);

  /// The wait is over, and what it waited for is completed.
  void learn_from(const order::all_work_wait& work) noexcept WEIR_REQUIRES(mutex_);

  // These let go of the lock while they wait, and return `closed` if the heap was closed meanwhile.

  /// For the streams that memory is bound to; for all work where some of them cannot be marked.
  [[nodiscard]] result<void> wait_for_streams(driver_access& driver) WEIR_REQUIRES(mutex_);
  /// For all work that was queued on the device so far, and on others that can reach its memory.
  /// Captures stay valid.
  [[nodiscard]] result<void> wait_for_all_work(driver_access& driver) WEIR_REQUIRES(mutex_);

  // --- reclaim.cpp: what a search for room asks for ---------------------------------------------

  [[nodiscard]] store_traits traits_of(const pool_state& pool) const WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<account_number> prepare(pool_state& pool, bytes needed,
                                               driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  void flush_leftovers(thread_cache& own) noexcept override WEIR_REQUIRES(mutex_);
  bool flush_others(thread_cache* own) noexcept override WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> retire_completed(stream_slot spared, pool_state& asking,
                                              driver_access& driver) override WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool any_pending_like(const request& wanted,
                                      const pool_state& pool) const noexcept override
      WEIR_REQUIRES(mutex_);
  void retire_pending(driver_access& driver) noexcept override WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool queues_waits() const noexcept override WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> take_pending_behind_waits(const request& wanted,
                                                       const pool_state& pool,
                                                       driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<fallback_room> fit_in_fallback(const request& wanted) override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> release_can_help(const request& wanted, driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> wait_can_help(const request& wanted, const pool_state& asking,
                                           driver_access& driver) override WEIR_REQUIRES(mutex_);
  /// What all pools have reserved and not handed out.
  [[nodiscard]] std::uint64_t unused() const noexcept WEIR_REQUIRES(mutex_);
  /// Whether the limit and the driver allow so much more.
  [[nodiscard]] result<bool> can_take(std::uint64_t size, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bytes> release_from_others(pool_state& asking, bytes most,
                                                  driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bytes> release_own(pool_state& asking, driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> await_releases(pool_state& asking) override WEIR_REQUIRES(mutex_);
  [[nodiscard]] std::uint64_t releases_ended() const noexcept override WEIR_REQUIRES(mutex_) {
    return releases_.ended();
  }
  [[nodiscard]] result<bool> evict(pool_state& asking, bytes needed, driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<callback_answer> ask_callbacks(pool_state& pool, thread_cache* own,
                                                      bytes needed) override WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> ask_before_growth(pool_state& pool, bytes needed) override
      WEIR_REQUIRES(mutex_);
  using callback_map = std::unordered_map<std::uint64_t, std::shared_ptr<out_of_memory_callback>>;
  [[nodiscard]] result<bool> run_callbacks(const callback_map& callbacks, pool_state& pool,
                                           bytes needed) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> wait_for_oldest(pool_state& asking, wait_bound& bound,
                                             driver_access& driver) override WEIR_REQUIRES(mutex_);

  // --- suspend.cpp ------------------------------------------------------------------------------

  /// A pool that is on its way, and how far it is.
  struct moving_pool {
    pool_state* pool = nullptr;
    placement::suspension plan{};
    std::vector<saved_range> saved{};
    std::uint64_t restored = 0;  // of its contents
    bool planned = false;
    bool was_suspended = false;
    bool stays_away = false;
  };
  using moving_pools = std::vector<moving_pool>;
  /// Pools that go or come together, and what that needs. One of queued_ has a carrier, a thread
  /// that waits for the device and does the rest; it is joined when it is done, or by close().
  struct queued_move {
    moving_pools pools{};  // none once they are where they belong
    suspend_options options{};
    std::vector<vmm::access> rights{};
    std::unique_ptr<backup_copies> copies{};
    order::awaited_marks behind{};  // work of the streams that were known before
    bool waits_for_all = true;      // and for all other work, also what is queued later
    std::uint64_t pledged = 0;      // by a return
    bool evicts = true;             // for a return: not where everything is to come back
    bool begun = false;             // the work of before is done, and the memory is being read
    bool committed = false;         // it cannot be taken back any more
    bool taken_back = false;
    bool done = false;  // the carrier does not touch the heap again
    std::thread carrier{};
  };

  /// The pool of a tag that was declared suspendable; null if it was not.
  [[nodiscard]] pool_state* pool_of(tag tag) const noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool is_meant(const pool_state& pool, const pool_selection& which) noexcept
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<std::vector<pool_state*>> meant_by(const pool_selection& which)
      WEIR_REQUIRES(mutex_);
  /// The pools, when none of them is one to wait for.
  [[nodiscard]] result<std::vector<pool_state*>> select(const pool_selection& which,
                                                        bool (*is_awaited)(const pool_state&))
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<std::vector<pool_state*>> select_to_resume(const pool_selection& which)
      WEIR_REQUIRES(mutex_);
  /// Those that have something to suspend; what cannot be goes into the outcome.
  [[nodiscard]] result<std::vector<pool_state*>> choose(const std::vector<pool_state*>& meant,
                                                        const pool_selection& which,
                                                        suspend_outcome& outcome) const
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> nobody_captures(driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] static result<void> check_options(const suspend_options& options);
  /// Whether the pool's memory is, or would be, of a kind that can be suspended.
  [[nodiscard]] result<void> may_suspend(const pool_state& pool) const WEIR_REQUIRES(mutex_);
  /// Until the pool is resident, or why it stays away, for a request of `needed` bytes. May let go
  /// of the lock.
  [[nodiscard]] result<void> await_residence(pool_state& pool, std::uint64_t needed)
      WEIR_REQUIRES(mutex_);
  void begin_moves(moving_pools& moves, residence now) noexcept WEIR_REQUIRES(mutex_);
  void end_moves(moving_pools& moves) noexcept WEIR_REQUIRES(mutex_);
  void emit_moved(memory_event_kind kind, const pool_state& pool, std::uint64_t size,
                  std::uint64_t contents) const noexcept WEIR_REQUIRES(mutex_);
  void shut_caches(bool shut) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] std::unique_ptr<backup_copies> take_copies() WEIR_REQUIRES(mutex_);
  void keep_copies(std::unique_ptr<backup_copies> idle) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] backup_memory& backup(host_memory_kind kind) noexcept {
    return kind == host_memory_kind::pinned ? pinned_backup_ : pageable_backup_;
  }
  void drop_saved(pool_state& pool) noexcept WEIR_REQUIRES(mutex_);
  /// Of these addresses, where a block was freed.
  void drop_saved(pool_state& pool, std::uint64_t start, std::uint64_t end) noexcept
      WEIR_REQUIRES(mutex_);

  // These let go of the lock for the long part.
  [[nodiscard]] result<suspend_outcome> suspend_pools(const std::vector<pool_state*>& chosen,
                                                      const suspend_options& options)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<suspend_outcome> carry_out(queued_move& move, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<resume_outcome> resume_pools(const std::vector<pool_state*>& chosen,
                                                    const resume_options& options,
                                                    const stream_ref* ahead_of = nullptr,
                                                    bool evicts = true) WEIR_REQUIRES(mutex_);
  void enter_return(queued_move& move, bool came) noexcept WEIR_REQUIRES(mutex_);
  void arrive(queued_move& move, bool came) noexcept WEIR_REQUIRES(mutex_);
  /// Waits until pools that are on their way back have arrived.
  [[nodiscard]] result<void> await_arrivals() WEIR_REQUIRES(mutex_);
  /// Waits if another pool is on its way out, or on its way back with all its memory.
  [[nodiscard]] result<bool> await_leaving(const pool_state* asking) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> fit_under_limit(const queued_move& move, std::uint64_t needed,
                                             driver_access& driver) WEIR_REQUIRES(mutex_);
  /// The same for what the device has, before the first handle is created.
  [[nodiscard]] result<void> fit_on_device(const queued_move& move, std::uint64_t needed,
                                           driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> make_room(const queued_move& move, std::uint64_t needed,
                                       wait_bound& waits, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bool> ask_neighbours(const moving_pools& moves, std::uint64_t needed)
      WEIR_REQUIRES(mutex_);
  /// `asking` is null where nothing of this allocator asks; `needed` is what it asks for.
  [[nodiscard]] result<bool> evict_for(const pool_state* asking, std::uint64_t needed,
                                       driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool is_evictable_for(const pool_state& pool, const pool_state* asking) const
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool fits_beside_live(const pool_state& asking, std::uint64_t needed)
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool could_fit(const pool_state& asking, std::uint64_t needed)
      WEIR_REQUIRES(mutex_);

  [[nodiscard]] bool mark_users(queued_move& move, driver_access& driver) WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> wait_for_users(const queued_move& move, driver_access& driver)
      WEIR_EXCLUDES(mutex_);
  [[nodiscard]] static result<void> plan_suspend(moving_pools& moves);
  [[nodiscard]] result<void> save_contents(moving_pools& moves, const suspend_options& options,
                                           backup_copies& copies, const context_scope& bound)
      WEIR_EXCLUDES(mutex_);
  [[nodiscard]] static result<void> unmap_all(moving_pools& moves,
                                              const std::vector<vmm::access>& rights,
                                              const context_scope& bound) noexcept;
  [[nodiscard]] bool commit(queued_move& move) WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> bring_back(queued_move& move, const resume_options& options,
                                        const stream_ref* ahead_of,
                                        resume_outcome& outcome) noexcept WEIR_EXCLUDES(mutex_);
  [[nodiscard]] result<void> fill(placement::suspended_place& place, const moving_pool& of,
                                  const queued_move& move, driver_access& driver)
      WEIR_EXCLUDES(mutex_);
  [[nodiscard]] error why_not_resumed(error reason, std::uint64_t needed) WEIR_REQUIRES(mutex_);

  // --- suspend_async.cpp ------------------------------------------------------------------------

  /// Calls off suspensions of these pools that are not committed; whether there was one.
  bool take_back(const pool_selection& which) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool start_carrier(queued_move& move) noexcept WEIR_REQUIRES(mutex_);
  void carry(queued_move& move) noexcept WEIR_EXCLUDES(mutex_);
  // These let go of the lock for the long part.
  [[nodiscard]] result<void> finish_suspension(queued_move& move) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> finish_return(queued_move& move) noexcept WEIR_REQUIRES(mutex_);
  void end_carriers() noexcept WEIR_REQUIRES(mutex_);
  void join_carriers() noexcept WEIR_EXCLUDES(mutex_);

  // --- limits.cpp -------------------------------------------------------------------------------

  /// Applies the user's limit and the shares' ceilings, and emits the limit if it changed or is
  /// always told.
  void update_limit(bool always_told) noexcept WEIR_REQUIRES(mutex_);
  /// Whether the tag has a limit or a pool of its own, so that no thread's cache serves it.
  [[nodiscard]] bool is_apart(std::uint16_t tag) const noexcept WEIR_REQUIRES(mutex_);
  /// Tells the caches; inside a stop.
  void update_limits() noexcept WEIR_REQUIRES(mutex_);

  // --- private_pools.cpp, graph_pools.cpp -------------------------------------------------------

  [[nodiscard]] pool_state* find_pool(pool_id id) const noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] pool_state& pool_of(const block& block) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] pool_state& add_pool(std::string name) WEIR_REQUIRES(mutex_);
  void drop_holder(pool_state& left) noexcept WEIR_REQUIRES(mutex_);
  void guard_replays(pool_state& left) noexcept WEIR_REQUIRES(mutex_);
  void sweep_graphs() noexcept WEIR_REQUIRES(mutex_);
  /// Lets go of the lock where memory goes whose free waits for the device.
  void sweep_pools(driver_access& driver) noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<void> sweep_pools(pool_state& asking, driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  /// The first pool behind that one; null: there is none. For walks that let go of the lock.
  [[nodiscard]] pool_state* pool_behind(pool_id id) const noexcept WEIR_REQUIRES(mutex_);
  /// The pool of the capture that the stream is in.
  [[nodiscard]] result<pool_state*> capture_pool(const stream_ref& stream, stream_slot slot,
                                                 driver_access& driver) override
      WEIR_REQUIRES(mutex_);
  /// Whether the pool's free memory may be released to the driver.
  [[nodiscard]] bool may_release(const pool_state& pool) const noexcept override
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] result<bytes> release_down_to(std::uint64_t keep, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  /// The same with what threads hold and what streams have completed by now.
  [[nodiscard]] result<bytes> release_cached(bytes keep, driver_access& driver)
      WEIR_REQUIRES(mutex_);
  void update_capture_reason() noexcept WEIR_REQUIRES(mutex_);

  // --- snapshot.cpp, report.cpp, with the caches settled ----------------------------------------

  [[nodiscard]] memory_stats totals() const noexcept WEIR_REQUIRES(mutex_);
  /// Physical memory that resume() takes, of all pools. Walks over the blocks of suspended ones.
  [[nodiscard]] std::uint64_t suspended_bytes() const noexcept WEIR_REQUIRES(mutex_);
  /// Memory may have been taken from the driver: raises the peak of reserved and suspended
  /// together.
  void note_growth() noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] memory_stats pool_totals(const pool_state& pool) const noexcept
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] memory_stats tag_totals(tag tag) const noexcept WEIR_REQUIRES(mutex_);
  [[nodiscard]] std::vector<tag_stats> tags_in_use() const WEIR_REQUIRES(mutex_);
  void describe(const pool_state& pool, pool_snapshot& into) const WEIR_REQUIRES(mutex_);
  [[nodiscard]] memory_report report(bytes size, stream_slot slot) WEIR_REQUIRES(mutex_);
  /// What a request now would meet, but for what the driver has free.
  [[nodiscard]] observe::shortage shortage_of(bytes size, tag tag, stream_slot slot)
      WEIR_REQUIRES(mutex_);
  /// Nothing: the driver did not answer.
  [[nodiscard]] std::optional<std::uint64_t> device_free() const WEIR_REQUIRES(mutex_);
  /// The error of a request that could not be met.
  [[nodiscard]] error no_room(errc code, bytes size, tag tag, stream_slot slot)
      WEIR_REQUIRES(mutex_);

  void update_observers() noexcept WEIR_REQUIRES(mutex_);
  /// Those that are in force: they were set before the observer came.
  void tell_limits(event_sink& sink) const noexcept WEIR_REQUIRES(mutex_);
  /// Tells a new observer what a pool held when it was added.
  void tell_existing(const pool_snapshot& pool, event_sink& sink) const noexcept
      WEIR_REQUIRES(mutex_);

  // What the fast path reads; nothing here changes while a cache is in use.
  const std::uint64_t serial_;
  const weir::device device_;
  address_table table_;
  block_store blocks_;

  const placement_policy policy_;
  const debug_checks checks_;
  const bytes quarantine_;
  const bool exportable_;
  const bool detect_captures_;
  stream_id legacy_stream_{};  // fixed in create()
  std::shared_ptr<detail::device_state> home_;
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> limit_;
  thread_caches caches_;

  // Observers of its own, fixed at creation; null: there is none. They outlive the pools, which
  // tell them of their end.
  std::unique_ptr<observe::block_history> history_;  // what was told of blocks, for misuse
  std::unique_ptr<event_sink> tool_regions_;         // for a tool that watches the process
  std::unique_ptr<event_sink> block_watch_;          // the device's

  mutable detail::mutex mutex_;
  search_trail trail_ WEIR_GUARDED_BY(mutex_);
  order::stream_order order_ WEIR_GUARDED_BY(mutex_);
  placement_context placement_ WEIR_GUARDED_BY(mutex_);
  accounts accounts_ WEIR_GUARDED_BY(mutex_);
  order::pending_frees pending_ WEIR_GUARDED_BY(mutex_);
  capture_registry captures_ WEIR_GUARDED_BY(mutex_);
  const std::shared_ptr<observers> observers_ = std::make_shared<observers>();
  /// The allocator's own first.
  std::vector<std::unique_ptr<pool_state>> pools_ WEIR_GUARDED_BY(mutex_);
  std::uint32_t next_pool_ WEIR_GUARDED_BY(mutex_) = 1;
  callback_map callbacks_ WEIR_GUARDED_BY(mutex_);
  callback_map growth_callbacks_ WEIR_GUARDED_BY(mutex_);
  detail::releases_under_way releases_ WEIR_GUARDED_BY(mutex_);  // by stores, without the lock
  std::vector<awaited_free*> awaited_frees_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t next_callback_ WEIR_GUARDED_BY(mutex_) = 1;
  /// The user's own; limit_ is what counts.
  std::uint64_t own_limit_ WEIR_GUARDED_BY(mutex_) = limit_.load(std::memory_order_relaxed);
  card_shares shares_ WEIR_GUARDED_BY(mutex_);
  neighbourhood neighbours_ WEIR_GUARDED_BY(mutex_);          // of the latest share; empty: none
  stream_slot to_share_ WEIR_GUARDED_BY(mutex_) = no_stream;  // freed enough for an event
  /// A request that could not be met, and what would have to change for it to be met.
  struct failure_record {
    bytes size{};
    stream_slot stream = no_stream;
    std::uint64_t frees = 0;
    std::uint64_t limit = 0;
    friend bool operator==(const failure_record&, const failure_record&) = default;
  };
  failure_record last_failure_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t blocks_at_reset_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t waits_at_reset_ WEIR_GUARDED_BY(mutex_) = 0;
  std::uint64_t events_at_reset_ WEIR_GUARDED_BY(mutex_) = 0;
  foreign_uses foreign_uses_ WEIR_GUARDED_BY(mutex_);
  foreign_listening foreign_listening_;
  /// By tag number: the pool of a tag that was declared suspendable.
  std::vector<pool_id> tag_pools_ WEIR_GUARDED_BY(mutex_);
  std::size_t moving_ WEIR_GUARDED_BY(mutex_) = 0;  // pools on their way
  std::list<queued_move> queued_ WEIR_GUARDED_BY(mutex_);
  std::condition_variable_any moved_;  // one of them arrived, or the heap is closed
  backup_gauge backup_held_;
  backup_memory pinned_backup_;
  backup_memory pageable_backup_;
  std::vector<std::unique_ptr<backup_copies>> idle_copies_ WEIR_GUARDED_BY(mutex_);
  bool ever_suspended_ WEIR_GUARDED_BY(mutex_) = false;
  /// The most that was reserved and suspended together, as of the last note_growth().
  std::uint64_t with_suspended_peak_ WEIR_GUARDED_BY(mutex_) = 0;
  /// A pool that nobody holds lost its last block.
  bool pools_to_sweep_ WEIR_GUARDED_BY(mutex_) = false;
};

}}}  // namespace weir::v0::heap

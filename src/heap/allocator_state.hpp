// The inside of a caching_allocator: its parts, its lock, and the path that needs neither.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/any_size.hpp"
#include "device/state.hpp"
#include "heap/accounts.hpp"
#include "heap/address_table.hpp"
#include "heap/block.hpp"
#include "heap/brief_lock.hpp"
#include "heap/capture.hpp"
#include "heap/pending.hpp"
#include "heap/pool.hpp"
#include "heap/store.hpp"
#include "heap/thread_cache.hpp"
#include "observe/current_tag.hpp"
#include "order/driver_access.hpp"
#include "order/stream_order.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/options.hpp"

namespace weir::inline v0::heap {

using detail::any_size;
using order::driver_access;

/// Frees a block behind the work of the stream that it was allocated for.
struct allocation_order {};

/// Everything a caching_allocator holds.
///
/// Two paths. allocate_cached() and deallocate_cached() touch the calling thread's cache, the
/// address table and the block's record, and take no lock. Everything else holds `mutex_`, the
/// heap's lock; members are the lock's unless they say otherwise. What another thread's cache holds
/// is reached by stopping it (thread_caches::stop).
///
/// Owned by the handles of users; pools, claims and threads refer to it weakly. After close(), and
/// in a forked child, no call touches anything.
class allocator_state : public std::enable_shared_from_this<allocator_state>,
                        private detail::stream_listener {
 public:
  [[nodiscard]] static result<std::shared_ptr<allocator_state>> create(weir::device where,
                                                                       const options& settings);
  /// The inside of an allocator, for tests and for the quick path of the C ABI.
  [[nodiscard]] static allocator_state& of(caching_allocator& outside) noexcept {
    return *outside.inside_;
  }
  allocator_state(weir::device where, const options& settings);
  ~allocator_state() override;
  allocator_state(const allocator_state&) = delete;
  allocator_state& operator=(const allocator_state&) = delete;

  // --- Without the lock -------------------------------------------------------------------------

  /// Memory of exactly that size from the calling thread's cache; null: allocate() knows.
  template <std::uint32_t reasons = 0>
  [[nodiscard]] void* allocate_quickly(bytes size, const stream_ref& stream) noexcept;
  /// Whether the calling thread's cache took the block; if not, deallocate() does or says what is
  /// wrong. The order is a stream's, or that of the block's allocation.
  template <std::uint32_t reasons = 0, class Order>
  [[nodiscard]] bool deallocate_quickly(void* pointer, const Order& order) noexcept;

  /// The same for what the quick path left undone: large blocks, streams other than the last,
  /// default streams, blocks of other threads, observers, limits. Then, with the lock, for requests
  /// that fit into free memory as it is and frees that the cache has no room for.
  [[nodiscard]] void* allocate_closely(bytes size, const stream_ref& stream) noexcept;
  [[nodiscard]] bool deallocate_closely(void* pointer, const stream_ref* stream,
                                        bytes expected) noexcept;

  // --- The slow paths: requests.cpp, frees.cpp, giving_back.cpp
  // ------------------------------------------------------

  /// From the pool, or where the request belongs if that is null.
  [[nodiscard]] result<void*> allocate(bytes size, const stream_ref& stream, bytes alignment,
                                       const pool* from);
  result<void> deallocate(void* pointer, const stream_ref* stream, bytes expected);
  result<void> record_stream(void* pointer, const stream_ref& stream);
  [[nodiscard]] result<bytes> size_of(const void* pointer);
  /// A block of the pool at exactly that address.
  [[nodiscard]] result<void*> allocate_at(std::uint64_t address, bytes size,
                                          const stream_ref& stream, const pool& from);

  result<bytes> trim(bytes keep);
  result<bytes> empty_cache();
  result<void> release_stream(const stream_ref& stream);
  result<void> close();

  result<void> set_limit(bytes most);
  result<void> set_limit(tag of, bytes most);
  [[nodiscard]] bytes limit() const noexcept {
    return bytes{limit_.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] std::uint64_t add_callback(out_of_memory_callback callback);
  void remove_callback(std::uint64_t key) noexcept;
  void set_observer(event_sink* sink) noexcept;
  [[nodiscard]] weir::device device() const noexcept { return device_; }

  /// A weir::stream is about to be destroyed: from then on it cannot be asked.
  void stream_closing(const stream_ref& which) noexcept override;
  /// A thread is at its end; its cache goes back.
  void thread_ended(thread_cache& cache) noexcept;

  // --- Pools and captures: pools.cpp ------------------------------------------------------------

  [[nodiscard]] result<std::shared_ptr<pool>> create_pool(std::string_view name,
                                                          pool_options settings);
  /// Of any block, or only of one of that pool, whose handles are a slot each.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer,
                                                    std::optional<pool_id> of = {});
  [[nodiscard]] result<bytes> empty_cache(pool_id of);
  /// Captures may be under way until end_notice(); both are counted.
  void begin_notice() noexcept;
  void end_notice() noexcept;
  void release_pool(pool_id which) noexcept;
  [[nodiscard]] result<std::shared_ptr<graph_claim>> begin_capture(const stream_ref& stream);
  void end_capture(const graph_claim& claim) noexcept;
  void release_claim(const graph_claim& claim) noexcept;
  [[nodiscard]] result<void> keep_with(const graph_claim& claim, driver::CUgraph graph);
  /// A handle to a claim's pool.
  [[nodiscard]] std::shared_ptr<pool> share_pool(pool_id which);

  // --- Looking: snapshot.cpp, report.cpp --------------------------------------------------------

  [[nodiscard]] memory_stats stats();
  [[nodiscard]] memory_stats stats(tag of);
  [[nodiscard]] memory_stats stats(pool_id of);
  [[nodiscard]] std::vector<tag_stats> stats_by_tag();
  void reset_peaks();
  [[nodiscard]] allocator_snapshot snapshot();
  [[nodiscard]] pool_snapshot snapshot(pool_id of);
  [[nodiscard]] result<block_info> block_at(const void* pointer);
  [[nodiscard]] memory_report explain(bytes size, const stream_ref& stream);
  /// What contradicts itself; empty if nothing. For tests.
  [[nodiscard]] std::string check();

 private:
  friend class ladder;

  /// A stream as the slow paths know it.
  struct caller {
    stream_ref ref;
    stream_id id{};  // 0: it cannot be asked now
  };
  // cached.cpp. A stream of id 0 stands for the block's own.
  [[nodiscard]] stream_id quick_id(const stream_ref& stream,
                                   const thread_cache& cache) const noexcept;
  [[nodiscard]] void* allocate_cached(thread_cache& cache, bytes size, stream_id stream,
                                      std::uint32_t accepted) noexcept;
  [[nodiscard]] bool deallocate_cached(thread_cache& cache, void* pointer, stream_id stream,
                                       bytes expected, std::uint32_t accepted) noexcept;
  [[nodiscard]] void* allocate_plainly(thread_cache& cache, bytes size, stream_id stream) noexcept;
  [[nodiscard]] bool deallocate_plainly(thread_cache& cache, void* pointer, stream_id stream,
                                        bytes expected) noexcept;
  [[nodiscard]] bool free_for_another(thread_cache& cache, block_index which, stream_bins& bins,
                                      thread_cache& owner) noexcept;

  void look_for_observer(const thread_cache& own) const noexcept;
  template <std::uint32_t reasons>
  [[nodiscard]] bool is_worth_trying() const noexcept {
    if constexpr (reasons == 0) return here.unobserved == serial_;
    return here.serial == serial_ && here.unobserved == 0;
  }
  /// Whether a free in that order is one behind the work of the stream of `bins`.
  ///
  /// Nobody asks the stream's device here, nor for a request. `bins` was made under the lock for a
  /// reference that had been seen to be of this device, and has the id of its stream; ids are not 0
  /// there, where a reference that does not know its own says 0. No two streams of a process have
  /// one id, whatever their devices and runtimes (stream_ref::id()): a reference with this id is to
  /// this stream, and that is on this device.
  [[nodiscard]] bool is_order_of(const stream_bins& bins, const block&,
                                 const stream_ref& stream) const noexcept {
    return bins.id == stream.known_id();
  }
  [[nodiscard]] bool is_order_of(const stream_bins& bins, const block& what,
                                 allocation_order) const noexcept {
    return bins.slot == what.stream;
  }
  /// Of the cache's current stream.
  void tell_quickly(const thread_cache& cache, memory_event_kind kind, const block& what,
                    std::uint64_t requested) const noexcept {
    cache.observer->on_event({.kind = kind,
                              .tag = what.account,
                              .device = device_.id(),
                              .stream = cache.current->id,
                              .address = what.address,
                              .size = requested,
                              .rounded = what.size()});
  }
  void emit(event_sink* to, memory_event_kind kind, const block& what, stream_id stream,
            account_number account) const noexcept;

  // allocator_state.cpp, requests.cpp, frees.cpp
  [[nodiscard]] result<void> usable() const;
  /// The calling thread's cache, made at first sight; null where there is none.
  [[nodiscard]] thread_cache* local();
  [[nodiscard]] result<caller> identify(const stream_ref& stream, thread_cache* cache);
  [[nodiscard]] result<stream_slot> slot_of(const caller& who, driver_access& driver);
  /// Where a request is to be met.
  struct destination {
    const pool* from = nullptr;  // null: where it belongs
    bool chosen_by_user = false;
    std::uint64_t address = 0;  // exactly there; 0: anywhere
  };
  [[nodiscard]] result<void*> allocate_locked(std::unique_lock<std::mutex>& lock, bytes size,
                                              const request& wanted, const caller& who,
                                              const destination& where,
                                              std::optional<capture_status> capturing);
  [[nodiscard]] result<pool_state*> route(const pool* from);
  [[nodiscard]] result<void> make_table_room();
  void hand_out(block_index which, bytes size, account_number account, pool_state& from,
                stream_id stream, thread_cache* cache) noexcept;
  /// From now on the cache counts what happens to the account, if the host has memory for that.
  void count_in(thread_cache& cache, account_number account) noexcept;
  [[nodiscard]] result<void> deallocate_locked(void* pointer, const caller* who, bytes expected);
  void free_recorded(block_index which, stream_slot slot, driver_access& driver) noexcept;
  /// Puts a freed block, counted as freed, into the cache; false: there is no place for it.
  [[nodiscard]] bool keep(thread_cache& cache, block_index which, stream_slot slot,
                          stream_id id) noexcept;
  [[nodiscard]] result<block_index> find_live(const void* pointer);
  [[nodiscard]] error not_a_block(std::uint64_t address);
  /// To the store, for good.
  void give_back(block_index which, stamp freed) noexcept;
  [[nodiscard]] pool_state& pool_of(const block& what) noexcept;

  // Thread caches, with the lock; a foreign cache is stopped. Each counts what the cache counted.
  void fold(thread_cache& cache) noexcept;
  void hand_back_list(block_index head, bool counted) noexcept;
  bool hand_back_large(thread_cache& cache) noexcept;
  bool hand_back_unplaced(thread_cache& cache) noexcept;
  void hand_back_bins(thread_cache& cache, stream_bins& bins) noexcept;
  void hand_back_half(thread_cache& cache, stream_bins& newest) noexcept;
  bool hand_back(thread_cache& cache) noexcept;
  bool hand_back_all() noexcept;
  /// All that threads hold, counted and handed back; stops them for it.
  void take_back_caches() noexcept;
  void hand_over_unplaced(thread_cache& own) noexcept;
  [[nodiscard]] stream_bins* ensure_bins(thread_cache& cache, stream_id id,
                                         stream_slot slot) noexcept;
  /// Every cache's counts and what others left in them; inside a stop.
  void settle_caches() noexcept;
  [[nodiscard]] thread_cache* own_cache() const noexcept {
    return here.serial == serial_ ? here.cache : nullptr;
  }

  // stream_progress.cpp, with the lock.
  /// What streams are known to have passed becomes everybody's in the pool.
  void retire(pool_state& in) noexcept;
  bool retire_all() noexcept;
  [[nodiscard]] result<bool> poll_streams(driver_access& driver, stream_slot close_but);
  /// Closes the epoch of a stream that freed a lot and looks who else has come on: where streams
  /// share memory, it should not take a miss for others to profit.
  void share_freed(driver_access& driver) noexcept;
  void share_if_due() noexcept;
  [[nodiscard]] result<void> wait_for_streams(driver_access& driver);
  [[nodiscard]] result<bool> wait_for_device(driver_access& driver);
  [[nodiscard]] result<bool> any_capturing(driver_access& driver);

  // pools.cpp
  [[nodiscard]] pool_state* find_pool(pool_id which) noexcept;
  [[nodiscard]] pool_state& add_pool(std::string name);
  void drop_holder(pool_id which) noexcept;
  void sweep_graphs() noexcept;
  void sweep_pools(driver_access& driver) noexcept;
  /// The pool of the capture that the stream is in.
  [[nodiscard]] result<pool_state*> capture_pool(const stream_ref& stream, stream_slot slot,
                                                 driver_access& driver);
  /// Whether the pool's free memory may go back to the driver.
  [[nodiscard]] bool may_release(const pool_state& from) const noexcept;
  [[nodiscard]] result<bytes> release_down_to(std::uint64_t keep, driver_access& driver);
  void update_capture_reason() noexcept;

  // snapshot.cpp, with the lock and caches settled
  [[nodiscard]] memory_stats totals() const noexcept;
  [[nodiscard]] memory_stats pool_totals(const pool_state& of) const noexcept;
  void describe(const pool_state& from, pool_snapshot& into) const;
  [[nodiscard]] memory_stats tag_totals(tag of) const noexcept;
  [[nodiscard]] std::vector<tag_stats> tags_in_use() const;
  [[nodiscard]] memory_report report(bytes size, stream_slot slot);

  // What the quick path reads; nothing here changes while a cache is in use.
  const std::uint64_t serial_;
  const weir::device device_;
  address_table table_;
  block_store blocks_;

  const placement_policy policy_;
  const bool exportable_;
  const bool detect_captures_;
  stream_id legacy_stream_{};  // fixed in create()
  std::shared_ptr<detail::device_state> home_;
  std::atomic<bool> closed_{false};
  std::atomic<std::uint64_t> limit_;
  thread_caches caches_;

  mutable std::mutex mutex_;
  order::stream_order order_;
  core core_;
  accounts accounts_;
  pending pending_;
  captures captures_;
  std::vector<std::unique_ptr<pool_state>> pools_;  // the allocator's own first
  std::uint32_t next_pool_ = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<out_of_memory_callback>> callbacks_;
  std::uint64_t next_callback_ = 1;
  stream_slot to_share_ = nobody;  // freed enough for an event
  bool pools_to_sweep_ = false;    // a pool that nobody holds lost its last block
};

// --- The quick path -----------------------------------------------------------------------------
//
// No lock, no shared write, no driver call, no call at all: these are leaves, so that what they
// need stays in registers. Whatever is out of the ordinary is left to the slower paths. `reasons`
// is what the cache must ask attention for: nothing; or, for a second instance that tells what it
// does, that somebody listens.

template <std::uint32_t reasons>
inline void* allocator_state::allocate_quickly(bytes size, const stream_ref& stream) noexcept {
  if (!is_worth_trying<reasons>()) [[unlikely]]
    return nullptr;
  thread_cache& cache = *here.cache;
  const std::uint64_t units = (size.count() + (unit - 1)) / unit;
  const account_number account = observe::thread_tag.number();
  if (cache.enter_quickly() != reasons) [[unlikely]] {  // and nothing of it may be read
    cache.leave();
    return nullptr;
  }
  stream_bins& bins = *cache.current;
  if (bins.id != stream.known_id() || units > most_binned_units || account >= cache.delta_count)
      [[unlikely]] {
    cache.leave();
    return nullptr;
  }
  const block_index which = bins.heads[units];  // of no units, or of too many to count: none
  if (which == no_block) [[unlikely]] {
    cache.leave();
    return nullptr;
  }
  block& what = blocks_[which];
  bins.heads[units] = what.out.next;
  const std::uint64_t rounded = units * unit;
  what.become(block_kind::live);
  what.account = account;
  what.out.waste = static_cast<std::uint32_t>(rounded - size.count());
  cache.units -= units;
  cache.count_allocation(account, size.count(), rounded);
  if constexpr (reasons == thread_cache::observed)
    tell_quickly(cache, memory_event_kind::allocate, what, size.count());
  cache.leave();
  return reinterpret_cast<void*>(what.address);
}

template <std::uint32_t reasons, class Order>
inline bool allocator_state::deallocate_quickly(void* pointer, const Order& order) noexcept {
  if (!is_worth_trying<reasons>()) [[unlikely]]
    return false;
  thread_cache& cache = *here.cache;
  if (cache.enter_quickly() != reasons) [[unlikely]] {
    cache.leave();
    return false;
  }
  stream_bins& bins = *cache.current;
  const block_index which = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  block& what = blocks_[which];  // where there is none: the record that is never used
  fetch(what);
  // Read once: a byte that is stored may be any other's, for all that the compiler knows.
  const std::uint32_t units = what.units;
  const std::uint64_t held = cache.units + units;
  // A block whose home is here is of the allocator's own pool, kept by size, counted here, and
  // nobody recorded it.
  if (!is_order_of(bins, what, order) || what.is() != block_kind::live ||
      what.out.home != cache.number || held > cache.bound()) [[unlikely]] {
    cache.leave();
    return false;
  }
  const std::uint64_t rounded = units * unit;
  const std::uint64_t requested = rounded - what.out.waste;
  cache.units = held;
  cache.count_free(what.account, requested, rounded);
  what.stream = bins.slot;
  bins.push(which, what, units);
  what.become(block_kind::thread_cached);
  if constexpr (reasons == thread_cache::observed)
    tell_quickly(cache, memory_event_kind::deallocate, what, requested);
  cache.leave();
  return true;
}

}  // namespace weir::inline v0::heap

// SPDX-License-Identifier: Apache-2.0
// What the parts of a heap share: one lock, and what it guards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/releases_under_way.hpp"
#include "device/state.hpp"
#include "heap/accounts.hpp"
#include "heap/address_table.hpp"
#include "heap/card_shares.hpp"
#include "heap/foreign_uses.hpp"
#include "heap/graph_pools.hpp"
#include "heap/observers.hpp"
#include "heap/private_pools.hpp"
#include "heap/thread_cache.hpp"
#include "heap/vocabulary.hpp"
#include "observe/block_history.hpp"
#include "order/pending_frees.hpp"
#include "order/stream_order.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The state of a heap that more than one of its parts uses, and the few steps that all of them
/// take.
///
/// The central heap is one (requests and frees), and every part (residency, inspector) has a
/// reference to it. What the fast path reads is fixed from creation on; everything else is guarded
/// by `mutex_`. A function of a part that is called with the lock begins with
/// `mutex_.assert_held()`: the compiler checks everything behind that, but not its caller.
///
/// Any thread, with the lock where a function says so. Owned by the allocator, as the central heap.
class heap_core {
 public:
  heap_core(weir::device device, const allocator_options& options);
  heap_core(const heap_core&) = delete;
  heap_core& operator=(const heap_core&) = delete;

  /// driver_gone in a forked child, `closed` after close().
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

  /// Waits for the releases that other threads make without the lock now, and lets go of the lock
  /// meanwhile. False: there are none.
  bool wait_for_releases() noexcept WEIR_REQUIRES(mutex_);

  /// The calling thread's cache in this heap; null: it has none.
  [[nodiscard]] thread_cache* own_cache() const noexcept {
    return this_thread.owner == serial_ ? this_thread.cache : nullptr;
  }

  [[nodiscard]] pool_state* find_pool(pool_id id) const noexcept WEIR_REQUIRES(mutex_);
  /// The pool with the next higher id; null if there is none. For loops that release the lock.
  [[nodiscard]] pool_state* pool_behind(pool_id id) const noexcept WEIR_REQUIRES(mutex_);
  /// The pool that a block was handed out from.
  [[nodiscard]] pool_state& pool_of(const block& block) noexcept WEIR_REQUIRES(mutex_);
  /// A pool with one holder.
  [[nodiscard]] pool_state& add_pool(std::string name) WEIR_REQUIRES(mutex_);
  /// The last one that goes leaves the pool to the next sweep.
  void drop_holder(pool_state& left) noexcept WEIR_REQUIRES(mutex_);
  /// Graphs that ended since the last call let go of their pools. Whether one ended.
  bool notice_ended_graphs() noexcept WEIR_REQUIRES(mutex_) {
    if (!captures_.ended()) [[likely]]
      return false;
    sweep_graphs();
    return true;
  }
  void sweep_graphs() noexcept WEIR_REQUIRES(mutex_);
  /// Replays of the pool's graphs may be under way, and keep its memory until they are done.
  void guard_replays(pool_state& left) noexcept WEIR_REQUIRES(mutex_);

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
  /// The smaller of the user's own limit and the lowest ceiling of a share.
  std::atomic<std::uint64_t> limit_;
  thread_caches caches_;

  std::weak_ptr<central_heap> owner_;  // the heap, for handles to its pools; fixed in create()

  // Observers of its own, fixed at creation; null: there is none. They outlive the pools, which
  // tell them of their end.
  std::unique_ptr<observe::block_history> history_;  // what was told of blocks, for misuse
  std::unique_ptr<event_sink> tool_regions_;         // for a tool that watches the process
  std::unique_ptr<event_sink> block_watch_;          // the device's

  mutable detail::mutex mutex_;
  order::stream_order order_ WEIR_GUARDED_BY(mutex_);
  placement_context placement_ WEIR_GUARDED_BY(mutex_);
  accounts accounts_ WEIR_GUARDED_BY(mutex_);
  order::pending_frees pending_ WEIR_GUARDED_BY(mutex_);
  capture_registry captures_ WEIR_GUARDED_BY(mutex_);
  const std::shared_ptr<const bool> events_ = std::make_shared<const bool>();  // outlives pools_
  const std::shared_ptr<observers> observers_ = std::make_shared<observers>();
  /// The allocator's own first.
  std::vector<std::unique_ptr<pool_state>> pools_ WEIR_GUARDED_BY(mutex_);
  std::uint32_t next_pool_ WEIR_GUARDED_BY(mutex_) = 1;
  /// A pool that nobody holds lost its last block.
  bool pools_to_sweep_ WEIR_GUARDED_BY(mutex_) = false;
  detail::releases_under_way releases_ WEIR_GUARDED_BY(mutex_);  // by stores, without the lock
  /// The user's own; limit_ is what counts.
  std::uint64_t own_limit_ WEIR_GUARDED_BY(mutex_) = limit_.load(std::memory_order_relaxed);
  neighbourhood neighbours_ WEIR_GUARDED_BY(mutex_);  // of the latest share; empty: none
  foreign_uses foreign_uses_ WEIR_GUARDED_BY(mutex_);

 protected:
  ~heap_core() = default;
};

/// Keeps a pool alive while the lock is released. Made and destroyed with the lock.
class pool_hold {
 public:
  pool_hold(heap_core& core, pool_state& held) noexcept
      : core_{core}, held_{held}, was_released_{held.holders == 0} {
    ++held_.holders;
  }
  ~pool_hold() WEIR_UNCHECKED_LOCKING {  // the lock is held, as the class comment says
    if (!was_released_) {
      core_.drop_holder(held_);
    } else {  // its end was told already
      --held_.holders;
      core_.pools_to_sweep_ = true;
    }
  }
  pool_hold(const pool_hold&) = delete;
  pool_hold& operator=(const pool_hold&) = delete;

 private:
  heap_core& core_;
  pool_state& held_;
  const bool was_released_;
};

}}}  // namespace weir::v0::heap

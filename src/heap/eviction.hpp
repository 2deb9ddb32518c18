// SPDX-License-Identifier: Apache-2.0
// Eviction: which pool makes room for another.
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.hpp"
#include "heap/heap_core.hpp"
#include "order/driver_access.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What eviction asks of the rest of the heap. Implemented by the residency. Every call is made
/// with the heap's lock.
class eviction_host {
 public:
  /// Whether the pool's memory is, or would be, of a kind that can be suspended.
  [[nodiscard]] virtual result<void> may_suspend(const pool_state& pool) const = 0;
  /// Suspends pools that are resident. Lets go of the lock.
  [[nodiscard]] virtual result<suspend_outcome> suspend_pools(
      const std::vector<pool_state*>& chosen, const suspend_options& options) = 0;
  /// Waits until a pool has arrived where it was going. Lets go of the lock; `closed`: the heap was
  /// closed meanwhile.
  [[nodiscard]] virtual result<void> await_move() = 0;
  [[nodiscard]] virtual result<bool> any_capturing(order::driver_access& driver) = 0;
  /// Stops, settles and flushes all threads' caches.
  virtual void flush_caches() noexcept = 0;

 protected:
  ~eviction_host() = default;
};

/// The part of a heap that chooses the pools that are suspended so that others find room.
///
/// A pool may be evicted if it was declared evictable, is resident and has memory; the one of the
/// lowest priority goes first. For a pool that is evictable itself, only those of a lower priority
/// may. Nothing is evicted while a stream is captured, or if it could not make room. Has no state
/// of its own.
///
/// Owned by the residency. The caller holds the heap's lock.
class eviction {
 public:
  eviction(heap_core& core, eviction_host& host) noexcept : core_{core}, host_{host} {}
  eviction(const eviction&) = delete;
  eviction& operator=(const eviction&) = delete;

  /// Waits for a pool that is leaving already. If none is, suspends the evictable pool with the
  /// lowest priority. Lets go of the lock meanwhile. False: no pool may be evicted, or evicting all
  /// of them would not make room for `needed` bytes. `asking` is null if no pool of this allocator
  /// asks.
  [[nodiscard]] result<bool> evict(pool_state* asking, bytes needed, order::driver_access& driver);

  // The two steps of that, for who holds `asking`.

  /// Waits if another pool is on its way out, or on its way back with all its memory.
  [[nodiscard]] result<bool> await_leaving(const pool_state* asking);
  [[nodiscard]] result<bool> evict_for(const pool_state* asking, std::uint64_t needed,
                                       order::driver_access& driver);

  /// Whether `needed` bytes would fit beside live memory if everything that may be evicted for them
  /// were. May flush the threads' caches.
  [[nodiscard]] bool could_fit(const pool_state& asking, std::uint64_t needed);

 private:
  [[nodiscard]] bool is_evictable_for(const pool_state& pool, const pool_state* asking) const
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] bool fits_beside_live(const pool_state& asking, std::uint64_t needed)
      WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  eviction_host& host_;
};

}}}  // namespace weir::v0::heap

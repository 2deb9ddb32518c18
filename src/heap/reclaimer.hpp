// SPDX-License-Identifier: Apache-2.0
// What a search for room may ask of the heap, beyond the store of the pool it searches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "heap/accounts.hpp"
#include "heap/private_pools.hpp"
#include "heap/thread_cache.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What the user's out-of-memory callbacks did.
struct callback_answer {
  bool asked = false;             ///< there were some, and this thread is not inside one
  bool claimed = false;           ///< one says that it freed something
  bool freed = false;             ///< memory of this allocator or of the device was freed meanwhile
  std::uint64_t live = 0;         ///< bytes of this allocator, when they were done
  std::uint64_t device_free = 0;  ///< bytes, when they were done; 0: not known
};

/// How often a request asks callbacks: again as long as less is live, or more of the device is
/// free, than after any call before, and a few times more while something is freed all the same.
/// Without a bound one that takes memory and gives it back would be asked for ever.
class callback_bound {
 public:
  static constexpr int most_fruitless = 8;

  /// Whether they are worth asking again after they did this.
  [[nodiscard]] bool allows(const callback_answer& answer) noexcept {
    if (!answer.freed) return false;
    const bool gained = answer.live < least_live_ || answer.device_free > most_free_;
    least_live_ = std::min(least_live_, answer.live);
    most_free_ = std::max(most_free_, answer.device_free);
    return gained || ++fruitless_ < most_fruitless;
  }

 private:
  std::uint64_t least_live_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t most_free_ = 0;
  int fruitless_ = 0;
};

/// Carries what a user's callback threw through the heap to its caller. In the heap itself a
/// std::bad_alloc means that the host has no memory; one that a callback throws does not.
struct callback_exception {
  std::exception_ptr thrown;
};

/// Room in a pool that serves requests to the allocator when there is no other memory.
struct fallback_room {
  pool_state* pool = nullptr;  ///< null: none has any
  account_number account = 0;
  block_index block = no_block;
};

/// How long a request waits for other streams: for what was freed when it began to wait, and then a
/// few times more for what was freed meanwhile. Without a bound a request that cannot be met would
/// wait for as long as other threads free memory.
class wait_bound {
 public:
  static constexpr int most_cuts = 8;

  /// The epoch to wait for: memory that was freed by its end. Nothing: that was long enough.
  [[nodiscard]] std::optional<order::epoch> until(const order::stream_order& order) noexcept {
    if (!until_ && cuts_++ < most_cuts) until_ = order.last_ended();
    return until_;
  }
  /// All of that has been waited for.
  void reached() noexcept { until_.reset(); }
  /// Whether nobody asked this before.
  [[nodiscard]] bool first_wait_for_graphs() noexcept {
    return !std::exchange(waited_for_graphs_, true);
  }

 private:
  std::optional<order::epoch> until_;
  int cuts_ = 0;
  bool waited_for_graphs_ = false;
};

/// The acts by which memory becomes free that was not, each a rung of room_search::find_room().
/// Implemented by reclamation. Every call is made with the heap's lock.
class reclaimer {
 public:
  /// What must not fail once a block of `needed` bytes is found: its account, its place in the
  /// address table, its record, and the pool's store.
  [[nodiscard]] virtual result<account_number> prepare(pool_state& pool, bytes needed,
                                                       order::driver_access& driver) = 0;
  /// The pool of the capture that the stream is in.
  [[nodiscard]] virtual result<pool_state*> capture_pool(const stream_ref& stream, stream_slot slot,
                                                         order::driver_access& driver) = 0;

  /// Flushes what the thread's own cache has beside its bins: what is large or unplaced. Takes in
  /// what is remote first.
  virtual void flush_unbinned(thread_cache& own) noexcept = 0;
  /// Flushes a cache, or all, of which the caller's own is not stopped; true if anything was there.
  virtual bool flush(thread_cache& cache) noexcept = 0;
  virtual bool flush_others(thread_cache* own) noexcept = 0;

  /// What was completed meanwhile becomes quiescent; closes the epochs of all streams but one. Ends
  /// pools as sweep_pools() does.
  [[nodiscard]] virtual result<bool> retire_completed(stream_slot spared, pool_state& asking,
                                                      order::driver_access& driver) = 0;
  /// Whether a block of just that size waits for recorded streams and is the stream's afterwards.
  [[nodiscard]] virtual bool any_pending_like(const request& wanted,
                                              const pool_state& pool) const noexcept = 0;
  /// Looks whether the recorded streams have come to rest; closes no epoch. A driver in trouble is
  /// left to who needs it.
  virtual void retire_pending(order::driver_access& driver) noexcept = 0;
  /// Whether a stream may be made to wait for others.
  [[nodiscard]] virtual bool queues_waits() const noexcept = 0;
  /// A pending block that is large enough becomes the stream's, behind queued waits.
  [[nodiscard]] virtual result<bool> take_pending_behind_waits(const request& wanted,
                                                               const pool_state& pool,
                                                               order::driver_access& driver) = 0;

  /// What a pool that helps out has free for the stream, as it lies.
  [[nodiscard]] virtual result<fallback_room> fit_in_fallback(const request& wanted) = 0;
  /// Ends pools that nobody holds any more, as far as that can be. May let go of the lock.
  [[nodiscard]] virtual result<void> sweep_pools(pool_state& asking,
                                                 order::driver_access& driver) = 0;
  [[nodiscard]] virtual bool may_release(const pool_state& pool) const noexcept = 0;
  /// Whether releasing memory to the driver could make room for the request.
  [[nodiscard]] virtual result<bool> release_can_help(const request& wanted,
                                                      const pool_state& asking,
                                                      order::driver_access& driver) = 0;
  /// Whether memory whose streams are not done with it could make room for the request.
  [[nodiscard]] virtual result<bool> wait_can_help(const request& wanted, const pool_state& asking,
                                                   order::driver_access& driver) = 0;
  /// Releases what the first other pool has that has anything; 0: none has. May let go of the lock.
  [[nodiscard]] virtual result<bytes> release_from_others(pool_state& asking, bytes most,
                                                          order::driver_access& driver) = 0;
  /// The same of all that the pool itself has free.
  [[nodiscard]] virtual result<bytes> release_own(pool_state& asking,
                                                  order::driver_access& driver) = 0;
  /// Waits for memory that other threads give to the driver now, and lets go of the lock meanwhile.
  /// False: there is none.
  [[nodiscard]] virtual result<bool> await_releases(pool_state& asking) = 0;
  /// How many releases without the lock have ended. If it changed, the lock was free meanwhile.
  [[nodiscard]] virtual std::uint64_t releases_ended() const noexcept = 0;

  /// Suspends the evictable pool of the lowest priority; lets go of the lock meanwhile. False:
  /// there is none that the pool may evict, or all of them would not make room for `needed` bytes.
  [[nodiscard]] virtual result<bool> evict(pool_state& asking, bytes needed,
                                           order::driver_access& driver) = 0;
  /// Calls the user's callbacks, without the lock. Throws callback_exception if one throws.
  [[nodiscard]] virtual result<callback_answer> ask_callbacks(pool_state& pool, thread_cache* own,
                                                              bytes needed) = 0;
  /// Calls those of the user's callbacks that come before growth, without the lock. False: there
  /// are none, or this thread is inside one. Throws callback_exception if one throws.
  [[nodiscard]] virtual result<bool> ask_before_growth(pool_state& pool, bytes needed) = 0;
  /// Waits for the oldest work that memory is bound to, without the lock. False: there is none, or
  /// it was waited for long enough.
  [[nodiscard]] virtual result<bool> wait_for_oldest(pool_state& asking, wait_bound& bound,
                                                     order::driver_access& driver) = 0;

 protected:
  ~reclaimer() = default;
};

}}}  // namespace weir::v0::heap

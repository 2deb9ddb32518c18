// SPDX-License-Identifier: Apache-2.0
// Suspending pools and bringing them back: who waits, who copies, and what a failure leaves.
//
// A pool that is suspended goes through four states (residence). A change is under way while it is
// `suspending` or `resuming`: one thread carries it out, most of it without the heap's lock, and
// the others wait for `moved_` or keep away from the pool's store.
//
//   suspend_pools    mutex_ |  nobody captures; requests are turned away; caches are flushed
//                    none   |    all work of the context is waited for, and of those of peers
//                    mutex_ |  plan_suspend
//                    none   |    contents are copied out; all is unmapped, or nothing; released
//                    mutex_ |  apply
//   resume_pools     mutex_ |  plan_resume; room under the limit
//                    none   |    created, mapped, copied in, each while the next is under way
//                    mutex_ |      what others cache is released where the driver has no more
//                    mutex_ |  apply, or back to where it was
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "heap/eviction.hpp"
#include "heap/heap_backup.hpp"
#include "heap/heap_core.hpp"
#include "heap/queued_move.hpp"
#include "heap/reclaimer.hpp"
#include "heap/suspended_peak.hpp"
#include "order/driver_access.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/stats.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace heap {

using order::driver_access;

/// What residency asks of the rest of the heap. Implemented by reclamation. Every call is made with
/// the heap's lock.
class residency_host {
 public:
  /// Counts what the threads' caches did; the caller has stopped them.
  virtual void settle_caches() noexcept = 0;
  /// Empties the threads' caches; the caller has stopped them. True: anything was in them.
  virtual bool flush_all() noexcept = 0;
  /// Stops, settles and flushes all threads' caches.
  virtual void flush_caches() noexcept = 0;
  /// Tells the caches which tags they do not serve; the caller has stopped them.
  virtual void update_limits() noexcept = 0;
  [[nodiscard]] virtual result<bool> any_capturing(driver_access& driver) = 0;

  /// Room from what others cache, and from releases that other threads make now. False: there is
  /// none. May let go of the lock.
  [[nodiscard]] virtual result<bool> reclaim_cached(pool_state& asking, bytes needed,
                                                    driver_access& driver) = 0;
  /// As in reclaimer. Lets go of the lock.
  [[nodiscard]] virtual result<bool> wait_for_oldest(pool_state& asking, wait_bound& bound,
                                                     driver_access& driver) = 0;
  [[nodiscard]] virtual store_traits traits_of(const pool_state& pool) const = 0;
  /// The text about a request of that size that finds no memory; the caller has stopped and settled
  /// the caches.
  [[nodiscard]] virtual std::string shortage_text(bytes needed) = 0;

 protected:
  ~residency_host() = default;
};

/// Which pools of a heap have their memory, and the way of that memory to the host and back.
///
/// Has the pools of tags that were declared suspendable, and the moves that are under way. Always
/// true, with the lock: a pool that is `suspending` or `resuming` is in just one move, and all
/// others know from pool_state::where whether their memory is there.
///
/// Owned by the central heap. Any thread. "With the lock" is that of the heap's core.
class residency final : private eviction_host {
 public:
  struct all_pools {};
  using pool_selection = std::variant<all_pools, tag, pool_id>;

  residency(heap_core& core, residency_host& host, heap_backup& backup, suspended_peak& peak)
      : core_{core}, host_{host}, backup_{backup}, peak_{peak}, eviction_{core, *this} {}
  ~residency();
  residency(const residency&) = delete;
  residency& operator=(const residency&) = delete;

  // --- For users --------------------------------------------------------------------------------

  result<void> declare_suspendable(tag tag, const suspendable_options& options)
      WEIR_EXCLUDES(core_.mutex_);
  result<suspend_outcome> suspend(const pool_selection& which, const suspend_options& options)
      WEIR_EXCLUDES(core_.mutex_);
  result<resume_outcome> resume(const pool_selection& which, const resume_options& options)
      WEIR_EXCLUDES(core_.mutex_);
  result<void> suspend_async(const pool_selection& which, const suspend_options& options)
      WEIR_EXCLUDES(core_.mutex_);
  result<resume_outcome> resume_async(const pool_selection& which, const stream_ref& stream)
      WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] result<bool> is_suspended(const pool_selection& which) WEIR_EXCLUDES(core_.mutex_);

  // --- For the heap, with the lock --------------------------------------------------------------

  /// Whether any tag was declared suspendable.
  [[nodiscard]] bool any_tag_pool() const noexcept {
    core_.mutex_.assert_held();
    return !tag_pools_.empty();
  }
  [[nodiscard]] bool has_tag_pool(std::uint16_t tag) const noexcept {
    core_.mutex_.assert_held();
    return tag < tag_pools_.size() && tag_pools_[tag] != pool_id{};
  }
  /// The pool of a tag that was declared suspendable; null if it was not.
  [[nodiscard]] pool_state* suspendable_pool(tag tag) const noexcept;

  /// Until the pool is resident, or why it stays away, for a request of `needed` bytes. May let go
  /// of the lock.
  [[nodiscard]] result<void> await_residence(pool_state& pool, std::uint64_t needed);
  /// Waits until no pool is on its way.
  [[nodiscard]] result<void> await_moves();
  /// Waits until pools that are on their way back have arrived.
  [[nodiscard]] result<void> await_arrivals();
  /// Suspending pools so that others find room.
  [[nodiscard]] eviction& evictions() noexcept { return eviction_; }

  // --- For close() ------------------------------------------------------------------------------

  /// not_permitted: the thread is in a progress callback or carries a move, and would wait for
  /// itself.
  [[nodiscard]] result<void> may_end() const;
  /// With the lock, once the heap is closed: calls off what has not begun, and waits for the
  /// others. Lets go of the lock.
  void end() noexcept;

 private:
  struct called_off {
    bool any = false;
    bool in_order = true;  // the stream waits for copies that are under way
  };

  // --- residency.cpp ----------------------------------------------------------------------------

  [[nodiscard]] static result<void> check_options(const suspend_options& options);
  /// not_permitted: the thread is in a progress callback, which would wait for itself.
  [[nodiscard]] result<void> may_wait() const;
  [[nodiscard]] bool is_meant(const pool_state& pool, const pool_selection& which) const noexcept
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<std::vector<pool_state*>> meant_by(const pool_selection& which)
      WEIR_REQUIRES(core_.mutex_);
  /// The pools, when none of them is one to wait for.
  [[nodiscard]] result<std::vector<pool_state*>> select(const pool_selection& which,
                                                        bool (*is_awaited)(const pool_state&))
      WEIR_REQUIRES(core_.mutex_);
  /// Whether the pool's memory is, or would be, of a kind that can be suspended.
  [[nodiscard]] result<void> may_suspend(const pool_state& pool) const override
      WEIR_REQUIRES(core_.mutex_);
  /// Waits until a pool has arrived where it was going, or the heap is closed; the same holds.
  [[nodiscard]] result<void> await_move() override WEIR_REQUIRES(core_.mutex_);
  /// The move's pools are on their way from here on.
  void begin(queued_move& move, residence now) noexcept WEIR_REQUIRES(core_.mutex_);
  /// They are where they belong, and leave the move.
  void settle(queued_move& move) noexcept WEIR_REQUIRES(core_.mutex_);
  void emit_moved(memory_event_kind kind, const pool_state& pool, std::uint64_t size,
                  std::uint64_t contents) const noexcept WEIR_REQUIRES(core_.mutex_);
  void shut_caches(bool shut) noexcept WEIR_REQUIRES(core_.mutex_);

  // --- residency_suspend.cpp --------------------------------------------------------------------

  /// Those that have something to suspend; what cannot be goes into the outcome.
  [[nodiscard]] result<std::vector<pool_state*>> choose(const std::vector<pool_state*>& meant,
                                                        const pool_selection& which,
                                                        suspend_outcome& outcome) const
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> nobody_captures(driver_access& driver) WEIR_REQUIRES(core_.mutex_);
  // These let go of the lock for the long part.
  [[nodiscard]] result<suspend_outcome> suspend_pools(const std::vector<pool_state*>& chosen,
                                                      const suspend_options& options) override
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<suspend_outcome> carry_out(queued_move& move, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] bool mark_users(queued_move& move, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> wait_for_users(const queued_move& move, driver_access& driver)
      WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] result<void> save_contents(moving_pools& moves, const suspend_options& options,
                                           backup_copies& copies, const context_scope& bound)
      WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] bool commit(queued_move& move) WEIR_EXCLUDES(core_.mutex_);

  // --- residency_return.cpp ---------------------------------------------------------------------

  [[nodiscard]] result<std::vector<pool_state*>> select_to_resume(const pool_selection& which,
                                                                  const stream_ref* ahead_of)
      WEIR_REQUIRES(core_.mutex_);
  /// Lets go of the lock for the long part.
  [[nodiscard]] result<resume_outcome> resume_pools(const std::vector<pool_state*>& chosen,
                                                    const resume_options& options,
                                                    const stream_ref* ahead_of = nullptr,
                                                    bool evicts = true) WEIR_REQUIRES(core_.mutex_);
  void enter_return(queued_move& move, bool came) noexcept WEIR_REQUIRES(core_.mutex_);
  void arrive(queued_move& move, bool came) noexcept WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> fit_under_limit(const queued_move& move, std::uint64_t needed,
                                             driver_access& driver) WEIR_REQUIRES(core_.mutex_);
  /// The same for what the device has, before the first handle is created.
  [[nodiscard]] result<void> fit_on_device(const queued_move& move, std::uint64_t needed,
                                           driver_access& driver) WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<bool> make_room(const queued_move& move, std::uint64_t needed,
                                       wait_bound& waits, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<bool> ask_neighbours(const moving_pools& moves, std::uint64_t needed)
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> bring_back(queued_move& move, const resume_options& options,
                                        const stream_ref* ahead_of,
                                        resume_outcome& outcome) noexcept
      WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] result<void> fill(placement::suspended_place& place, const moving_pool& of,
                                  const queued_move& move, driver_access& driver)
      WEIR_EXCLUDES(core_.mutex_);
  [[nodiscard]] error why_not_resumed(error reason, std::uint64_t needed)
      WEIR_REQUIRES(core_.mutex_);

  // --- What the eviction asks for ---------------------------------------------------------------

  [[nodiscard]] result<bool> any_capturing(driver_access& driver) override
      WEIR_REQUIRES(core_.mutex_) {
    return host_.any_capturing(driver);
  }
  void flush_caches() noexcept override WEIR_REQUIRES(core_.mutex_) { host_.flush_caches(); }

  // --- residency_async.cpp ----------------------------------------------------------------------

  /// Calls off suspensions of these pools that are not committed.
  called_off take_back(const pool_selection& which, const stream_ref* ahead_of = nullptr) noexcept
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] bool stop_copies(queued_move& move, const stream_ref* ahead_of) noexcept
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] bool start_carrier(queued_move& move) noexcept WEIR_REQUIRES(core_.mutex_);
  void carry(queued_move& move) noexcept WEIR_EXCLUDES(core_.mutex_);
  // These let go of the lock for the long part.
  [[nodiscard]] result<void> finish_suspension(queued_move& move) noexcept
      WEIR_REQUIRES(core_.mutex_);
  [[nodiscard]] result<void> finish_return(queued_move& move) noexcept WEIR_REQUIRES(core_.mutex_);
  void end_carriers() noexcept WEIR_REQUIRES(core_.mutex_);
  void join_carriers() noexcept WEIR_EXCLUDES(core_.mutex_);

  heap_core& core_;
  residency_host& host_;
  heap_backup& backup_;
  suspended_peak& peak_;
  eviction eviction_;
  /// By tag number: the pool of a tag that was declared suspendable.
  std::vector<pool_id> tag_pools_ WEIR_GUARDED_BY(core_.mutex_);
  std::size_t moving_ WEIR_GUARDED_BY(core_.mutex_) = 0;  // pools on their way
  std::list<queued_move> queued_ WEIR_GUARDED_BY(core_.mutex_);
  std::condition_variable_any moved_;  // one of them arrived, or the heap is closed
};

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// How far the streams of a heap have come, and what becomes of the memory that they freed.
#pragma once

#include <vector>

#include "heap/heap_core.hpp"
#include "heap/private_pools.hpp"
#include "heap/vocabulary.hpp"
#include "order/all_work_wait.hpp"
#include "order/awaited_marks.hpp"
#include "order/driver_access.hpp"
#include "order/stream_waiter.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"

namespace weir { inline namespace v0 { namespace heap {

using order::driver_access;

/// What stream_progress asks of the heap. Implemented by the central heap. Called with the heap's
/// lock.
class stream_progress_host {
 public:
  /// All streams that a pending block waited for have completed: the block goes to its store.
  virtual void free_waited(block_index index, stamp freed) noexcept = 0;

 protected:
  ~stream_progress_host() = default;
};

/// Finds out what streams have completed, and makes that memory quiescent in the stores.
///
/// What is known of the streams stands in the core (stream_order). A stream that freed a lot is
/// remembered here until its memory is shared. Streams of other devices that use blocks are taken
/// into account.
///
/// Owned by the central heap. The caller holds the heap's lock. Each retire walks over all pools
/// and streams, each poll queries the driver once for each mark that is not known to be reached.
class stream_progress final : private order::stream_waiter_host {
 public:
  stream_progress(heap_core& core, stream_progress_host& host) noexcept
      : core_{core}, host_{host}, waiter_{core.mutex_, core.order_, *this} {}
  stream_progress(const stream_progress&) = delete;
  stream_progress& operator=(const stream_progress&) = delete;

  // --- What is known to be completed ------------------------------------------------------------

  /// Makes what is completed quiescent in the pool.
  void retire(pool_state& pool) noexcept;
  /// The same for all pools, and for pending blocks. True: a pending block was freed.
  bool retire_all() noexcept;
  /// The same where no stream is behind: one that ended may have completed what was freed. True:
  /// memory became usable by other streams.
  bool retire_unnoticed() noexcept;

  // --- Asking streams ---------------------------------------------------------------------------

  /// Closes the epochs of all streams but one, looks which marks are reached, and retires. True if
  /// a stream came on.
  [[nodiscard]] result<bool> poll_streams(driver_access& driver, stream_slot spared);
  /// Looks which marks are reached, and retires. Closes no epoch. A driver in trouble is left to
  /// who needs it.
  void poll_marks(driver_access& driver) noexcept;
  /// Whether a capture is declared, noticed or known to be under way.
  [[nodiscard]] result<bool> any_capturing(driver_access& driver);

  /// The stream freed enough for a mark: share_if_due() shares it.
  void share_later(stream_slot slot) noexcept {
    core_.mutex_.assert_held();
    to_share_ = slot;
  }
  /// Closes the epoch of a stream that freed a lot and polls the others: where streams share
  /// memory, one should not take a miss for others to profit.
  void share_if_due() noexcept {
    core_.mutex_.assert_held();
    if (to_share_ != no_stream) [[unlikely]]
      share_now();
  }

  // --- Waiting ----------------------------------------------------------------------------------
  //
  // These let go of the lock while they wait, and return `closed` if the heap was closed meanwhile.

  /// Waits for the streams that memory is bound to, and for all work where some of them cannot be
  /// marked.
  [[nodiscard]] result<void> wait_for_streams(driver_access& driver);
  /// Waits for these marks, looks which others are reached, and retires.
  [[nodiscard]] result<void> wait_for(const order::awaited_marks& marks, driver_access& driver) {
    return waiter_.wait_for(marks, driver);
  }
  /// Waits for all work that was queued so far, on the device and on others that can reach its
  /// memory. Captures stay valid.
  [[nodiscard]] result<void> wait_for_all_work(driver_access& driver) {
    return waiter_.wait_for_all_work(driver);
  }
  /// A wait for all work that the caller made itself has ended: retires what that completed.
  void learn_from(const order::all_work_wait& work) noexcept { waiter_.learn_from(work); }
  /// The other devices that can reach the memory, or whose streams are owed a wait.
  [[nodiscard]] std::vector<weir::device> other_devices() const override;

 private:
  void retire() noexcept override { static_cast<void>(retire_all()); }
  [[nodiscard]] result<void> may_go_on() const override { return core_.usable(); }
  void marks_begin() noexcept override;
  void all_work_wait_begins() noexcept override;
  void all_work_completed(order::epoch until) noexcept override;
  void share_now() noexcept WEIR_REQUIRES(core_.mutex_);
  void share_freed(driver_access& driver) WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  stream_progress_host& host_;
  order::stream_waiter waiter_;
  stream_slot to_share_ WEIR_GUARDED_BY(core_.mutex_) = no_stream;  // freed enough for a mark
};

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// Polling the streams of a stream_order, and waiting for them without the lock of its owner.
#pragma once

#include <vector>

#include "base/mutex.hpp"
#include "order/all_work_wait.hpp"
#include "order/awaited_marks.hpp"
#include "order/driver_access.hpp"
#include "order/stream_order.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"

namespace weir { inline namespace v0 { namespace order {

/// What a stream_waiter asks of the allocator or pool that owns the stream_order. Called with its
/// lock.
class stream_waiter_host {
 public:
  /// What streams have completed becomes usable. Called after every wait.
  virtual void retire() = 0;
  /// Whether the caller of a wait goes on, now that the lock was free. An error: the owner was
  /// closed meanwhile.
  [[nodiscard]] virtual result<void> may_go_on() const { return {}; }
  /// Streams are about to be marked.
  virtual void marks_begin() noexcept {}
  /// Further devices whose work counts where all work is waited for.
  [[nodiscard]] virtual std::vector<weir::device> other_devices() const { return {}; }
  /// A wait for all work begins: work that is queued from now on is not waited for.
  virtual void all_work_wait_begins() noexcept {}
  /// All work that was queued by the end of the epoch was waited for, that of other devices as
  /// well.
  virtual void all_work_completed(epoch /*until*/) noexcept {}

 protected:
  ~stream_waiter_host() = default;
};

/// Finds out how far streams have come, by asking and by waiting.
///
/// The steps are those of an allocator as well as those of a pool. poll() asks and does not wait.
/// The others let go of the owner's lock while they wait, so that nobody who needs it waits, too:
/// whatever the caller read before has to be read again. After an error of a wait nothing is known
/// about the work.
///
/// Owned by the owner of the stream_order, whose lock every call needs. A poll costs a query for
/// each mark that is not known to be reached.
class stream_waiter {
 public:
  stream_waiter(detail::mutex& mutex, stream_order& order, stream_waiter_host& host) noexcept
      : mutex_{mutex}, order_{order}, host_{host} {}
  stream_waiter(const stream_waiter&) = delete;
  stream_waiter& operator=(const stream_waiter&) = delete;

  /// Closes the epochs of all streams but one and looks which marks are reached. True if a stream
  /// came on: then the caller retires. Makes no driver call if no stream is behind.
  [[nodiscard]] result<bool> poll(stream_slot spared, driver_access& driver);
  /// Waits for the marks, and looks which others are reached.
  [[nodiscard]] result<void> wait_for(const awaited_marks& marks, driver_access& driver);
  /// Waits for what was freed in epochs that have ended: for the newest mark of every stream, and
  /// for all work where streams cannot be marked. The caller has polled.
  [[nodiscard]] result<void> wait_for_streams(driver_access& driver);
  /// Waits for all work that was queued so far. Captures stay valid.
  [[nodiscard]] result<void> wait_for_all_work(driver_access& driver);
  /// A wait for all work that the caller made itself has ended without an error.
  void learn_from(const all_work_wait& work);

 private:
  detail::mutex& mutex_;
  stream_order& order_;
  stream_waiter_host& host_;
};

}}}  // namespace weir::v0::order

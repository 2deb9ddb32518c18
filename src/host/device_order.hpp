// SPDX-License-Identifier: Apache-2.0
// How far the streams of one device have come with the blocks of a host arena.
#pragma once

#include <memory>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "order/driver_access.hpp"
#include "order/stamp.hpp"
#include "order/stream_order.hpp"
#include "order/stream_waiter.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace host {

/// The stream order of a device, with the waits that let go of the arena's lock.
///
/// A block is stamped when it is freed. Its stamp is completed once all work that was queued on any
/// known stream of the device by then is done: the host touches the memory in no stream's order, so
/// the stream of the free counts as well. Marks are shared by all blocks that were freed before
/// them: one event on each stream, whatever the number of frees.
///
/// Owned by a freed_blocks, under the lock of its arena. Polls make driver calls; only the waits
/// wait, without the lock.
class device_order final : private order::stream_waiter_host {
 public:
  device_order(weir::device device, detail::mutex& mutex)
      : device_{device}, order_{device}, waiter_{mutex, order_, *this} {}

  [[nodiscard]] weir::device device() const noexcept { return device_; }
  /// The slot of a stream of the device. bad_stream: it is destroyed.
  [[nodiscard]] result<order::stream_slot> slot_of(const stream_ref& stream,
                                                   order::driver_access& driver);
  [[nodiscard]] order::stamp now(order::stream_slot slot) noexcept { return order_.now(slot); }
  [[nodiscard]] bool completed(order::stamp freed) const noexcept {
    return order_.completed(freed);
  }
  [[nodiscard]] bool any_behind() const noexcept { return order_.any_behind(); }
  /// Marks the streams and looks how far they have come. True if one came on.
  [[nodiscard]] result<bool> poll(order::driver_access& driver);
  /// Looks which marks are reached, without new ones.
  [[nodiscard]] result<bool> look(order::driver_access& driver);
  /// Waits for what was freed by now.
  [[nodiscard]] result<void> wait_for_streams(order::driver_access& driver);
  /// Waits for all work of the device.
  [[nodiscard]] result<void> wait_for_all_work(order::driver_access& driver);
  /// The stream gets no more work.
  [[nodiscard]] result<void> end_stream(const stream_ref& stream,
                                        order::driver_access& driver) noexcept;

  [[nodiscard]] std::uint64_t events_recorded() const noexcept { return order_.events_recorded(); }
  [[nodiscard]] std::size_t footprint() const noexcept { return order_.footprint(); }

 private:
  void retire() override {}  // the arena looks at its blocks itself

  const weir::device device_;
  order::stream_order order_;
  order::stream_waiter waiter_;
  stream_id legacy_{};  // 0: not asked yet
};

}}}  // namespace weir::v0::host

// SPDX-License-Identifier: Apache-2.0
// One wait on the host for all work that was queued in a context.
#pragma once

#include <vector>

#include "device/finished_work.hpp"
#include "order/stream_order.hpp"

namespace weir { inline namespace v0 { namespace order {

/// Waits for all work of a device, without the lock of the stream_order that learns from it.
///
/// Three steps: made with the lock, wait() without it, apply() with it again. Streams that the
/// stream_order knows are waited for by their marks. What is left then is waited for by
/// detail::wait_for_all_work(), which keeps other threads from queueing work meanwhile. One thread.
class all_work_wait {
 public:
  /// `others`: further devices whose work counts.
  all_work_wait(stream_order& order, const context_scope& bound,
                std::vector<weir::device> others = {})
      : marks_{order.unreached_marks()},
        others_{std::move(others)},
        captured_{order.captured_streams(bound)},
        until_{order.cut()} {}

  /// An error: nothing is known about the work, and apply() must not follow.
  result<void> wait(const context_scope& bound) const;
  void apply(stream_order& order) const noexcept { order.all_work_completed(until_, captured_); }
  /// Everything that was stamped by the end of this epoch is covered.
  [[nodiscard]] epoch until() const noexcept { return until_; }

 private:
  awaited_marks marks_;
  std::vector<weir::device> others_;
  std::vector<stream_slot> captured_;
  epoch until_;
};

using detail::does_no_work;

}}}  // namespace weir::v0::order

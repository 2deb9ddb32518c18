// SPDX-License-Identifier: Apache-2.0
// Waiting for the marks of a stream_order, as its owners do.
#pragma once

#include "order/stream_order.hpp"

namespace weir::testing_support {

/// Waits for these marks and polls; false if there were none.
inline bool wait_for(const order::awaited_marks& marks, order::stream_order& order,
                     const context_scope& bound) {
  if (marks.empty()) return false;
  marks.wait().value();
  static_cast<void>(order.poll(bound).value());
  return true;
}
inline bool wait_for_marks(order::stream_order& order, const context_scope& bound) {
  return wait_for(order.unreached_marks(), order, bound);
}
inline bool wait_for_oldest_mark(order::stream_order& order, const context_scope& bound) {
  return wait_for(order.oldest_mark(), order, bound);
}
/// As if all work of the device had been waited for just now.
inline void complete_all_work(order::stream_order& order) { order.all_work_completed(order.cut()); }

}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// The steps by which allocators and pools find out how far streams have come.
#include "order/stream_waiter.hpp"

namespace weir { inline namespace v0 { namespace order {

result<bool> stream_waiter::poll(stream_slot spared, driver_access& driver) {
  mutex_.assert_held();
  if (!order_.any_behind()) return false;
  host_.marks_begin();
  WEIR_TRY(driver.entered());
  WEIR_TRY(order_.close_others(spared, driver.enter()));
  return order_.poll(driver.enter());
}

result<void> stream_waiter::wait_for(const awaited_marks& marks, driver_access& driver) {
  mutex_.assert_held();
  result<void> waited;
  {
    const unnamed_stream others_name_theirs{order_};
    const detail::mutex_unlock unlocked{mutex_};
    waited = marks.wait();
  }
  WEIR_TRY(host_.may_go_on());
  WEIR_TRY(waited);
  WEIR_TRY(order_.poll(driver.enter()));
  host_.retire();
  return {};
}

result<void> stream_waiter::wait_for_streams(driver_access& driver) {
  mutex_.assert_held();
  if (!order_.any_behind()) return {};
  const epoch until = order_.last_ended();
  const awaited_marks marks = order_.unreached_marks();
  WEIR_TRY(wait_for(marks, driver));
  if (!order_.any_behind(until)) return {};
  return wait_for_all_work(driver);
}

result<void> stream_waiter::wait_for_all_work(driver_access& driver) {
  mutex_.assert_held();
  WEIR_TRY(driver.entered());
  const all_work_wait work{order_, driver.enter(), host_.other_devices()};
  host_.all_work_wait_begins();
  result<void> waited;
  {
    const unnamed_stream others_name_theirs{order_};
    const detail::mutex_unlock unlocked{mutex_};
    waited = work.wait(driver.enter());
  }
  WEIR_TRY(host_.may_go_on());
  WEIR_TRY(waited);
  learn_from(work);
  return {};
}

void stream_waiter::learn_from(const all_work_wait& work) {
  mutex_.assert_held();
  work.apply(order_);
  host_.all_work_completed(work.until());
  host_.retire();
}

}}}  // namespace weir::v0::order

// SPDX-License-Identifier: Apache-2.0
// Slots, marks and waits of one device.
#include "host/device_order.hpp"

#include <utility>

namespace weir { inline namespace v0 { namespace host {

result<order::stream_slot> device_order::slot_of(const stream_ref& stream,
                                                 order::driver_access& driver) {
  const stream_id id = stream.is_legacy() ? legacy_ : stream.known_id();
  if (id != stream_id{}) return order_.meet(stream, id);
  WEIR_TRY(driver.entered());
  auto slot = order_.slot_of(stream, driver.enter());
  if (!slot && order::says_gone(slot.error())) {
    error reason = std::move(slot).error();
    reason.set_code(errc::bad_stream);
    return reason;
  }
  if (slot && stream.is_legacy()) legacy_ = order_.id(*slot);
  return slot;
}

result<bool> device_order::poll(order::driver_access& driver) {
  return waiter_.poll(order::no_stream, driver);
}

result<bool> device_order::look(order::driver_access& driver) {
  if (!order_.any_behind()) return false;
  WEIR_TRY(driver.entered());
  return order_.poll(driver.enter());
}

result<void> device_order::wait_for_streams(order::driver_access& driver) {
  WEIR_TRY(driver.entered());
  WEIR_TRY(waiter_.poll(order::no_stream, driver));
  return waiter_.wait_for_streams(driver);
}

result<void> device_order::wait_for_all_work(order::driver_access& driver) {
  return waiter_.wait_for_all_work(driver);
}

result<void> device_order::end_stream(const stream_ref& stream,
                                      order::driver_access& driver) noexcept {
  return order_.end_stream(stream, driver.enter());
}

}}}  // namespace weir::v0::host

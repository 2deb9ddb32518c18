// SPDX-License-Identifier: Apache-2.0
// One registration for each device.
#include "order/stream_ends.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace order {

void stream_ends::listen_on(weir::device device) {
  detail::device_state& added = detail::device_state::of(device);
  const detail::mutex_lock lock{mutex_};
  if (stopped_ || std::find(devices_.begin(), devices_.end(), &added) != devices_.end()) return;
  devices_.reserve(devices_.size() + 1);
  detail::add_listener(added, listener_);
  devices_.push_back(&added);
}

void stream_ends::stop() noexcept {
  const detail::mutex_lock lock{mutex_};
  stopped_ = true;
  for (detail::device_state* each : devices_) detail::remove_listener(*each, listener_);
  devices_.clear();
}

}}}  // namespace weir::v0::order

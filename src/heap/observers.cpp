// SPDX-License-Identifier: Apache-2.0
// Calling several observers as one.
#include "heap/observers.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace heap {

void observers::remove(const event_sink& sink) noexcept {
  const auto position = std::find(sinks_.begin(), sinks_.end(), &sink);
  if (position != sinks_.end()) sinks_.erase(position);
}

event_sink& observers::begin_end() noexcept {
  const detail::mutex_lock lock{end_mutex_};  // after what a registration removed before
  is_ending_ = true;
  return *this;
}

void observers::remove_late(const event_sink& sink) noexcept {
  const detail::mutex_lock lock{end_mutex_};
  remove(sink);
}

void observers::on_event(const memory_event& event) noexcept {
  if (!is_ending_) return tell(event);
  const detail::mutex_lock lock{end_mutex_};
  tell(event);
}

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// The observers of a host arena.
#pragma once

#include <algorithm>
#include <vector>

#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 { namespace host {

/// Calls every observer with every event. Without one an event costs a branch. Owned by an arena,
/// under its lock.
class sinks {
 public:
  /// Throws std::bad_alloc.
  void add(event_sink& sink) { sinks_.push_back(&sink); }
  void remove(const event_sink& sink) noexcept {
    const auto at = std::find(sinks_.begin(), sinks_.end(), &sink);
    if (at != sinks_.end()) sinks_.erase(at);
  }
  [[nodiscard]] bool empty() const noexcept { return sinks_.empty(); }
  void emit(const memory_event& event) const noexcept {
    for (event_sink* const each : sinks_) each->on_event(event);
  }

 private:
  std::vector<event_sink*> sinks_;
};

}}}  // namespace weir::v0::host

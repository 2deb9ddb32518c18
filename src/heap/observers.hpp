// Who is told what happens to an allocator's memory.
#pragma once

#include <vector>

#include "weir/observe/events.hpp"

namespace weir::inline v0::heap {

/// The observers of an allocator, seen from the outside as one sink, or none.
///
/// One observer is called directly; only where there are several does each event pass through here.
/// Owned by the central heap. Changes need its lock and every thread's cache stopped, so that
/// on_event() never meets one.
class observers final : private event_sink {
 public:
  void add(event_sink& sink) { sinks_.push_back(&sink); }
  void remove(const event_sink& sink) noexcept;

  /// Whom to call; null: nobody.
  [[nodiscard]] event_sink* sink() noexcept {
    if (sinks_.empty()) return nullptr;
    return sinks_.size() == 1 ? sinks_.front() : this;
  }

 private:
  void on_event(const memory_event& event) noexcept override {
    for (event_sink* const each : sinks_) each->on_event(event);
  }

  std::vector<event_sink*> sinks_;
};

}  // namespace weir::inline v0::heap

// SPDX-License-Identifier: Apache-2.0
// Who is told what happens to an allocator's memory.
#pragma once

#include <vector>

#include "base/mutex.hpp"
#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The observers of an allocator, seen from the outside as one sink, or none.
///
/// One observer is called directly; only where there are several does each event pass through here.
/// A sink that was added twice is called twice, and each remove() takes away one of the two.
///
/// Owned by the central heap and by its observers' registrations, which may end while the heap is
/// being destroyed. Until then changes need the heap's lock and every thread's cache stopped, so
/// that on_event() never meets one. From begin_end() on a mutex of its own keeps events and
/// remove_late() apart.
class observers final : private event_sink {
 public:
  void add(event_sink& sink) { sinks_.push_back(&sink); }
  void remove(const event_sink& sink) noexcept;

  /// Whom to call; null: nobody.
  [[nodiscard]] event_sink* sink() noexcept {
    if (sinks_.empty()) return nullptr;
    return sinks_.size() == 1 ? sinks_.front() : this;
  }

  /// The heap's last handle is gone. Returns whom the heap, which is being destroyed, calls from
  /// now on.
  [[nodiscard]] event_sink& begin_end() noexcept;
  /// For a registration that finds its heap gone: the sink is not called any more.
  void remove_late(const event_sink& sink) noexcept;

 private:
  void on_event(const memory_event& event) noexcept override;
  void tell(const memory_event& event) noexcept {
    for (event_sink* const each : sinks_) each->on_event(event);
  }

  std::vector<event_sink*> sinks_;
  bool is_ending_ = false;  // written and read with the heap's lock, or by who destroys the heap
  detail::mutex end_mutex_;
};

}}}  // namespace weir::v0::heap

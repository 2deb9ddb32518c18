// SPDX-License-Identifier: Apache-2.0
// Adding observers to a heap and removing them.
#pragma once

#include <memory>

#include "base/mutex.hpp"
#include "heap/heap_core.hpp"
#include "heap/heap_limits.hpp"
#include "heap/inspector.hpp"
#include "heap/observers.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The part of a heap that observers are added to and removed from.
///
/// Observers change with the lock held and all caches stopped, so that no event is under way. Where
/// there is none, the stores and the caches hold a null pointer and emit nothing.
///
/// Owned by the central heap. Any thread.
class observer_registry {
 public:
  observer_registry(heap_core& core, inspector& inspection, const heap_limits& limits) noexcept
      : core_{core}, inspection_{inspection}, limits_{limits} {}
  observer_registry(const observer_registry&) = delete;
  observer_registry& operator=(const observer_registry&) = delete;

  /// Tells the observer first what exists, if it wants to know. Returns what its registration
  /// keeps; null: the heap is closed.
  [[nodiscard]] std::shared_ptr<observers> add(event_sink& sink) WEIR_EXCLUDES(core_.mutex_);
  /// Also after close(): while another thread is inside it, events are emitted.
  void remove(event_sink& sink) noexcept WEIR_EXCLUDES(core_.mutex_);
  /// Tells the stores and the caches whom to call. With the lock and all caches stopped, or before
  /// there are any.
  void update() noexcept;

 private:
  /// Tells a new observer what a pool held when it was added.
  void tell_existing(const pool_snapshot& pool, event_sink& sink) const noexcept
      WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  inspector& inspection_;
  const heap_limits& limits_;
};

}}}  // namespace weir::v0::heap

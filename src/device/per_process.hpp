// SPDX-License-Identifier: Apache-2.0
// What a process has one of.
#pragma once

#include <atomic>
#include <cstdint>

#include "device/state.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// One Value for the process, created at first use and never destroyed, because a destructor would
/// meet a driver that is gone. A forked child has one of its own: in the parent's a thread that is
/// not there may hold a lock. For objects with static storage duration. Any thread.
template <class Value>
class per_process {
 public:
  /// Throws std::bad_alloc, at first use in a process.
  [[nodiscard]] Value& get() {
    const std::uint32_t generation = detail::fork_generation.load(std::memory_order_relaxed);
    held* current = current_.load(std::memory_order_acquire);
    if (current != nullptr && current->generation == generation) return current->value;
    auto* const created = new held{generation, {}};
    if (current_.compare_exchange_strong(current, created, std::memory_order_acq_rel))
      return created->value;
    delete created;  // another thread was first
    return current->value;
  }

 private:
  struct held {
    std::uint32_t generation;
    Value value;
  };
  std::atomic<held*> current_{nullptr};
};

}}}  // namespace weir::v0::detail

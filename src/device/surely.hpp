// SPDX-License-Identifier: Apache-2.0
// Driver calls that take back memory, tried twice.
#pragma once

#include <utility>

#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace vmm {

// For what has to go because another call failed, or because nobody needs it any more, where no
// record is kept from which it could be tried again later. What does not go at the second attempt
// is lost until the process ends; callers report it. At most two driver calls each; any thread.

/// The result of `action`, of a second attempt if the first fails.
template <class Action>
[[nodiscard]] result<void> try_twice(const Action& action) {
  auto done = action();
  return done ? std::move(done) : action();
}

/// Releases memory that nothing is mapped to any more.
[[nodiscard]] inline result<void> release_surely(const context_scope& bound,
                                                 const physical& memory) {
  return try_twice([&] { return release(bound, memory); });
}

/// Unmaps memory; while it is mapped, releasing it does not return it.
[[nodiscard]] inline result<void> unmap_surely(const context_scope& bound, device_address address,
                                               bytes size) {
  return try_twice([&] { return unmap(bound, address, size); });
}

/// Frees addresses in which nothing is mapped any more.
[[nodiscard]] inline result<void> free_surely(const context_scope& bound, device_address base,
                                              bytes size) {
  return try_twice([&] { return free(bound, base, size); });
}

}}}  // namespace weir::v0::vmm

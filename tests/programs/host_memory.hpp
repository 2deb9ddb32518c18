// SPDX-License-Identifier: Apache-2.0
// Host memory that fails on request; without effect under ThreadSanitizer, which replaces operator
// new itself.
#pragma once

#ifdef WEIR_SCARCE_HOST_MEMORY
#include "support/scarce_memory.hpp"
#endif

namespace weir::programs_test {

#ifdef WEIR_SCARCE_HOST_MEMORY
inline constexpr bool host_memory_can_fail = true;
using testing_support::scarce_memory;
using testing_support::spared_memory;
#else
inline constexpr bool host_memory_can_fail = false;
struct scarce_memory {
  explicit scarce_memory(long) {}
  ~scarce_memory() {}
  static bool take_failure() { return false; }
};
struct spared_memory {
  spared_memory() {}
  ~spared_memory() {}
};
#endif

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// What a simulated device has where ThreadSanitizer leaves a program few addresses.
#pragma once

#include "support/sanitizers.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

#if defined(__aarch64__)
inline constexpr bool few_addresses = with_thread_sanitizer;
#else
inline constexpr bool few_addresses = false;
#endif

/// A device as large as the addresses allow.
[[nodiscard]] inline sim::device_spec device_with_room() {
  sim::device_spec spec;
  if (few_addresses) {
    spec.capacity = bytes{std::uint64_t{512} << 20};
    spec.context_overhead = bytes{16 << 20};
  }
  return spec;
}

}  // namespace weir::testing_support

// What a simulated device has where ThreadSanitizer leaves a program few addresses.
#pragma once

#include "weir/sim/machine.hpp"

namespace weir::testing_support {

#if defined(__aarch64__) && defined(__SANITIZE_THREAD__)
inline constexpr bool few_addresses = true;
#elif defined(__aarch64__) && defined(__has_feature)
inline constexpr bool few_addresses = __has_feature(thread_sanitizer);
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

// Counts what the host, not a simulated device, refused.
#pragma once

#include <cstdint>

namespace weir::inline v0::sim {

/// How often the host had no addresses for a simulated machine, in calls of this thread. A driver
/// can only answer that it is out of memory; who plays programs on simulated machines can tell the
/// two apart by this.
[[nodiscard]] inline std::uint64_t& host_refusals() noexcept {
  static thread_local std::uint64_t count = 0;
  return count;
}

}  // namespace weir::inline v0::sim

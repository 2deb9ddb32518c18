// SPDX-License-Identifier: Apache-2.0
// Counts what the host, not a simulated device, refused.
#pragma once

#include <atomic>
#include <cstdint>

namespace weir { inline namespace v0 { namespace sim {

/// How often the host had no addresses for any simulated machine of the process. A driver can only
/// answer that it is out of memory; who plays programs on simulated machines can tell the two apart
/// by this. Machines share the process's addresses, so they share the count.
[[nodiscard]] inline std::atomic<std::uint64_t>& host_refusals() noexcept {
  static constinit std::atomic<std::uint64_t> count{0};
  return count;
}

}}}  // namespace weir::v0::sim

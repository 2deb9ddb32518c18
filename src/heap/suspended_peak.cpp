// SPDX-License-Identifier: Apache-2.0
// Adding up what is reserved and suspended.
#include "heap/suspended_peak.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace heap {

std::uint64_t suspended_peak::sum() const noexcept {
  std::uint64_t total = core_.placement_.reserved;
  for (const auto& each : core_.pools_) total += each->suspended_bytes();
  return total;
}

void suspended_peak::raise() noexcept { most_ = std::max(most_, sum()); }

void suspended_peak::reset() noexcept {
  core_.mutex_.assert_held();
  most_ = sum();
}

}}}  // namespace weir::v0::heap

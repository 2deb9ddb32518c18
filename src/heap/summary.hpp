// SPDX-License-Identifier: Apache-2.0
// What the text of an allocator or pool says of its memory.
#pragma once

#include <string>

#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// "requested 1 MiB (peak 2 MiB), reserved 32 MiB (peak 32 MiB), cached 31 MiB".
[[nodiscard]] inline std::string summary(const memory_stats& stats) {
  return "requested " + to_string(stats.requested) + ", reserved " + to_string(stats.reserved) +
         ", cached " + to_string(stats.cached);
}

}}}  // namespace weir::v0::heap

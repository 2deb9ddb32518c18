// SPDX-License-Identifier: Apache-2.0
// Deadlines from time limits, without overflow.
#pragma once

#include <chrono>

namespace weir { inline namespace v0 { namespace sharing {

/// The time when `limit` has passed; a limit beyond the end of the clock never passes.
[[nodiscard]] inline std::chrono::steady_clock::time_point deadline_after(
    std::chrono::milliseconds limit) noexcept {
  using clock = std::chrono::steady_clock;
  const auto now = clock::now();
  if (limit <= std::chrono::milliseconds{0}) return now;
  const auto longest =
      std::chrono::floor<std::chrono::milliseconds>(clock::time_point::max() - now);
  return limit >= longest ? clock::time_point::max() : now + limit;
}

}}}  // namespace weir::v0::sharing

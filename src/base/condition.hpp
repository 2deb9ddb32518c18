// SPDX-License-Identifier: Apache-2.0
// Waiting on a condition variable for as long as it takes.
#pragma once

#include <chrono>

namespace weir { inline namespace v0 { namespace detail {

/// As condition.wait(lock), with spurious wake-ups: the caller checks in a loop what it waits for.
/// The function of that name has a new version in libstdc++ 12 (GLIBCXX_3.4.30), which systems with
/// glibc 2.34 lack; everything else that weir imports is older. tests/package/check_library.py
/// refuses it.
template <typename Condition, typename Lock>
void wait_on(Condition& condition, Lock& lock) {
  condition.wait_until(lock, std::chrono::steady_clock::now() + std::chrono::hours{24});
}

}}}  // namespace weir::v0::detail

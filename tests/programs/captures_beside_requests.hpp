// SPDX-License-Identifier: Apache-2.0
// Threads that capture streams, and threads that end, beside requests of others.
#pragma once

#include <cstdint>
#include <string>

namespace weir::programs_test {

/// Requests run on threads of their own. Meanwhile another thread captures streams that the
/// allocator never serves, under a notice, and short threads use their default streams. No capture
/// breaks, no request fails for want of memory, and nothing is left. Returns the first failure.
[[nodiscard]] std::string capture_beside_requests(std::uint64_t seed);

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// Allocators that are closed beside requests of other threads.
#pragma once

#include <cstdint>
#include <string>

namespace weir::programs_test {

/// Threads allocate, use and free blocks of one allocator, and create, suspend and release memory,
/// while another thread closes it. Threads run as the system schedules them: not repeatable.
/// Returns the first failure; empty if there is none.
[[nodiscard]] std::string close_beside_requests(std::uint64_t seed);

}  // namespace weir::programs_test

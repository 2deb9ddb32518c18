// SPDX-License-Identifier: Apache-2.0
// A table of driver calls that counts, row by row, how often a call succeeded and how often not.
#pragma once

#include <array>
#include <cstdint>

#include "weir/driver/table.hpp"

namespace weir::testing_support {

struct call_counts {
  std::array<std::uint64_t, driver::call_count> succeeded{};
  std::array<std::uint64_t, driver::call_count> failed{};
};

/// Forwards to `real` and counts. There is one counting table in a process: the latest `real` is
/// the one it forwards to, and it must outlive its use. A null row of `real` stays null.
[[nodiscard]] const driver::table& count_calls(const driver::table& real);

/// What was counted so far in this process, with what add_counts() brought in.
[[nodiscard]] call_counts counted();

/// Adds what a child process counted.
void add_counts(const call_counts& more);

}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// A recorded trace played through the allocator on a simulated H200, on the trace's own clock.
#pragma once

#include <chrono>
#include <cstdint>

#include "support/trace.hpp"
#include "weir/allocator/allocator_options.hpp"
#include "weir/observe/stats.hpp"

namespace weir::testing_support {

struct replay_settings {
  allocator_options heap;
  /// How long work takes from being queued to being complete.
  std::chrono::nanoseconds lag = std::chrono::milliseconds{1};
};

struct replay_outcome {
  std::uint64_t requested_peak = 0;
  std::uint64_t reserved_peak = 0;
  /// Driver time that calls were charged for, by the measured costs of an H200: in the first fifth
  /// of the events, and in the rest.
  std::chrono::nanoseconds warm_up{};
  std::chrono::nanoseconds steady{};
  /// The trace's own time in that rest.
  std::chrono::nanoseconds steady_wall{};
  memory_stats stats;

  [[nodiscard]] double ratio() const {
    return static_cast<double>(reserved_peak) / static_cast<double>(requested_peak);
  }
  /// Driver time in steady state as a share of the time that passed.
  [[nodiscard]] double steady_share() const {
    return static_cast<double>(steady.count()) / static_cast<double>(steady_wall.count());
  }
};

/// Every block is freed on its stream when the recorded program could have reused it.
[[nodiscard]] replay_outcome replay(const trace& recorded, const replay_settings& settings);

}  // namespace weir::testing_support

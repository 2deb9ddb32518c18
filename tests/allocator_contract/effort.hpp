// SPDX-License-Identifier: Apache-2.0
// How much the machine under test can bear: a GPU much, a simulated one what the host can.
#pragma once

#include <chrono>
#include <cstddef>

#include "weir/base/bytes.hpp"

namespace weir::testing_support {

struct effort {
  /// Blocks up to this size are written and read whole, larger ones in part (pieces.hpp).
  bytes whole_up_to;
  /// The largest block of random programs.
  bytes largest_block;
  /// How much memory such programs may hold when they are to be short of it.
  bytes tight_limit;
  /// Random programs do at least so many operations a player, and run at least so long.
  int operations;
  std::chrono::milliseconds duration;
  /// Replays end after so many events of a trace, unless it is the smallest.
  std::size_t replayed_events;
};

/// Each of sim_effort.cpp and gpu_effort.cpp has one; a test binary links the one that belongs to
/// its machine.
[[nodiscard]] effort machine_effort();

}  // namespace weir::testing_support

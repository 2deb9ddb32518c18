// SPDX-License-Identifier: Apache-2.0
// A recording made ready to be played: its requests and frees, with blocks numbered.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace replay {

enum class action : std::uint8_t { allocate, free, record_stream, release_pool };

/// One request. `size` is the block's, as requested. release_pool has no block; its `size` is 1 if
/// the recorded memory of the pool went back to the driver then, which shows that no stream used it
/// any more.
struct step {
  std::uint64_t time = 0;  ///< nanoseconds since the recording began
  std::uint64_t size = 0;
  std::uint32_t block = 0;
  std::uint32_t stream = 0;
  std::uint16_t thread = 0;
  std::uint16_t pool = 0;
  replay::action action{};
};
static_assert(sizeof(step) == 32);

/// A program's requests to its allocator, and nothing of what the allocator did about them.
///
/// Blocks are numbered from 0 in the order of their allocation; each is allocated once, before
/// anything else happens to it, and freed at most once. Streams are numbered in the order of their
/// first step; threads and pools are the recording's. A pool is released where the program, or the
/// end of its last graph, released it.
///
/// When is a block free? Where the recording says when it could be used again (`reusable`), the
/// block is freed then, on its own stream, so that every policy sees memory come back at the
/// moments at which it did. Other blocks are freed where the program freed them, and its
/// record_stream calls for them are repeated.
struct script {
  std::vector<step> steps;
  std::size_t blocks = 0;
  std::size_t streams = 0;           ///< of the steps
  std::size_t recorded_streams = 0;  ///< of the program: some may have no step
  std::size_t threads = 0;
  std::size_t pools = 0;  ///< the allocator's own among them
  std::uint64_t allocations = 0;
  /// For each marker of the recording: how many steps come before it.
  std::vector<std::size_t> markers;
  std::uint64_t requested_peak = 0;  ///< the most that was allocated and not yet free
  std::uint64_t events = 0;          ///< of the recording that concern blocks
  /// How often the program took the physical memory from under live blocks. A replay does not: its
  /// blocks keep their memory, and what it takes is more than such a program needed.
  std::uint64_t suspensions = 0;
  /// Where the first fifth of the events ends, as a step; and how long the rest took.
  std::size_t warm_up = 0;
  std::chrono::nanoseconds steady_time{};
};

/// Reads the events once; takes 32 bytes a step. Events of unknown blocks are left out.
[[nodiscard]] script make_script(const recording& recording);

}}}  // namespace weir::v0::replay

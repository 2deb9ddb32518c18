// SPDX-License-Identifier: Apache-2.0
// Random programs of requests and frees, and what comes of them under a policy and a limit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/options.hpp"

namespace weir::limits_test {

/// What a program does next. Programs do not depend on what an allocator answers.
struct step {
  enum class act : std::uint8_t { allocate, free, empty_cache, synchronize, drop_pool };
  act what = act::allocate;
  std::uint32_t block = 0;
  std::uint64_t size = 0;
  std::uint8_t stream = 0;
  std::uint8_t pool = 0;  // 0 is the allocator's own
};

/// A program with a mix of sizes as PyTorch's have: several streams, private pools, one of which
/// may retain. The same for the same seed, on every machine.
struct program {
  std::string kind;
  std::vector<step> steps;
  std::uint32_t blocks = 0;
  std::uint8_t streams = 1;
  std::uint8_t pools = 0;
  bool last_pool_retains = false;
  std::uint64_t most_live = 0;  // bytes requested at the same time

  [[nodiscard]] static program random(std::uint64_t seed);
};

/// What bounds a run.
enum class boundary : std::uint8_t { limit, device };

struct outcome {
  bool whole = false;         // every request was met
  std::string contradiction;  // of central_heap::check()
  std::uint64_t reserved_peak = 0;
  std::size_t failed_step = 0;
  std::string report;  // why the first failure failed
};

[[nodiscard]] outcome run(const program& played, placement_policy policy, std::uint64_t most,
                          boundary by = boundary::limit);

/// The least multiple of 2 MiB at which the policy plays the program to its end, as bisection finds
/// it between what is live and what the policy holds without a limit.
[[nodiscard]] std::uint64_t least_limit(const program& played, placement_policy policy);

}  // namespace weir::limits_test

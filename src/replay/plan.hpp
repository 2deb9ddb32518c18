// SPDX-License-Identifier: Apache-2.0
// Offline placement: offsets for the blocks of a recorded step that is known in advance.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "replay/script.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// A block of a script: its size, and the steps begin … end - 1 in which it is alive.
struct lifetime {
  std::uint64_t size = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  friend bool operator==(const lifetime&, const lifetime&) = default;
};

/// The blocks of `script` that are alive at some moment of the steps from … to - 1, or before the
/// first of them, in the order of their allocation, with sizes rounded up to 512 bytes; those of
/// zero bytes are left out. `to` may be past the last step.
[[nodiscard]] std::vector<lifetime> lifetimes_between(const script& script, std::size_t from,
                                                      std::size_t to);

struct plan_settings {
  /// How long to search.
  std::chrono::nanoseconds improve = std::chrono::seconds{2};
  /// What the first plan, by size, gets where that is longer.
  std::chrono::nanoseconds first = std::chrono::seconds{1};
  /// And how often to try, whatever the time.
  std::size_t tries = 10'000;
  std::uint64_t seed = 1;
  /// Called with the height of the best plan so far, now and then.
  std::function<void(std::uint64_t)> progress{};
};

/// Where every block lies; blocks whose lifetimes meet do not meet in memory.
struct plan {
  std::vector<std::uint64_t> offsets;  ///< of each lifetime
  std::uint64_t bound = 0;             ///< the most that is alive: no plan can be lower
  std::uint64_t first_height = 0;      ///< placed in the order of size, by best fit; 0: no time
  std::uint64_t height = 0;            ///< of this plan
  std::size_t tries = 0;
  std::chrono::nanoseconds search_time{};

  /// height / bound; 0 for an empty plan.
  [[nodiscard]] double ratio() const noexcept;
};

/// Places the largest first, each into the smallest gap that fits, then searches for an order that
/// ends lower: blocks that stick out are placed earlier. Stops at the bound. The same lifetimes,
/// seed and number of tries give the same plan. A try costs as much as there are pairs of blocks
/// alive at the same time; where the time is over before the first is done, blocks are placed in
/// the order of their allocation instead, as a program would, which costs little.
[[nodiscard]] plan make_plan(const std::vector<lifetime>& blocks,
                             const plan_settings& settings = {});

}}}  // namespace weir::v0::replay

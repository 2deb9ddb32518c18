// SPDX-License-Identifier: Apache-2.0
// Offline placement: where blocks lie whose lifetimes are all known.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace weir { inline namespace v0 { namespace placement {

/// A block to place: `size` bytes, alive during the steps begin … end - 1.
struct timed_block {
  std::uint64_t size = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;

  friend bool operator==(const timed_block&, const timed_block&) = default;
};

/// Best fit with known lifetimes: places blocks in a given order, each into the smallest gap
/// between blocks that were placed before it and are alive together with it.
///
///   offset 7 +-----------------------+
///            | C                     |
///          5 +-------+-------+-------+
///            | B     | D     |
///          3 +-------+-------+-------+
///            | A                     |
///          0 +-------+-------+-------+
///     step   0   1   2   3   4   5   6
///
///   Placed in the order A, B, C, D. When D comes, only A and C are alive together with it. Between
///   them is a gap of 2 bytes, which D fits. Where no gap is large enough, a block lies above all
///   that it is alive with. Of equal gaps the lowest is taken.
///
/// Always true of a finished placement: two blocks that are alive in the same step share no byte.
///
/// The steps may repeat after a period. A block whose end lies beyond the period is then alive at
/// the begin of the next one as well, and meets what begins there. There are some hundreds of
/// blocks in a period, most of them alive together, so all that were placed are looked at for each
/// block, in the order of their offsets. Without a period there may be a hundred thousand blocks,
/// of which few are alive together: those are found by a tree over the begins.
///
/// Which order is good is the caller's question. A value that refers to the caller's blocks; one
/// thread at a time. Functions throw std::bad_alloc. Placing all blocks costs the square of their
/// number with a period, and else as much as there are pairs of blocks that are alive together.
class offline_fit {
 public:
  using clock = std::chrono::steady_clock;
  static constexpr std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint64_t out_of_time = std::numeric_limits<std::uint64_t>::max();
  static constexpr clock::time_point no_deadline = clock::time_point::max();

  /// The blocks, by begin, outlive this. With a period (not 0), begins are below it, and no block
  /// is alive for longer than it.
  explicit offline_fit(const std::vector<timed_block>& blocks, std::uint32_t period = 0);

  /// The most bytes that are alive at a time: no placement is lower.
  [[nodiscard]] std::uint64_t most_alive() const;

  /// Places the blocks that `order` names and writes their offsets. Returns the height, the end of
  /// the highest block. Stops with the height so far once that reaches `limit`, and with
  /// `out_of_time` at the deadline.
  [[nodiscard]] std::uint64_t place(const std::vector<std::uint32_t>& order,
                                    std::vector<std::uint64_t>& offsets,
                                    std::uint64_t limit = no_limit,
                                    clock::time_point deadline = no_deadline);

 private:
  struct placed_block {
    std::uint64_t offset = 0;
    std::uint32_t number = 0;
  };

  [[nodiscard]] bool repeats() const noexcept { return period_ != 0; }
  [[nodiscard]] bool alive_together(const timed_block& one,
                                    const timed_block& other) const noexcept;
  void clear();
  void add(std::uint32_t number, std::uint64_t offset);
  [[nodiscard]] std::uint64_t best_offset(const timed_block& block,
                                          const std::vector<std::uint64_t>& offsets);
  void collect(std::size_t node, std::size_t first, std::size_t last, std::size_t limit,
               std::uint32_t begin, const std::vector<std::uint64_t>& offsets);

  const std::vector<timed_block>& blocks_;
  std::uint32_t period_;

  std::vector<placed_block> by_offset_;  // with a period: what was placed

  // Without one: a tree over the blocks, in which every node has the latest end of the placed ones
  // below it. The leaf of block i is latest_end_[leaves_ + i].
  std::size_t leaves_ = 1;
  std::vector<std::uint32_t> latest_end_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_;  // reused: ranges beside a block
};

}}}  // namespace weir::v0::placement

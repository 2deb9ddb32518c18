// SPDX-License-Identifier: Apache-2.0
// Best fit with known lifetimes: which gap a block gets, and what a period changes.
#include "placement/offline_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace weir::placement { namespace {

using numbers = std::vector<std::uint32_t>;
using offsets = std::vector<std::uint64_t>;

/// The offsets of the blocks, placed in that order, and the height.
std::pair<offsets, std::uint64_t> placed(const std::vector<timed_block>& blocks,
                                         const numbers& order, std::uint32_t period = 0) {
  offline_fit fit{blocks, period};
  offsets found(blocks.size());
  const std::uint64_t height = fit.place(order, found);
  return {found, height};
}

TEST(offline_fit, places_the_example_of_the_header) {
  const std::vector<timed_block> blocks{{3, 0, 6}, {2, 0, 2}, {2, 0, 6}, {2, 2, 4}};
  EXPECT_EQ(placed(blocks, {0, 1, 2, 3}), (std::pair{offsets{0, 3, 5, 3}, std::uint64_t{7}}));
  // C lies on A at once, and the others above both.
  EXPECT_EQ(placed(blocks, {0, 2, 3, 1}), (std::pair{offsets{0, 5, 3, 5}, std::uint64_t{7}}));
  EXPECT_EQ((offline_fit{blocks}.most_alive()), 7u);
}

TEST(offline_fit, the_smallest_gap_that_fits_is_taken) {
  // At step 5 there are gaps of 9 and 7 bytes; at step 6 what is left of them, 1 and 2.
  const std::vector<timed_block> blocks{{10, 0, 10}, {9, 0, 2}, {8, 0, 10}, {7, 0, 2}, {6, 0, 10},
                                        {5, 5, 9},   {4, 5, 9}, {4, 5, 9},  {1, 6, 7}};
  EXPECT_EQ(placed(blocks, {0, 1, 2, 3, 4, 5, 6, 7, 8}),
            (std::pair{offsets{0, 10, 19, 27, 34, 27, 10, 14, 18}, std::uint64_t{40}}));
}

TEST(offline_fit, of_equal_gaps_the_lowest_is_taken) {
  const std::vector<timed_block> blocks{{10, 0, 10}, {9, 0, 2},  {8, 0, 10}, {5, 0, 2},
                                        {4, 0, 2},   {3, 0, 10}, {2, 5, 9}};
  EXPECT_EQ(placed(blocks, {0, 1, 2, 3, 4, 5, 6}),
            (std::pair{offsets{0, 10, 19, 27, 32, 36, 10}, std::uint64_t{39}}));
}

TEST(offline_fit, a_range_inside_another_is_no_gap) {
  // The second and third were never alive together: the second lies inside the first's range.
  const std::vector<timed_block> blocks{{6, 0, 2}, {1, 0, 4}, {3, 2, 4}, {2, 2, 4}};
  EXPECT_EQ(placed(blocks, {0, 1, 2, 3}), (std::pair{offsets{0, 6, 0, 3}, std::uint64_t{7}}));
}

TEST(offline_fit, a_block_that_lives_into_the_next_period_meets_what_begins_there) {
  const std::vector<timed_block> blocks{{4, 0, 2}, {1, 1, 3}, {2, 3, 5}};
  const numbers order{0, 2, 1};
  EXPECT_EQ(placed(blocks, order), (std::pair{offsets{0, 4, 0}, std::uint64_t{5}}));
  EXPECT_EQ((offline_fit{blocks}.most_alive()), 5u);
  EXPECT_EQ(placed(blocks, order, 4), (std::pair{offsets{0, 4, 4}, std::uint64_t{6}}));
  EXPECT_EQ((offline_fit{blocks, 4}.most_alive()), 6u)
      << "at step 0, with what is left of the last";
  EXPECT_EQ(placed(blocks, order, 5), (std::pair{offsets{0, 4, 0}, std::uint64_t{5}}))
      << "it ends with the period";
}

TEST(offline_fit, a_block_that_lives_for_a_whole_period_meets_all) {
  const std::vector<timed_block> blocks{{2, 0, 1}, {3, 1, 4}, {2, 2, 3}};
  EXPECT_EQ(placed(blocks, {0, 1, 2}, 3), (std::pair{offsets{0, 2, 0}, std::uint64_t{5}}));
  EXPECT_EQ((offline_fit{blocks, 3}.most_alive()), 5u);
}

TEST(offline_fit, what_the_order_does_not_name_is_not_placed) {
  const std::vector<timed_block> blocks{{4, 0, 2}, {3, 0, 2}, {2, 0, 2}};
  offline_fit fit{blocks};
  offsets found{9, 9, 9};
  EXPECT_EQ(fit.place({2, 1}, found), 5u);
  EXPECT_EQ(found, (offsets{9, 2, 0}));
  EXPECT_EQ(fit.place({1}, found), 3u) << "the placement before is forgotten";
  EXPECT_EQ(found, (offsets{9, 0, 0}));
}

TEST(offline_fit, stops_where_the_height_reaches_the_limit) {
  for (const std::uint32_t period : {0u, 4u}) {
    const std::vector<timed_block> blocks{{4, 0, 2}, {3, 0, 2}, {2, 0, 2}};
    offline_fit fit{blocks, period};
    offsets found{9, 9, 9};
    EXPECT_EQ(fit.place({0, 1, 2}, found, 8), 9u);
    EXPECT_EQ(found, (offsets{0, 4, 7}));
    found = {9, 9, 9};
    EXPECT_EQ(fit.place({0, 1, 2}, found, 7), 7u);
    EXPECT_EQ(found, (offsets{0, 4, 9}));
  }
}

TEST(offline_fit, stops_at_the_deadline) {
  const std::vector<timed_block> blocks{{4, 0, 2}, {3, 0, 2}};
  offline_fit fit{blocks};
  offsets found{9, 9};
  const auto now = offline_fit::clock::now();
  EXPECT_EQ(fit.place({0, 1}, found, offline_fit::no_limit, now), offline_fit::out_of_time);
  EXPECT_EQ(found, (offsets{9, 9}));
  EXPECT_EQ(fit.place({0, 1}, found, offline_fit::no_limit, now + std::chrono::hours{1}), 7u);
}

TEST(offline_fit, of_no_blocks_the_height_is_zero) {
  EXPECT_EQ(placed({}, {}), (std::pair{offsets{}, std::uint64_t{0}}));
  EXPECT_EQ(placed({}, {}, 5), (std::pair{offsets{}, std::uint64_t{0}}));
  const std::vector<timed_block> nothing;
  EXPECT_EQ(offline_fit{nothing}.most_alive(), 0u);
}

/// The same by definition: a set of steps for each block, and all ranges beside it sorted.
class reference {
 public:
  reference(const std::vector<timed_block>& blocks, std::uint32_t period) {
    for (const timed_block& each : blocks) {
      std::vector<bool> alive(period != 0 ? period : 200);
      for (std::uint32_t step = each.begin; step < each.end; ++step)
        alive[step % alive.size()] = true;
      steps_.push_back(alive);
      sizes_.push_back(each.size);
    }
  }
  [[nodiscard]] std::uint64_t most_alive() const {
    std::uint64_t most = 0;
    for (std::size_t step = 0; step < steps_.front().size(); ++step) {
      std::uint64_t alive = 0;
      for (std::size_t i = 0; i < steps_.size(); ++i) alive += steps_[i][step] ? sizes_[i] : 0;
      most = std::max(most, alive);
    }
    return most;
  }
  [[nodiscard]] offsets place(const numbers& order) const {
    offsets found(steps_.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
      for (std::size_t j = 0; j < i; ++j)
        if (meet(order[i], order[j]))
          taken.emplace_back(found[order[j]], found[order[j]] + sizes_[order[j]]);
      found[order[i]] = best(std::move(taken), sizes_[order[i]]);
    }
    return found;
  }

 private:
  [[nodiscard]] bool meet(std::size_t one, std::size_t other) const {
    for (std::size_t step = 0; step < steps_[one].size(); ++step)
      if (steps_[one][step] && steps_[other][step]) return true;
    return false;
  }
  /// Every offset at which it would fit, and how much of the gap is left over there.
  static std::uint64_t best(std::vector<std::pair<std::uint64_t, std::uint64_t>> taken,
                            std::uint64_t size) {
    std::sort(taken.begin(), taken.end());
    std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps;  // length, begin
    std::uint64_t end = 0;
    for (const auto& [from, to] : taken) {
      if (from > end && from - end >= size) gaps.emplace_back(from - end, end);
      end = std::max(end, to);
    }
    return gaps.empty() ? end : std::min_element(gaps.begin(), gaps.end())->second;
  }

  std::vector<std::vector<bool>> steps_;
  std::vector<std::uint64_t> sizes_;
};

TEST(offline_fit, does_what_its_definition_says) {
  std::mt19937_64 random{5};
  for (int program = 0; program < 100; ++program) {
    const auto period = static_cast<std::uint32_t>(program % 3 == 0 ? 0 : 1 + random() % 60);
    const std::size_t count = 1 + random() % 70;
    std::vector<timed_block> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<std::uint32_t>(random() % (period == 0 ? 100 : period));
      const auto lives = static_cast<std::uint32_t>(1 + random() % (period == 0 ? 60 : period));
      blocks.push_back({1 + random() % 12, begin, begin + lives});
    }
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const timed_block& a, const timed_block& b) { return a.begin < b.begin; });
    numbers order(count);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random);
    const reference expected{blocks, period};
    EXPECT_EQ(placed(blocks, order, period).first, expected.place(order)) << program;
    EXPECT_EQ((offline_fit{blocks, period}.most_alive()), expected.most_alive()) << program;
  }
}

}  // namespace
}  // namespace weir::placement

// SPDX-License-Identifier: Apache-2.0
// size_tree: order, best fit, and that it stays a tree.
#include "host/size_tree.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

namespace weir::host_test { namespace {

using host::block;
using host::size_tree;

std::vector<block> blocks_of(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& places) {
  std::vector<block> made(places.size());
  std::mt19937 random{7};
  for (std::size_t i = 0; i < places.size(); ++i) {
    made[i].size = places[i].first;
    made[i].address = places[i].second;
    made[i].weight = static_cast<std::uint32_t>(random());
  }
  return made;
}

TEST(SizeTree, the_smallest_that_is_large_enough_is_found_at_the_lowest_address) {
  auto blocks = blocks_of({{128, 900}, {64, 500}, {128, 300}, {256, 100}});
  size_tree tree;
  for (block& each : blocks) tree.insert(each);
  EXPECT_EQ(tree.at_least(1), &blocks[1]);
  EXPECT_EQ(tree.at_least(64), &blocks[1]);
  EXPECT_EQ(tree.at_least(65), &blocks[2]) << "the lower of two equals";
  EXPECT_EQ(tree.next(blocks[2]), &blocks[0]);
  EXPECT_EQ(tree.next(blocks[0]), &blocks[3]);
  EXPECT_EQ(tree.next(blocks[3]), nullptr);
  EXPECT_EQ(tree.at_least(257), nullptr);
  EXPECT_EQ(tree.largest(), &blocks[3]);
}

TEST(SizeTree, an_empty_one_has_nothing) {
  const size_tree tree;
  EXPECT_EQ(tree.at_least(0), nullptr);
  EXPECT_EQ(tree.largest(), nullptr);
  EXPECT_EQ(tree.size(), 0u);
}

TEST(SizeTree, it_agrees_with_a_set_over_random_changes) {
  std::mt19937 random{11};
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (std::uint64_t i = 0; i < 500; ++i) places.emplace_back(64 * (1 + random() % 40), 64 * i);
  auto blocks = blocks_of(places);
  size_tree tree;
  std::set<std::pair<std::uint64_t, std::uint64_t>> expected;
  for (int step = 0; step < 20'000; ++step) {
    block& one = blocks[random() % blocks.size()];
    const std::pair key{one.size, one.address};
    if (expected.erase(key) != 0) {
      tree.remove(one);
    } else {
      expected.insert(key);
      tree.insert(one);
    }
    ASSERT_EQ(tree.size(), expected.size());
    const std::uint64_t wanted = 64 * (random() % 45);
    const auto match = expected.lower_bound({wanted, 0});
    const block* const found = tree.at_least(wanted);
    ASSERT_EQ(found == nullptr, match == expected.end());
    if (found != nullptr) {
      ASSERT_EQ(std::pair(found->size, found->address), *match);
    }
  }
  auto at = expected.begin();
  for (const block* each = tree.at_least(0); each != nullptr; each = tree.next(*each), ++at)
    ASSERT_EQ(std::pair(each->size, each->address), *at);
  EXPECT_EQ(at, expected.end());
}

}  // namespace
}  // namespace weir::host_test

// SPDX-License-Identifier: Apache-2.0
// live_blocks: a hash table with gaps that close.
#include "host/live_blocks.hpp"

#include <gtest/gtest.h>

#include <random>
#include <unordered_set>
#include <vector>

namespace weir::host_test { namespace {

using host::block;
using host::live_blocks;

TEST(LiveBlocks, an_empty_one_finds_nothing) {
  const live_blocks table;
  EXPECT_EQ(table.find(64), nullptr);
  EXPECT_EQ(table.size(), 0u);
}

TEST(LiveBlocks, only_the_start_of_a_block_is_found) {
  live_blocks table;
  block one;
  one.address = 0x10000;
  one.size = 128;
  table.prepare();
  table.insert(one);
  EXPECT_EQ(table.find(0x10000), &one);
  EXPECT_EQ(table.find(0x10040), nullptr);
  table.erase(one);
  EXPECT_EQ(table.find(0x10000), nullptr);
  EXPECT_EQ(table.size(), 0u);
}

TEST(LiveBlocks, it_agrees_with_a_set_over_random_changes) {
  live_blocks table;
  std::vector<block> blocks(700);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].address = 0x7f0000000000 + 64 * i * 37;
  std::unordered_set<const block*> live;
  std::mt19937 random{5};
  for (int step = 0; step < 30'000; ++step) {
    block& one = blocks[random() % blocks.size()];
    if (live.erase(&one) != 0) {
      table.erase(one);
    } else {
      live.insert(&one);
      table.prepare();
      table.insert(one);
    }
    const block& other = blocks[random() % blocks.size()];
    ASSERT_EQ(table.find(other.address), live.contains(&other) ? &other : nullptr);
    ASSERT_EQ(table.size(), live.size());
  }
  for (const block& each : blocks)
    ASSERT_EQ(table.find(each.address) != nullptr, live.contains(&each));
}

}  // namespace
}  // namespace weir::host_test

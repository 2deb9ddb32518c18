// SPDX-License-Identifier: Apache-2.0
// Indexes where the host has no memory: what they cannot enter stays out, and nothing else is lost.
#include <gtest/gtest.h>

#include <cstdint>

#include "placement/fit_index.hpp"
#include "placement/ordered_keys.hpp"
#include "support/scarce_memory.hpp"
#include "support/sizes.hpp"

namespace weir::placement { namespace {

using testing_support::mib;
using testing_support::scarce_memory;

constexpr std::uint64_t in_a_leaf = 127;

TEST(scarce_keys, the_first_is_in_it_or_not_at_all) {
  bool enough = false;
  for (long others = 0; !enough; ++others) {
    ordered_keys keys;
    {
      const scarce_memory scarce{others};
      enough = keys.insert(5);
    }
    EXPECT_EQ(keys.last(), enough ? 5 : ordered_keys::none) << others;
    EXPECT_TRUE(keys.insert(7)) << "once there is memory again";
    EXPECT_EQ(keys.at_least(6), 7u);
    ASSERT_LT(others, 8);
  }
}

TEST(scarce_keys, a_leaf_that_cannot_be_cut_stays_as_it_was) {
  bool enough = false;
  for (long others = 0; !enough; ++others) {
    ordered_keys keys;
    for (std::uint64_t i = 1; i <= in_a_leaf; ++i) ASSERT_TRUE(keys.insert(10 * i));
    {
      const scarce_memory scarce{others};
      enough = keys.insert(15);
    }
    for (std::uint64_t i = 1; i <= in_a_leaf; ++i) ASSERT_EQ(keys.at_least(10 * i), 10 * i);
    EXPECT_EQ(keys.at_least(11), enough ? 15u : 20u) << others;
    ASSERT_LT(others, 8);
  }
}

TEST(scarce_keys, one_that_cannot_be_lowered_is_gone_and_no_other) {
  // Two leaves, of which the lower one is filled up again.
  ordered_keys keys;
  for (std::uint64_t i = 1; i <= in_a_leaf + 1; ++i) ASSERT_TRUE(keys.insert(1'000 * i));
  for (std::uint64_t i = 1; i <= in_a_leaf - (in_a_leaf / 2); ++i) ASSERT_TRUE(keys.insert(i));
  {
    const scarce_memory scarce{0};
    EXPECT_FALSE(keys.lower(1'000 * (in_a_leaf + 1), 500));
  }
  EXPECT_EQ(keys.last(), 1'000 * in_a_leaf);
  EXPECT_EQ(keys.at_least(500), 1'000u);
}

class scarce_index : public ::testing::Test {
 protected:
  static constexpr std::uint64_t base = std::uint64_t{1} << 40;
  block_index make(std::uint64_t address, std::uint64_t size) {
    EXPECT_TRUE(blocks.prepare(1));
    const block_index fresh = blocks.make();
    blocks[fresh].become(block_kind::run);
    blocks[fresh].address = address;
    blocks[fresh].units = static_cast<std::uint32_t>(size / unit);
    return fresh;
  }
  block_store blocks;
  fit_index index{blocks, base};
};

TEST_F(scarce_index, counts_a_run_that_it_cannot_enter_and_forgets_it_again) {
  const block_index run = make(base, 4 * mib);
  bool found = false;
  for (long others = 0; !found; ++others) {
    {
      const scarce_memory scarce{others};
      index.insert(run);
    }
    found = index.shortest(fit_index::large + 1) == run;
    EXPECT_EQ(index.lowest(1), found ? run : no_block) << others;
    EXPECT_EQ(index.total(), 4 * mib);
    index.remove(run);
    EXPECT_EQ(index.total(), 0u);
    EXPECT_EQ(index.shortest(fit_index::large + 1), no_block);
    EXPECT_EQ(index.lowest(1), no_block);
    EXPECT_EQ(index.longest(), 0u);
    ASSERT_LT(others, 12);
  }
}

TEST_F(scarce_index, loses_a_run_that_shrinks_into_a_cell_it_has_no_memory_for) {
  const block_index run = make(base, 40 * mib);
  index.insert(run);
  {
    const scarce_memory scarce{0};
    index.shrink(run, static_cast<std::uint32_t>(20 * mib / unit));
  }
  EXPECT_EQ(blocks[run].address, base + 20 * mib);
  EXPECT_EQ(index.total(), 20 * mib);
  EXPECT_EQ(index.lowest(1), no_block);
  EXPECT_EQ(index.shortest(fit_index::large + 1), no_block);
  EXPECT_EQ(index.longest(), 0u);
  index.shrink(run, static_cast<std::uint32_t>(2 * mib / unit));
  EXPECT_EQ(index.shortest(fit_index::large + 1), run) << "once there is memory again";
  EXPECT_EQ(index.lowest(1), run);
  EXPECT_EQ(index.total(), 18 * mib);
}

}  // namespace
}  // namespace weir::placement

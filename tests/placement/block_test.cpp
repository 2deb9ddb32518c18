// SPDX-License-Identifier: Apache-2.0
// Records: their numbers, their recycling and what they cost.
#include "placement/block.hpp"
#include "support/system_limit.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace weir { inline namespace v0 { namespace placement { namespace {

TEST(block_test, records_are_recycled) {
  block_store records;
  std::mt19937_64 random{1};
  std::vector<block_index> used;
  std::set<block_index> distinct;
  std::size_t most = 0;
  for (int step = 0; step < 300'000; ++step) {
    if (used.size() < 5000 && (used.empty() || random() % 2 == 0)) {
      ASSERT_TRUE(records.prepare(1));
      const block_index made = records.make();
      ASSERT_NE(made, no_block);
      block& fresh = records[made];
      EXPECT_EQ(fresh.address, 0u);
      EXPECT_EQ(fresh.before, no_block);
      EXPECT_EQ(fresh.after, no_block);
      fresh.address = std::uint64_t{made} * unit;
      fresh.units = 1;
      used.push_back(made);
      distinct.insert(made);
      most = std::max(most, used.size());
    } else {
      const std::size_t at = random() % used.size();
      ASSERT_EQ(records[used[at]].address, std::uint64_t{used[at]} * unit);
      records.recycle(used[at]);
      used[at] = used.back();
      used.pop_back();
    }
    ASSERT_EQ(records.in_use(), used.size());
  }
  EXPECT_EQ(distinct.size(), most) << "never more records than were in use at a time";
}

/// Whether it is the first time or the record was another's before.
TEST(block_test, a_fresh_record_says_nothing) {
  block_store records;
  ASSERT_TRUE(records.prepare(2));
  for (const int time : {1, 2}) {
    SCOPED_TRACE(time);
    const block_index made = records.make();
    block& fresh = records[made];
    EXPECT_EQ(fresh.is(), block_kind::unused);
    EXPECT_FALSE(fresh.claimed);
    EXPECT_EQ(fresh.account, 0u);
    EXPECT_EQ(fresh.units, 0u);
    EXPECT_EQ(fresh.size(), 0u);
    EXPECT_EQ(fresh.address, 0u);
    EXPECT_EQ(fresh.stream, no_stream);
    EXPECT_EQ(fresh.in.freed, order::epoch{});
    EXPECT_EQ(fresh.in.older, no_block);
    EXPECT_EQ(fresh.in.newer, no_block);
    EXPECT_EQ(fresh.in.left, no_block);
    EXPECT_EQ(fresh.in.right, no_block);
    EXPECT_EQ(fresh.before, no_block);
    EXPECT_EQ(fresh.after, no_block);
    fresh.become(block_kind::live);
    fresh.account = 3;
    fresh.units = 5;
    fresh.address = 7 * unit;
    fresh.stream = 2;
    fresh.in = {9, made, made, made, made};
    fresh.before = made;
    records.recycle(made);
  }
}

TEST(block_test, prepared_makes_succeed_across_chunks) {
  block_store records;
  ASSERT_TRUE(records.prepare(10'000));
  const std::size_t before = records.footprint();
  std::set<block_index> made;
  for (int i = 0; i < 10'000; ++i) made.insert(records.make());
  EXPECT_EQ(made.size(), 10'000u);
  EXPECT_EQ(records.footprint(), before);
  EXPECT_FALSE(made.contains(no_block));
}

TEST(block_test, where_addresses_are_short_there_are_fewer_records_and_all_can_be_used) {
  constexpr std::size_t chunk = 4096;  // records
  for (const std::size_t chunks : {2, 1, 0}) {
    SCOPED_TRACE(chunks);
    const auto records = [&] {
      const auto few = testing_support::system_limit::further_addresses(
          chunks * chunk * sizeof(block) + chunk * sizeof(block) / 2);
      return std::make_unique<block_store>();
    }();
    const std::size_t most = chunks == 0 ? 0 : chunks * chunk - 1;  // the first stands for none
    EXPECT_TRUE(records->prepare(most));
    EXPECT_FALSE(records->prepare(most + 1));
    EXPECT_EQ(records->footprint(), chunks * chunk * sizeof(block));
    std::set<block_index> made;
    for (std::size_t i = 0; i < most; ++i) made.insert(records->make());
    EXPECT_EQ(made.size(), most);
    EXPECT_EQ(records->in_use(), most);
    EXPECT_FALSE(records->prepare(1));
  }
}

TEST(block_test, epochs_compare_across_the_wrap) {
  EXPECT_TRUE(is_after(1, 0));
  EXPECT_TRUE(is_after(0, 0xffff'ffff));
  EXPECT_FALSE(is_after(5, 5));
  EXPECT_FALSE(is_after(0xffff'fff0, 3));
}

}  // namespace
}}}  // namespace weir::v0::placement

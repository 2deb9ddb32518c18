// SPDX-License-Identifier: Apache-2.0
// size_bins: which cached block is found, and that nothing is read that is none.
#include "pools/size_bins.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace weir::testing_support { namespace {

using pools::block;
using pools::size_bins;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class size_bins_test : public ::testing::Test {
 protected:
  /// A block that a stream has freed, put into its bin.
  block& freed(std::uint64_t size, order::stream_slot slot, bool quiescent = false) {
    block& made = blocks_.at(count_++);
    made.size = size;
    made.requested = size - 1;
    made.freed_on = slot;
    if (!quiescent) made.freed = {.stream = slot, .epoch = 1};
    made.order = count_;
    all_.bins.prepare(size, slot);
    all_.bins.put(made);
    return made;
  }

  /// What lies behind the bins can be taken for a bin of one block.
  struct surrounded {
    size_bins bins;
    std::array<const block*, 8> behind{};
  } all_;
  size_bins& bins_ = all_.bins;
  std::array<block, 16> blocks_;
  std::uint64_t count_ = 0;
};

TEST(block_list, forgets_between_which_blocks_one_lay_before) {
  pools::block_list blocks;
  std::array<block, 3> all;
  for (block& each : all) blocks.push_back(each);
  blocks.remove(all[1]);
  blocks.push_front(all[1]);
  EXPECT_EQ(blocks.front, &all[1]);
  EXPECT_EQ(all[1].before, nullptr);
  EXPECT_EQ(all[1].after, &all[0]);
  EXPECT_EQ(all[0].before, &all[1]);
  EXPECT_EQ(all[0].after, &all[2]);
  blocks.remove(all[0]);
  blocks.push_back(all[0]);
  EXPECT_EQ(blocks.back, &all[0]);
  EXPECT_EQ(all[0].before, &all[2]);
  EXPECT_EQ(all[0].after, nullptr);
  EXPECT_EQ(all[1].after, &all[2]);
  EXPECT_EQ(all[2].before, &all[1]);
}

TEST_F(size_bins_test, a_stream_gets_back_what_it_freed_last) {
  block& first = freed(512, 1);
  block& last = freed(512, 1);
  freed(512, 2);
  freed(1024, 1);
  EXPECT_EQ(bins_.take_own(512, 1), &last);
  EXPECT_EQ(bins_.take_own(512, 1), &first);
  EXPECT_EQ(bins_.take_own(512, 1), nullptr);
  EXPECT_EQ(bins_.take_own(512, 3), nullptr);
}

TEST_F(size_bins_test, what_is_put_back_is_the_oldest_of_its_size_again) {
  block& oldest = freed(512, 1, true);
  block& next = freed(512, 1, true);
  freed(256, 1, true);
  ASSERT_EQ(bins_.take_oldest(), &oldest);
  EXPECT_EQ(bins_.first_freed(), &next);
  bins_.put_back(oldest);
  EXPECT_EQ(bins_.oldest(), &oldest);
  EXPECT_EQ(bins_.first_freed(), &oldest);
  EXPECT_EQ(bins_.take_own(512, 1), &next);
  EXPECT_EQ(bins_.take_own(512, 1), &oldest);

  block& alone = freed(1024, 2, true);
  bins_.take(alone);
  bins_.put_back(alone);
  EXPECT_EQ(bins_.take_own(1024, 2), &alone);
}

TEST_F(size_bins_test, of_each_stream_the_first_that_is_not_quiescent_is_bound) {
  block& of_first = freed(512, 1);
  block& after_it = freed(512, 1);
  block& of_second = freed(512, 2);
  freed(1024, 1);
  freed(256, 1);
  EXPECT_TRUE(bins_.any_stream_bound(512));
  EXPECT_FALSE(bins_.any_stream_bound(768));
  EXPECT_THAT(bins_.stream_bound(512), ElementsAre(&of_first, &of_second));
  EXPECT_THAT(bins_.stream_bound(768), IsEmpty());
  bins_.take(of_first);
  bins_.take(of_second);
  EXPECT_THAT(bins_.stream_bound(512), ElementsAre(&after_it));
}

TEST_F(size_bins_test, behind_the_last_bin_there_is_none) {
  // The map's end, read as a bin, is one of as many bytes as there are bins.
  block& one = freed(1, 1);
  freed(2, 1);
  block& four = freed(4, 1);
  freed(3, 1);
  block stranger;
  stranger.size = 4;
  stranger.freed_on = 1;
  all_.behind.fill(&stranger);
  EXPECT_THAT(bins_.stream_bound(4), ElementsAre(&four));
  EXPECT_EQ(bins_.take_quiescent(4), nullptr);
  bins_.take(four);
  EXPECT_FALSE(bins_.any_stream_bound(4));
  EXPECT_THAT(bins_.stream_bound(1), ElementsAre(&one));
}

}  // namespace
}  // namespace weir::testing_support

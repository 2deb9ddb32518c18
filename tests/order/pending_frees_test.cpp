// SPDX-License-Identifier: Apache-2.0
// pending_frees by itself: what a recorded block waits for, and when it is given back.
#include "order/pending_frees.hpp"

#include <cstddef>
#include <utility>
#include <vector>

#include "order/stream_order_fixture.hpp"

namespace weir::order_test { namespace {

using order::block_index;
using order::pending_frees;

class PendingFrees : public StreamOrder {
 protected:
  /// What a free does.
  void free(block_index index, stream_slot on) {
    blocks.prepare(index);
    blocks.add(blocks.forget(index, on, order));
  }
  /// The blocks that nobody uses any more.
  std::vector<std::pair<block_index, stamp>> take_completed() {
    std::vector<std::pair<block_index, stamp>> given;
    const bool any = blocks.take_completed(
        order, [&](block_index index, stamp freed) { given.emplace_back(index, freed); });
    EXPECT_EQ(any, !given.empty());
    return given;
  }

  stream one = make_stream();
  stream two = make_stream();
  stream three = make_stream();
  stream_order order{gpu};
  stream_slot first = order.slot_of(one, bound).value();
  stream_slot second = order.slot_of(two, bound).value();
  stream_slot third = order.slot_of(three, bound).value();
  pending_frees blocks;
};

TEST_F(PendingFrees, a_block_waits_for_the_other_streams_that_were_recorded) {
  blocks.record(7, third);
  blocks.record(7, first);
  blocks.record(7, second);
  blocks.record(7, third);
  blocks.record(8, second);
  const auto waits = blocks.forget(7, first, order);
  const order::epoch now = order.now(first).epoch;
  EXPECT_EQ(waits.index, 7u);
  EXPECT_EQ(waits.freed, (stamp{first, now}));
  EXPECT_EQ(waits.others, (std::vector<stamp>{{third, now}, {second, now}}));
  EXPECT_TRUE(order.behind(third)) << "something of it is stamped";
  const auto again = blocks.forget(7, first, order);
  EXPECT_TRUE(again.others.empty()) << "it is another block now";
  EXPECT_EQ(again.freed, (stamp{first, now}));
  EXPECT_EQ(blocks.forget(8, first, order).others, (std::vector<stamp>{{second, now}}));
}

TEST_F(PendingFrees, a_block_is_given_when_all_its_streams_are_done) {
  give_work(two.handle());
  give_work(three.handle());
  blocks.record(7, second);
  blocks.record(7, third);
  blocks.record(8, third);
  EXPECT_TRUE(blocks.empty());
  free(7, first);
  free(8, first);
  EXPECT_FALSE(blocks.empty());
  const stamp freed = order.now(first);
  ASSERT_TRUE(order.close_for({{second, freed.epoch}, {third, freed.epoch}}, bound));
  EXPECT_TRUE(take_completed().empty());
  ASSERT_TRUE(three.synchronize());
  ASSERT_TRUE(order.poll(bound));
  EXPECT_EQ(take_completed(), (std::vector<std::pair<block_index, stamp>>{{8, freed}}));
  ASSERT_EQ(blocks.all().size(), 1u);
  EXPECT_EQ(blocks.all().front().index, 7u);
  ASSERT_TRUE(two.synchronize());
  ASSERT_TRUE(order.poll(bound));
  EXPECT_EQ(take_completed(), (std::vector<std::pair<block_index, stamp>>{{7, freed}}));
  EXPECT_TRUE(blocks.empty());
}

TEST_F(PendingFrees, any_of_them_can_be_taken_out) {
  for (const block_index index : {7u, 8u, 9u}) {
    blocks.record(index, second);
    free(index, first);
  }
  EXPECT_EQ(blocks.take(0).index, 7u);
  ASSERT_EQ(blocks.all().size(), 2u);
  EXPECT_EQ(blocks.all()[0].index, 9u);
  EXPECT_EQ(blocks.all()[1].index, 8u);
  const auto last = blocks.take(1);
  EXPECT_EQ(last.index, 8u);
  EXPECT_EQ(last.freed.stream, first);
  EXPECT_EQ(last.others.size(), 1u);
  EXPECT_EQ(blocks.take(0).index, 9u);
  EXPECT_TRUE(blocks.empty());
}

/// A free must not fail for want of host memory after it was begun.
TEST_F(PendingFrees, what_is_prepared_needs_no_memory_afterwards) {
  blocks.record(1, second);
  blocks.record(1, third);
  blocks.prepare(1);
  const auto prepared = blocks.forget(1, first, order);
  EXPECT_EQ(prepared.others.size(), 2u);
  EXPECT_EQ(prepared.others.capacity(), 2u) << "as many as were recorded";

  int moves = 0;
  for (block_index index = 1; index <= 1000; ++index) {
    const std::size_t room = blocks.all().capacity();
    blocks.prepare(index);
    ASSERT_GT(blocks.all().capacity(), blocks.all().size()) << index;
    if (blocks.all().capacity() != room) {
      EXPECT_EQ(room, blocks.all().size()) << "not before it is full";
      EXPECT_EQ(blocks.all().capacity(), 2 * room + 8);
      ++moves;
    }
    const auto* const before = blocks.all().data();
    blocks.add({.index = index, .freed = {}, .others = {}});
    ASSERT_EQ(blocks.all().data(), before) << index;
  }
  EXPECT_EQ(moves, 6) << "from 8 to 24, 56, 120, 248, 504, 1016";
}

TEST_F(PendingFrees, are_counted_and_can_be_forgotten) {
  EXPECT_EQ(blocks.footprint(), 0u);
  blocks.record(1, second);
  const std::size_t live = blocks.footprint();
  EXPECT_EQ(live, 4 * sizeof(void*) + 16) << "a node with its key and lists";
  blocks.record(1, third);
  EXPECT_EQ(blocks.footprint(), live) << "of the same block";
  blocks.record(2, second);
  EXPECT_EQ(blocks.footprint(), 2 * live);
  free(1, first);
  EXPECT_EQ(blocks.footprint(), live + 8 * sizeof(pending_frees::waiting));
  blocks.clear();
  EXPECT_TRUE(blocks.empty());
  EXPECT_TRUE(blocks.forget(2, first, order).others.empty());
  EXPECT_EQ(blocks.footprint(), 8 * sizeof(pending_frees::waiting));
}

}  // namespace
}  // namespace weir::order_test

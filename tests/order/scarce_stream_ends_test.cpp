// SPDX-License-Identifier: Apache-2.0
// The end of a stream that nobody met, while the host has no memory to remember it.
#include <gtest/gtest.h>

#include "order/all_work_wait.hpp"
#include "order/stream_order_fixture.hpp"
#include "support/scarce_memory.hpp"

namespace weir::order_test { namespace {

using testing_support::scarce_memory;

class ScarceStreamEnds : public StreamOrder {};

TEST_F(ScarceStreamEnds, hold_up_what_was_freed_until_all_work_was_waited_for) {
  stream_order order{gpu};
  const stream freeing = make_stream();
  const stream_slot slot = order.slot_of(freeing, bound).value();
  stream ending = make_stream();
  give_work(ending.handle());
  const stamp freed = order.now(slot);
  const auto waits = machine->calls(driver::call::mem_free);
  {
    const scarce_memory scarce{0};
    EXPECT_TRUE(order.end_stream(ending.ref(), bound));
    EXPECT_TRUE(scarce_memory::take_failure());
  }
  EXPECT_EQ(machine->calls(driver::call::mem_free), waits) << "nobody waits with locks held";
  EXPECT_EQ(order.known(ending.id()), order::no_stream);
  ASSERT_TRUE(ending.close());
  EXPECT_FALSE(completes(order, freed));
  EXPECT_TRUE(order.any_behind());
  EXPECT_FALSE(order.can_wait_for(freed));
  const order::all_work_wait work{order, bound};
  ASSERT_TRUE(work.wait(bound));
  work.apply(order);
  EXPECT_TRUE(order.completed(freed));
  EXPECT_TRUE(completes(order, order.now(slot))) << "it holds up nobody any more";
}

}  // namespace
}  // namespace weir::order_test

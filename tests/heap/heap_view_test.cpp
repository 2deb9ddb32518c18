// SPDX-License-Identifier: Apache-2.0
// What other components see of a heap.
#include "heap/heap_view.hpp"

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::heap_view;
using heap::weak_heap_view;

using heap_view_test = heap_test;

TEST_F(heap_view_test, its_answers_are_those_of_the_allocator) {
  auto memory = make({.limit = 512_MiB});
  const auto on = new_stream();
  void* const p = memory.allocate(3_MiB, on);
  const heap_view view{memory};
  EXPECT_EQ(&heap::heap_of(memory), &heap::central_heap::of(memory));
  EXPECT_EQ(view.reserved(), memory.stats().reserved.current);
  EXPECT_EQ(view.snapshot().stats.allocated.current, 3_MiB);
  ASSERT_EQ(view.stats_by_tag().size(), 1u);
  EXPECT_EQ(view.limit(), 512_MiB);
  ASSERT_TRUE(view.add_share(&view, 256_MiB, {}));
  EXPECT_EQ(memory.limit(), 256_MiB);
  ASSERT_TRUE(view.set_ceiling(&view, 128_MiB));
  EXPECT_EQ(memory.limit(), 128_MiB);
  view.remove_share(&view);
  EXPECT_EQ(memory.limit(), 512_MiB);
  memory.deallocate(p, on);
  machine->run_until_idle();
  EXPECT_EQ(view.shrink(0_B).value(), 4_MiB);
  EXPECT_EQ(view.reserved(), 0_B);
}

TEST_F(heap_view_test, a_view_keeps_the_heap_and_a_weak_one_does_not) {
  std::optional memory{make()};
  const weak_heap_view weak{*memory};
  const auto events = heap_view{*memory}.events();
  EXPECT_FALSE(weak.expired());
  {
    const heap_view view = weak.lock();
    memory.reset();
    ASSERT_TRUE(view);
    EXPECT_EQ(view.reserved(), 0_B);
    EXPECT_FALSE(weak.expired());
    EXPECT_FALSE(events.expired());
  }
  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(events.expired());
  EXPECT_FALSE(weak.lock());
  EXPECT_FALSE(heap_view{});
}

}}  // namespace weir::testing_support

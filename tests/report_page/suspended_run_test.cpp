// SPDX-License-Identifier: Apache-2.0
// A program that suspends memory on the simulated machine, recorded and reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/groups.hpp"
#include "report/history.hpp"
#include "report/series.hpp"
#include "support/scratch.hpp"
#include "support/small_machine.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/observe/tag.hpp"
#include "weir/trace/recorder.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::report_test { namespace {

using namespace weir::literals;
using namespace weir::report;

TEST(report_of_a_suspended_run, has_the_blocks_of_the_tag_without_memory) {
  const testing_support::scratch_folder folder;
  const std::string path = folder.path("run.weirtrace");
  const auto machine = testing_support::open_small_machine();
  const device gpu = machine->device(device_id{0}).value();
  auto queue = stream::create(gpu).value();
  auto memory = caching_allocator::create(gpu).value();
  auto recorder = weir::recorder::start(path).value();
  const auto listening = memory.add_observer(*recorder).value();
  const auto weights = tag::named("weights").value();
  memory.declare_suspendable(weights).value();
  void* other = memory.allocate(3_MiB, queue.ref());
  void* kept = nullptr;
  {
    const tag_scope scope{weights};
    kept = memory.allocate(5_MiB, queue.ref());
  }
  ASSERT_TRUE(memory.suspend(weights));
  ASSERT_TRUE(memory.resume(weights));
  ASSERT_TRUE(memory.suspend(weights, {.contents = suspended_contents::discard}));
  memory.deallocate(kept, queue.ref());
  memory.deallocate(other, queue.ref());
  ASSERT_TRUE(recorder->close());
  const recording read = read_trace(path).value();

  const history found = make_history(read);
  ASSERT_EQ(found.blocks.size(), 2U);
  ASSERT_EQ(found.suspensions.size(), 2U);
  EXPECT_EQ(found.suspensions[0].pool, found.blocks[1].pool);
  EXPECT_NE(found.suspensions[0].pool, found.blocks[0].pool);
  EXPECT_TRUE(found.blocks[1].at(found.suspensions[0].start));
  EXPECT_EQ(found.suspensions[0].kept, 5U << 20);
  EXPECT_EQ(found.suspensions[1].kept, 0U);
  EXPECT_EQ(read.events[found.suspensions[0].end].kind, trace_kind::resumed);
  EXPECT_EQ(found.suspensions[1].end, found.events());

  const auto groupings = make_groupings(read, found, tally_sites(read, found));
  ASSERT_THAT(groupings[0].labels, testing::ElementsAre("weights", "untagged", "suspended"));
  const series finest = make_series(read, found, groupings, 1000);
  const auto stack_at = [&](std::uint32_t event) {
    return std::vector(finest.stacks[0].begin() + 3 * event,
                       finest.stacks[0].begin() + 3 * event + 3);
  };
  EXPECT_THAT(stack_at(found.suspensions[0].start - 1), testing::ElementsAre(5 << 20, 3 << 20, 0));
  EXPECT_THAT(stack_at(found.suspensions[0].start), testing::ElementsAre(0, 3 << 20, 5 << 20));
  EXPECT_THAT(stack_at(found.suspensions[0].end), testing::ElementsAre(5 << 20, 3 << 20, 0));
  EXPECT_THAT(stack_at(found.blocks[1].end), testing::ElementsAre(0, 3 << 20, 0));
}

}  // namespace
}  // namespace weir::report_test

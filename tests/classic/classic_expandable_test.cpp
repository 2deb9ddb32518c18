// SPDX-License-Identifier: Apache-2.0
// What expandable segments add to the rules of the classic store.
#include <gtest/gtest.h>

#include "classic/classic_fixture.hpp"

namespace weir::testing_support { namespace {

using placement::no_block;

class classic_expandable : public classic_rules {
 protected:
  classic_expandable() : classic_rules{true} {}
};

TEST_F(classic_expandable, memory_comes_in_pages_under_one_range_a_stream_and_class) {
  const auto a = bench.allocate(512);
  EXPECT_EQ(bench.reserved(), 2 * mib);
  const auto b = bench.allocate(21 * mib);
  EXPECT_EQ(bench.reserved(), 42 * mib);
  EXPECT_EQ(bench.shared.handles_created, 3U);
  const auto c = bench.allocate(19 * mib);
  EXPECT_EQ(bench.reserved(), 42 * mib);
  EXPECT_EQ(bench.address(c), bench.address(b) + 21 * mib) << "a block reaches over pages";
  const auto d = bench.allocate(512, 1);
  EXPECT_EQ(bench.reserved(), 44 * mib) << "another stream has a range of its own";
  EXPECT_EQ(bench.machine->calls(driver::call::mem_address_reserve), 3U);
  EXPECT_NE(bench.address(a), bench.address(d));
}

TEST_F(classic_expandable, a_range_has_room_for_nine_eighths_of_the_device) {
  bench.allocate(2 * mib);
  pool_snapshot seen;
  bench.store->describe(seen);
  std::uint64_t range = 0;
  for (const auto& each : seen.blocks) range += each.size.count();
  const std::uint64_t memory = bench.device.total_memory().count();
  EXPECT_EQ(range, (memory + memory / 8 + 20 * mib - 1) / (20 * mib) * (20 * mib));
  EXPECT_EQ(seen.blocks.back().state, block_state::hole);
  EXPECT_EQ(seen.physical.size(), 1U);
}

TEST_F(classic_expandable, growth_uses_the_free_memory_before_the_lowest_hole) {
  const auto a = bench.allocate(15 * mib);
  const std::uint64_t begin = bench.address(a);
  bench.free(a);
  const auto b = bench.allocate(30 * mib);
  EXPECT_EQ(bench.address(b), begin);
  EXPECT_EQ(bench.reserved(), 40 * mib) << "one page more, not two";
}

TEST_F(classic_expandable, any_tail_of_a_large_run_is_cut_off) {
  const auto block = bench.allocate(20 * mib - 512);
  EXPECT_EQ(bench.size(block), 20 * mib - 512);
  EXPECT_EQ(bench.store->bound_to(bench.slots[0]), 512U);
}

TEST_F(classic_expandable, a_run_that_can_grow_is_taken_last) {
  const auto low = bench.allocate(10 * mib);
  bench.allocate(24 * mib);  // six of the second page stay before the hole
  const std::uint64_t expected = bench.address(low);
  bench.free(low);
  EXPECT_EQ(bench.address(bench.allocate(5 * mib)), expected)
      << "10 MiB that are closed in, not 6 MiB that can grow";
}

TEST_F(classic_expandable, whole_pages_at_rest_are_released_and_filled_again) {
  const auto a = bench.allocate(5 * mib);
  const auto b = bench.allocate(70 * mib);
  const auto c = bench.allocate(5 * mib);
  EXPECT_EQ(bench.reserved(), 80 * mib);
  const std::uint64_t begin = bench.address(b);
  bench.free(b);
  EXPECT_EQ(bench.release().count(), 0U);
  bench.pass(0);
  EXPECT_EQ(bench.store->fragments(), 30 * mib);
  EXPECT_EQ(bench.release(bytes{19 * mib}).count(), 20 * mib) << "whole pages, no less than asked";
  EXPECT_EQ(bench.store->check(), "");
  EXPECT_EQ(bench.release().count(), 20 * mib);
  EXPECT_EQ(bench.shared.handles_released, 2U);
  EXPECT_EQ(bench.store->check(), "");

  EXPECT_TRUE(fits(15 * mib));
  EXPECT_FALSE(fits(16 * mib));
  const auto again = bench.allocate(70 * mib);
  EXPECT_EQ(bench.address(again), begin) << "15 MiB, the hole, 15 MiB";
  EXPECT_EQ(bench.reserved(), 80 * mib);
  bench.free(a);
  bench.free(c);
}

TEST_F(classic_expandable, a_range_without_memory_goes_back) {
  const bytes before = bench.machine->used(device_id{0});
  bench.free(bench.allocate(70 * mib));
  bench.pass(0);
  EXPECT_EQ(bench.release().count(), 80 * mib);
  EXPECT_EQ(bench.machine->calls(driver::call::mem_address_free), 1U);
  EXPECT_EQ(bench.machine->used(device_id{0}), before);
  EXPECT_EQ(bench.blocks.in_use(), 0U);
  EXPECT_NE(bench.allocate(70 * mib), no_block);
}

TEST_F(classic_expandable, a_guest_is_not_grown_over) {
  const auto low = bench.allocate(5 * mib, 0);
  const auto guest = bench.allocate(15 * mib, 0);
  bench.free(guest, 1);
  const auto next = bench.allocate(10 * mib, 0);
  EXPECT_EQ(bench.address(next), bench.address(low) + 20 * mib);
  bench.pass(1);
  EXPECT_TRUE(fits(15 * mib, 0));
}

TEST_F(classic_expandable, a_limit_is_kept) {
  bench.shared.reserved_limit = 60 * mib;
  const auto a = bench.allocate(35 * mib);
  EXPECT_EQ(bench.allocate(26 * mib), no_block);
  EXPECT_EQ(bench.reserved(), 40 * mib) << "nothing was mapped in vain";
  EXPECT_NE(bench.allocate(25 * mib), no_block);
  bench.free(a);
}

TEST_F(classic_expandable, growth_and_release_leave_a_capture_whole) {
  bench.free(bench.allocate(30 * mib));
  bench.pass(0);
  const auto& cu = bench.runtime->driver();
  ASSERT_EQ(cu.stream_begin_capture(bench.own[1].handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  EXPECT_TRUE(bench.try_allocate(50 * mib));
  EXPECT_TRUE(bench.store->release(bytes::max(), bench.bound));
  driver::CUgraph graph = nullptr;
  EXPECT_EQ(cu.stream_end_capture(bench.own[1].handle(), &graph), driver::CUDA_SUCCESS);
  EXPECT_EQ(cu.graph_destroy(graph), driver::CUDA_SUCCESS);
}

TEST_F(classic_expandable, closing_gives_everything_back_whoever_uses_it) {
  const bytes before = bench.machine->used(device_id{0});
  bench.allocate(30 * mib);
  bench.free(bench.allocate(70 * mib, 1), 1);
  bench.pass(1);
  bench.allocate(1, 1);
  EXPECT_EQ(bench.release(bytes{20 * mib}).count(), 20 * mib);
  bench.store->close(bench.bound).value();
  EXPECT_EQ(bench.machine->used(device_id{0}), before);
  EXPECT_EQ(bench.machine->calls(driver::call::mem_address_free),
            bench.machine->calls(driver::call::mem_address_reserve));
  EXPECT_EQ(bench.reserved(), 0U);
  EXPECT_EQ(bench.blocks.in_use(), 0U);
}

}  // namespace
}  // namespace weir::testing_support

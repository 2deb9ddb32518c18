// SPDX-License-Identifier: Apache-2.0
// The rules of the classic store, one by one, with fixed segments.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>

#include "classic/classic_fixture.hpp"
#include "weir/device/event.hpp"

namespace weir::testing_support { namespace {

using placement::no_block;

constexpr std::uint64_t kib = 1024;

class classic_fixed : public classic_rules {
 protected:
  classic_fixed() : classic_rules{false} {}
};
// --- Sizes --------------------------------------------------------------------------------------

TEST_F(classic_fixed, a_segment_has_the_size_that_its_first_request_asks_for) {
  struct row {
    std::uint64_t asked, segment;
  };
  for (const auto& [asked, segment] : {
           row{1, 2 * mib},
           row{mib, 2 * mib},
           row{mib + 1, 20 * mib},
           row{10 * mib - 512, 20 * mib},
           row{10 * mib, 10 * mib},
           row{10 * mib + 1, 12 * mib},
           row{31 * mib, 32 * mib},
       }) {
    classic_bench fresh{false};
    fresh.allocate(asked);
    EXPECT_EQ(fresh.reserved(), segment) << asked;
    EXPECT_EQ(fresh.shared.handles_created, 1U);
    EXPECT_EQ(fresh.store->check(), "");
  }
}

TEST_F(classic_fixed, small_and_large_requests_do_not_share_segments) {
  bench.free(bench.allocate(2 * mib));  // 20 MiB free, but in a large segment
  EXPECT_FALSE(fits(mib));
  bench.free(bench.allocate(mib));
  EXPECT_EQ(bench.reserved(), 22 * mib);
  EXPECT_TRUE(fits(mib));
  EXPECT_TRUE(fits(20 * mib));
}

TEST_F(classic_fixed, small_requests_do_share_one) {
  for (int i = 0; i < 4; ++i) bench.allocate(512 * kib);
  EXPECT_EQ(bench.reserved(), 2 * mib);
  bench.allocate(1);
  EXPECT_EQ(bench.reserved(), 4 * mib);
}

// --- Best fit -----------------------------------------------------------------------------------

TEST_F(classic_fixed, the_smallest_run_that_is_long_enough_is_taken) {
  const auto long_one = bench.allocate(40 * mib);
  const auto short_one = bench.allocate(30 * mib);
  const auto longer = bench.allocate(50 * mib);
  const std::uint64_t expected = bench.address(short_one);
  for (const auto each : {long_one, short_one, longer}) bench.free(each);
  EXPECT_EQ(bench.address(bench.allocate(25 * mib)), expected);
}

TEST_F(classic_fixed, of_equal_runs_the_one_in_the_newest_segment_is_taken) {
  const auto first = bench.allocate(30 * mib);
  const auto second = bench.allocate(30 * mib);
  const std::uint64_t expected = bench.address(second);
  bench.free(second);
  bench.free(first);
  EXPECT_EQ(bench.address(bench.allocate(30 * mib)), expected);
}

TEST_F(classic_fixed, of_equal_runs_in_one_segment_the_lowest_is_taken) {
  std::array<placement::block_index, 4> row{};
  for (auto& each : row) each = bench.allocate(512 * kib);
  const std::uint64_t expected = bench.address(row[0]);
  bench.free(row[2]);
  bench.free(row[0]);
  EXPECT_EQ(bench.address(bench.allocate(512 * kib)), expected);
}

TEST_F(classic_fixed, no_stream_is_given_what_another_freed) {
  bench.free(bench.allocate(30 * mib, 0), 0);
  EXPECT_FALSE(fits(30 * mib, 1));
  bench.pass(0);
  EXPECT_FALSE(fits(30 * mib, 1)) << "not even after its work is done";
  EXPECT_TRUE(fits(30 * mib, 0));
}

// --- Split and merge ----------------------------------------------------------------------------

TEST_F(classic_fixed, a_small_run_is_split_to_the_unit) {
  EXPECT_EQ(bench.size(bench.allocate(513)), 1024U);
  EXPECT_EQ(bench.size(bench.allocate(mib)), mib);
  const auto last = bench.allocate(mib - 2 * 512 - 512);
  EXPECT_EQ(bench.size(last), mib - 3 * 512) << "one unit is left, and cut off";
  EXPECT_EQ(bench.store->bound_to(bench.slots[0]), 512U);
}

TEST_F(classic_fixed, a_large_run_is_split_only_if_more_than_a_mebibyte_is_left) {
  const auto whole = bench.allocate(11 * mib);  // a segment of 12 MiB
  EXPECT_EQ(bench.size(whole), 12 * mib);
  const auto cut = bench.allocate(5 * mib);  // of 20 MiB
  EXPECT_EQ(bench.size(cut), 5 * mib);
  const auto just = bench.allocate(14 * mib - 512);
  EXPECT_EQ(bench.size(just), 14 * mib - 512) << "1 MiB and a unit are left";
}

TEST_F(classic_fixed, neighbours_that_are_free_become_one) {
  const auto a = bench.allocate(512 * kib);
  const auto b = bench.allocate(512 * kib);
  const auto c = bench.allocate(512 * kib);
  bench.allocate(512 * kib);
  const std::uint64_t begin = bench.address(a);
  bench.free(a);
  bench.free(c);
  EXPECT_FALSE(fits(513 * kib));
  bench.free(b);
  EXPECT_FALSE(fits(2 * mib));
  const auto joined = bench.allocate(mib);
  EXPECT_EQ(bench.address(joined), begin);
  EXPECT_EQ(bench.reserved(), 2 * mib);
}

TEST_F(classic_fixed, what_comes_back_is_no_ones_block) {
  const auto block = bench.allocate(1024, 1);
  EXPECT_EQ(bench.blocks[block].is(), placement::block_kind::live);
  EXPECT_EQ(bench.blocks[block].stream, bench.slots[1]);
  bench.blocks[block].account = 7;
  bench.free(block, 1);
  EXPECT_EQ(bench.blocks[block].is(), placement::block_kind::run);
  EXPECT_EQ(bench.blocks[block].account, 0U);
  EXPECT_EQ(bench.blocks[block].stream, bench.slots[1]);
  EXPECT_EQ(bench.store->handed_out(), 0U);
}

TEST_F(classic_fixed, records_are_recycled) {
  const std::size_t before = bench.blocks.in_use();
  for (int round = 0; round < 3; ++round) {
    std::array<placement::block_index, 100> row{};
    for (auto& each : row) each = bench.allocate(4 * kib);
    for (const auto each : row) bench.free(each);
  }
  EXPECT_EQ(bench.blocks.in_use(), before + 1) << "one segment, one run";
}

// --- Frees on another stream --------------------------------------------------------------------

TEST_F(classic_fixed, what_another_stream_freed_is_its_own_until_its_work_is_done) {
  const auto block = bench.allocate(30 * mib, 0);
  bench.free(block, 1);
  EXPECT_FALSE(fits(30 * mib, 0)) << "stream 1 may still use it";
  EXPECT_TRUE(fits(30 * mib, 1));
  EXPECT_EQ(bench.store->bound_to(bench.slots[1]), 30 * mib);
  EXPECT_EQ(bench.store->longest_fit(bench.slots[1]), 30 * mib);
  EXPECT_EQ(bench.store->check(), "");
  bench.pass(1);
  EXPECT_TRUE(fits(30 * mib, 0)) << "it went home";
  EXPECT_FALSE(fits(30 * mib, 1));
}

TEST_F(classic_fixed, a_guest_that_goes_home_joins_its_neighbours) {
  const auto a = bench.allocate(512 * kib, 0);
  const auto b = bench.allocate(512 * kib, 0);
  const auto c = bench.allocate(mib, 0);
  bench.free(b, 1);
  bench.free(a, 0);
  EXPECT_FALSE(fits(mib, 0));
  EXPECT_EQ(bench.store->check(), "");
  bench.pass(1);
  EXPECT_TRUE(fits(mib, 0));
  bench.free(c, 0);
}

TEST_F(classic_fixed, what_nobody_uses_any_more_goes_home_at_once) {
  const auto block = bench.allocate(30 * mib, 0);
  bench.store->free(block, {});
  EXPECT_EQ(bench.store->bound_to(bench.slots[0]), 30 * mib);
  EXPECT_EQ(bench.release().count(), 30 * mib) << "nor need release wait for anybody";
}

TEST_F(classic_fixed, a_closer_guest_is_taken_before_a_longer_run) {
  const auto guest = bench.allocate(30 * mib, 0);
  const auto own = bench.allocate(40 * mib, 1);
  const std::uint64_t expected = bench.address(guest);
  bench.free(guest, 1);
  bench.free(own, 1);
  EXPECT_EQ(bench.address(bench.allocate(20 * mib, 1)), expected);
}

// --- Alignment ----------------------------------------------------------------------------------

TEST_F(classic_fixed, an_alignment_leaves_the_head_free) {
  bench.allocate(512);
  const auto block = bench.allocate(4 * kib, 0, 64 * kib);
  EXPECT_EQ(bench.address(block) % (64 * kib), 0U);
  EXPECT_EQ(bench.size(block), 4 * kib);
  EXPECT_TRUE(fits(60 * kib)) << "the head";
  bench.free(block);
}

TEST_F(classic_fixed, an_alignment_of_2_mib_is_met) {
  for (int i = 0; i < 3; ++i) {
    const auto block = bench.allocate(512, 0, 2 * mib);
    EXPECT_EQ(bench.address(block) % (2 * mib), 0U);
  }
}

// --- Release ------------------------------------------------------------------------------------

TEST_F(classic_fixed, whole_segments_at_rest_are_released) {
  const auto kept = bench.allocate(512);
  const auto freed = bench.allocate(30 * mib);
  bench.allocate(4 * mib);
  bench.free(freed);
  EXPECT_EQ(bench.release().count(), 0U) << "the stream may still use it";
  bench.pass(0);
  EXPECT_EQ(bench.store->fragments(), 2 * mib - 512 + 16 * mib);
  EXPECT_EQ(bench.release(bytes{}).count(), 0U) << "nothing was asked for";
  EXPECT_EQ(bench.release(bytes{29 * mib}).count(), 30 * mib)
      << "whole segments, no less than asked";
  EXPECT_EQ(bench.reserved(), 22 * mib);
  EXPECT_EQ(bench.shared.handles_released, 1U);
  EXPECT_EQ(bench.store->reserved_peak(), 52 * mib);
  bench.free(kept);
  bench.pass(0);
  EXPECT_EQ(bench.release().count(), 2 * mib);
}

TEST_F(classic_fixed, a_run_is_as_young_as_its_youngest_part) {
  for (const std::size_t early : {0U, 1U}) {
    const std::array halves{bench.allocate(mib), bench.allocate(mib)};
    bench.free(halves[early]);
    bench.pass(0);
    bench.free(halves[1 - early]);
    EXPECT_EQ(bench.release().count(), 0U) << "the stream may still use one half";
    bench.pass(0);
    EXPECT_EQ(bench.release().count(), 2 * mib);
  }
}

TEST_F(classic_fixed, growth_and_release_leave_a_capture_whole) {
  const auto block = bench.allocate(30 * mib);
  bench.free(block);
  bench.pass(0);
  const auto& cu = bench.runtime->driver();
  ASSERT_EQ(cu.stream_begin_capture(bench.own[1].handle(), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  EXPECT_TRUE(bench.try_allocate(40 * mib));
  EXPECT_EQ(bench.release().count(), 30 * mib);
  driver::CUgraph graph = nullptr;
  EXPECT_EQ(cu.stream_end_capture(bench.own[1].handle(), &graph), driver::CUDA_SUCCESS);
  EXPECT_EQ(cu.graph_destroy(graph), driver::CUDA_SUCCESS);
}

TEST_F(classic_fixed, a_limit_is_kept) {
  bench.shared.reserved_limit = 22 * mib;
  EXPECT_NE(bench.allocate(2 * mib), no_block);
  EXPECT_EQ(bench.allocate(30 * mib), no_block);
  EXPECT_NE(bench.allocate(512), no_block);
  EXPECT_EQ(bench.reserved(), 22 * mib);
}

TEST_F(classic_fixed, what_does_not_fit_a_device_is_no_block) {
  EXPECT_EQ(bench.allocate(std::uint64_t{1} << 40), no_block);
  EXPECT_EQ(bench.store
                ->grow({static_cast<std::uint32_t>(placement::most_units), 4096, bench.slots[0]},
                       bench.bound)
                .value(),
            no_block);
}

TEST_F(classic_fixed, nothing_is_rearranged) {
  bench.free(bench.allocate(30 * mib, 0), 0);
  bench.pass(0);
  const auto wanted = classic_bench::asks(30 * mib, bench.slots[1]);
  EXPECT_TRUE(bench.store->prefers_growth(wanted));
  for (const auto whose :
       {placement::backing_store::reach::usable, placement::backing_store::reach::behind_wait}) {
    EXPECT_EQ(bench.store->rearrange(wanted, whose, bench.bound).value(), no_block);
  }
}

TEST_F(classic_fixed, closing_gives_everything_back_whoever_uses_it) {
  const bytes before = bench.machine->used(device_id{0});
  bench.allocate(30 * mib);
  bench.free(bench.allocate(40 * mib));
  bench.allocate(1);
  bench.store->close(bench.bound).value();
  EXPECT_EQ(bench.machine->used(device_id{0}), before);
  EXPECT_EQ(bench.reserved(), 0U);
  EXPECT_EQ(bench.blocks.in_use(), 0U);
}

TEST_F(classic_fixed, numbers_segments_in_the_order_in_which_they_came) {
  std::map<std::uint64_t, std::uint32_t> numbers;  // by address
  const auto small = bench.allocate(1000);
  const auto gone = bench.allocate(30 * mib);
  numbers[bench.address(small)] = 1;
  bench.free(gone);
  bench.pass(0);
  EXPECT_EQ(bench.release().count(), 30 * mib);
  numbers[bench.address(bench.allocate(40 * mib))] = 3;
  numbers[bench.address(bench.allocate(50 * mib))] = 4;
  pool_snapshot seen;
  bench.store->describe(seen);
  std::map<std::uint64_t, std::uint32_t> shown;
  for (const physical_info& piece : seen.physical) shown[piece.address] = piece.number;
  EXPECT_EQ(shown, numbers);
}

TEST_F(classic_fixed, describes_blocks_and_segments) {
  const auto live = bench.allocate(1000);
  bench.blocks[live].out.waste = 24;
  pool_snapshot seen;
  bench.store->describe(seen);
  ASSERT_EQ(seen.physical.size(), 1U);
  EXPECT_EQ(seen.physical[0].address, bench.address(live));
  EXPECT_EQ(seen.physical[0].size.count(), 2 * mib);
  ASSERT_EQ(seen.blocks.size(), 2U);
  EXPECT_EQ(seen.blocks[0].address, bench.address(live));
  EXPECT_EQ(seen.blocks[0].state, block_state::live);
  EXPECT_EQ(seen.blocks[0].requested.count(), 1000U);
  EXPECT_EQ(seen.blocks[0].stream, bench.own[0].id());
  EXPECT_EQ(seen.blocks[1].state, block_state::stream_bound);
  EXPECT_EQ(seen.blocks[1].size.count(), 2 * mib - 1024);
}

}  // namespace
}  // namespace weir::testing_support

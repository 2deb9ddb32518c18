// SPDX-License-Identifier: Apache-2.0
// Where a policy would put the blocks of a recording, and the recording with those addresses.
#include "report/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "samples.hpp"
#include "support/sizes.hpp"

namespace weir::report_test { namespace {

using namespace weir::report;
using testing::ElementsAre;

using testing_support::mib;

std::vector<std::string> words(const recording& of) {
  std::vector<std::string> all;
  for (const trace_event& each : of.events)
    all.push_back(std::to_string(each.time / 1000) + " " + std::string{name(each.kind)} + " " +
                  std::to_string(each.address) + " " + std::to_string(each.size) + " " +
                  std::to_string(each.extra) + " " + std::to_string(each.other));
  return all;
}

TEST(report_placement, a_recording_is_written_anew_with_other_addresses) {
  recording_writer writer;
  writer.allocate(1, 100, 1, 3, 9);                   // 0
  writer.allocate(2, 0);                              // 1: takes no memory
  writer.add(trace_kind::reserve).address = 5;        // 2: the recording's own
  writer.add(trace_kind::record_stream).address = 1;  // 3
  writer.allocate(3, 200, 1, 3, 8);                   // 4: there is no memory for it
  writer.deallocate(3);                               // 5
  writer.add(trace_kind::release).address = 5;        // 6
  writer.marker("here");                              // 7
  writer.deallocate(1);                               // 8
  writer.add(trace_kind::reusable).address = 1;       // 9
  writer.allocate(1, 300);                            // 10: its address again
  writer.add(trace_kind::move).address = 5;           // 11
  writer.deallocate(1);                               // 12
  writer.deallocate(77);                              // 13: of nobody
  writer.out.real_addresses = false;
  placement placed;
  placed.places = {{1000, 512}, {}, {}, {4000, 1024}};
  placed.steps = {{0, memory_event_kind::reserve, 1000, 2 * mib, 0},
                  {2, memory_event_kind::move, 2000, mib, 1000},
                  {3, memory_event_kind::release, 1000, mib, 0},
                  {4, memory_event_kind::release, 2000, mib, 0}};
  const recording moved = relocate(writer.out, placed);
  EXPECT_TRUE(moved.real_addresses);
  EXPECT_EQ(moved.program, "made up");
  EXPECT_EQ(moved.texts.size(), 1U);
  EXPECT_THAT(words(moved), ElementsAre("0 reserve 1000 2097152 0 0", "0 allocate 1000 100 512 9",
                                        "3 record_stream 1000 0 0 0", "4 move 2000 1048576 1000 0",
                                        "4 out_of_memory 0 200 0 0", "7 marker 0 0 0 0",
                                        "8 deallocate 1000 0 0 0", "9 reusable 1000 0 0 0",
                                        "10 release 1000 1048576 0 0",
                                        "10 allocate 4000 300 1024 0", "12 deallocate 4000 0 0 0"));
  EXPECT_EQ(moved.events[1].stream, 1U);
  EXPECT_EQ(moved.events[1].tag, 3U);
  EXPECT_EQ(moved.events[4].stream, 1U);
  EXPECT_EQ(moved.events[4].tag, 3U);
}

TEST(report_placement, an_address_that_is_taken_again_is_that_of_the_new_block_alone) {
  recording_writer writer;
  writer.allocate(1, 100);  // 0
  writer.allocate(1, 300);  // 1: without a free
  writer.deallocate(1);     // 2
  writer.allocate(1, 0);    // 3: takes no memory
  writer.deallocate(1);     // 4
  writer.allocate(2, 100);  // 5
  writer.allocate(2, 200);  // 6: there is no memory for it
  writer.deallocate(2);     // 7
  placement placed;
  placed.places = {{1000, 512}, {4000, 1024}, {}, {5000, 512}, {}};
  EXPECT_THAT(words(relocate(writer.out, placed)),
              ElementsAre("0 allocate 1000 100 512 0", "1 allocate 4000 300 1024 0",
                          "2 deallocate 4000 0 0 0", "5 allocate 5000 100 512 0",
                          "6 out_of_memory 0 200 0 0"));
}

/// Every event of the allocator that plays stands in the placement, by the block it is of.
TEST(report_placement, is_what_the_allocator_did) {
  recording_writer writer;
  writer.allocate(1, 3 * mib);
  writer.allocate(2, 0);
  writer.allocate(3, 5 * mib);
  writer.deallocate(1);
  writer.deallocate(2);
  writer.allocate(4, 1000);
  writer.allocate(5, std::uint64_t{1} << 40);  // more than any device has
  writer.allocate(6, 9 * mib);
  writer.out.real_addresses = false;
  const auto outcome = place(replay::make_script(writer.out), {.policy = replay::policy::compact});
  ASSERT_TRUE(outcome) << outcome.error().message();
  const placement& placed = outcome->first;
  EXPECT_EQ(placed.policy, replay::policy::compact);
  EXPECT_EQ(outcome->second.policy, replay::policy::compact);
  EXPECT_EQ(outcome->second.ooms, 1U);
  ASSERT_EQ(placed.places.size(), 6U);
  const std::uint64_t base = placed.places[0].address;
  EXPECT_NE(base, 0U);
  const auto offsets = [&](std::size_t i) { return placed.places[i].address - base; };
  EXPECT_EQ(placed.places[1].address, 0U);
  EXPECT_EQ(offsets(2), 3 * mib);
  EXPECT_EQ(placed.places[4].address, 0U);
  EXPECT_EQ(placed.places[0].rounded, 3 * mib);
  EXPECT_EQ(placed.places[2].rounded, 5 * mib);
  EXPECT_EQ(placed.places[3].rounded, 1024U);
  EXPECT_EQ(placed.places[5].rounded, 9 * mib);
  // What was reserved before a block's allocation has room for it.
  std::uint64_t reserved = 0;
  std::vector<std::uint32_t> before;
  for (const placement::physical& each : placed.steps) {
    if (each.kind != memory_event_kind::reserve) continue;
    if (before.empty() || before.back() != each.before) before.push_back(each.before);
    EXPECT_EQ(each.address, base + reserved);
    reserved += each.size;
  }
  EXPECT_THAT(before, ElementsAre(0, 2, 5));
  EXPECT_EQ(reserved, outcome->second.reserved_peak);
  const auto refused =
      place(replay::make_script(writer.out), {.policy = replay::policy::driver_pool});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().detail(), "driver-pool does not say where its memory is");
}

/// PyTorch's segments go at the end of a replay.
TEST(report_placement, has_what_comes_behind_the_last_block) {
  recording_writer writer;
  writer.allocate(1, 3 * mib);
  writer.allocate(2, 0);
  writer.out.real_addresses = false;
  const auto outcome =
      place(replay::make_script(writer.out), {.policy = replay::policy::torch_default});
  ASSERT_TRUE(outcome) << outcome.error().message();
  const std::vector<placement::physical>& steps = outcome->first.steps;
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].kind, memory_event_kind::reserve);
  EXPECT_EQ(steps[0].before, 0U);
  EXPECT_EQ(steps[1].kind, memory_event_kind::release);
  EXPECT_EQ(steps[1].before, 2U) << "there is no such block";
}

/// Memory of a pool stays its pool's: a replay of the result must see when a pool gave it back.
TEST(report_placement, says_of_which_pool_memory_is) {
  recording_writer writer;
  writer.out.pools = {"", "a", "b", "c"};
  for (const std::uint16_t pool : std::vector<std::uint16_t>{3, 0, 1}) {
    writer.allocate(pool + 1U, pool == 3 ? 0 : 30 * mib);  // an empty block takes no memory
    writer.out.events.back().pool = pool;
    writer.allocate(pool + 11U, 40 * mib);
    writer.out.events.back().pool = pool;
    if (pool == 0) continue;
    writer.deallocate(pool + 1U);
    writer.deallocate(pool + 11U);
    writer.add(trace_kind::pool_released).pool = pool;
  }
  writer.allocate(99, mib);
  for (const replay::policy policy : {replay::policy::torch_default, replay::policy::balanced}) {
    SCOPED_TRACE(replay::name(policy));
    const auto placed = place(replay::make_script(writer.out), {.policy = policy}).value().first;
    std::map<std::uint16_t, std::int64_t> reserved;
    std::map<std::uint16_t, std::int64_t> most;
    for (const placement::physical& each : placed.steps) {
      const auto size = static_cast<std::int64_t>(each.size);
      if (each.kind == memory_event_kind::reserve) reserved[each.pool] += size;
      if (each.kind == memory_event_kind::release) reserved[each.pool] -= size;
      most[each.pool] = std::max(most[each.pool], reserved[each.pool]);
    }
    ASSERT_THAT(most, testing::SizeIs(3));
    EXPECT_GE(most[0], static_cast<std::int64_t>(70 * mib));
    EXPECT_GE(most[1], static_cast<std::int64_t>(70 * mib));
    EXPECT_GE(most[3], static_cast<std::int64_t>(40 * mib));
    if (policy == replay::policy::torch_default) {  // whose segments are as large as these requests
      EXPECT_EQ(most[1], static_cast<std::int64_t>(70 * mib));
      EXPECT_EQ(most[3], static_cast<std::int64_t>(40 * mib));
      EXPECT_EQ(reserved[1], 0);
      EXPECT_EQ(reserved[3], 0);
    }
    const recording moved = relocate(writer.out, placed);
    std::set<std::uint16_t> pools;
    for (const trace_event& each : moved.events)
      if (each.kind == trace_kind::reserve) pools.insert(each.pool);
    EXPECT_THAT(pools, ElementsAre(0, 1, 3));
  }
}

/// A request that is larger than any address space has no place; those after it have theirs.
TEST(report_placement, is_not_put_out_by_a_request_of_any_size) {
  recording_writer writer;
  writer.allocate(1, std::uint64_t{1} << 62);
  writer.allocate(2, 3 * mib);
  writer.out.real_addresses = false;
  const auto placed = place(replay::make_script(writer.out), {.policy = replay::policy::balanced});
  ASSERT_TRUE(placed) << placed.error().message();
  ASSERT_EQ(placed->first.places.size(), 2U);
  EXPECT_EQ(placed->first.places[0].address, 0U);
  EXPECT_NE(placed->first.places[1].address, 0U);
  EXPECT_EQ(placed->first.places[1].rounded, 3 * mib);
}

}  // namespace
}  // namespace weir::report_test

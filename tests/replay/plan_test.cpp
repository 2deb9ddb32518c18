// SPDX-License-Identifier: Apache-2.0
// Offline plans: valid always, optimal where the optimum is known.
#include "replay/plan.hpp"

#include <gtest/gtest.h>

#include "replay/traces.hpp"

namespace weir::replay { namespace {

/// No two blocks that live at the same time share a byte, and none lies above the height.
void expect_valid(const std::vector<lifetime>& blocks, const plan& planned) {
  ASSERT_EQ(blocks.size(), planned.offsets.size());
  EXPECT_GE(planned.height, planned.bound);
  EXPECT_TRUE(planned.first_height == 0 || planned.height <= planned.first_height);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_LE(planned.offsets[i] + blocks[i].size, planned.height);
    for (std::size_t j = 0; j < i; ++j) {
      const bool meet = blocks[i].begin < blocks[j].end && blocks[j].begin < blocks[i].end;
      const bool apart = planned.offsets[i] + blocks[i].size <= planned.offsets[j] ||
                         planned.offsets[j] + blocks[j].size <= planned.offsets[i];
      ASSERT_TRUE(!meet || apart) << i << " and " << j;
    }
  }
}

TEST(plan, takes_two_seconds_and_ten_thousand_tries_unless_told_otherwise) {
  const plan_settings defaults;
  EXPECT_EQ(std::chrono::seconds{2}, defaults.improve);
  EXPECT_EQ(std::chrono::seconds{1}, defaults.first);
  EXPECT_EQ(10'000u, defaults.tries);
  EXPECT_EQ(1u, defaults.seed);
  EXPECT_FALSE(defaults.progress);
  EXPECT_EQ((lifetime{0, 0, 0}), lifetime{});
}

TEST(plan, nothing_needs_no_room) {
  const plan planned = make_plan({});
  EXPECT_TRUE(planned.offsets.empty());
  EXPECT_EQ(0u, planned.first_height);
  EXPECT_EQ(0u, planned.tries);
  EXPECT_EQ(0, planned.search_time.count());
  EXPECT_EQ(0u, planned.height);
  EXPECT_EQ(0u, planned.bound);
  EXPECT_EQ(0.0, planned.ratio());
}

TEST(plan, blocks_that_never_meet_share_the_bottom) {
  const std::vector<lifetime> blocks{{512, 0, 1}, {1024, 1, 2}, {512, 2, 3}};
  const plan planned = make_plan(blocks);
  expect_valid(blocks, planned);
  EXPECT_EQ(1024u, planned.height);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 0, 0}), planned.offsets);
}

TEST(plan, blocks_that_all_meet_stand_on_each_other) {
  const std::vector<lifetime> blocks{{512, 0, 9}, {1024, 1, 9}, {2048, 2, 9}};
  const plan planned = make_plan(blocks);
  expect_valid(blocks, planned);
  EXPECT_EQ((std::vector<std::uint64_t>{3072, 2048, 0}), planned.offsets);  // the largest below
  EXPECT_EQ(3584u, planned.height);
  EXPECT_EQ(1.0, planned.ratio());
  EXPECT_EQ(0u, planned.tries) << "no plan is lower";
}

TEST(plan, of_equal_blocks_the_one_that_lives_longest_lies_below) {
  const std::vector<lifetime> blocks{{512, 0, 3}, {512, 0, 9}, {512, 1, 3}, {512, 2, 6}};
  EXPECT_EQ((std::vector<std::uint64_t>{1024, 0, 1536, 512}), make_plan(blocks).offsets);
}

TEST(plan, blocks_go_into_the_smallest_gap_that_fits) {
  // At step 5 there are gaps of 9 and 7 bytes between those that live long; at step 6 what is left
  // of them, 1 and 2.
  const std::vector<lifetime> blocks{{10, 0, 10}, {9, 0, 2}, {8, 0, 10}, {7, 0, 2}, {6, 0, 10},
                                     {5, 5, 9},   {4, 5, 9}, {4, 5, 9},  {1, 6, 7}};
  const plan planned = make_plan(blocks);
  expect_valid(blocks, planned);
  EXPECT_EQ(40u, planned.height);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 10, 19, 27, 34, 27, 10, 14, 18}), planned.offsets);
}

TEST(plan, of_gaps_that_are_alike_the_lowest_is_taken) {
  // At step 5 there are two gaps of 9 bytes: one block left the first, two the second.
  const std::vector<lifetime> blocks{{10, 0, 10}, {9, 0, 2},  {8, 0, 10}, {5, 0, 2},
                                     {4, 0, 2},   {3, 0, 10}, {2, 5, 9}};
  const plan planned = make_plan(blocks);
  expect_valid(blocks, planned);
  EXPECT_EQ(39u, planned.height);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 10, 19, 27, 32, 36, 10}), planned.offsets);
}

TEST(plan, blocks_lie_above_all_that_they_meet) {
  // What lies in the place of the first, later, ends lower.
  const std::vector<lifetime> blocks{{6, 0, 2}, {1, 0, 4}, {3, 2, 4}, {2, 2, 4}};
  const plan planned = make_plan(blocks);
  expect_valid(blocks, planned);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 6, 0, 3}), planned.offsets);
}

TEST(plan, its_bound_is_the_most_that_is_alive_at_once) {
  EXPECT_EQ(7u, make_plan({{3, 0, 2}, {4, 1, 3}, {2, 2, 4}, {3, 3, 4}}).bound);
  EXPECT_EQ(9u, make_plan({{3, 0, 3}, {4, 1, 3}, {2, 2, 4}, {3, 3, 4}}).bound);
}

// Placed by size alone the small one, which lives long, ends on top: 17 instead of 16.
TEST(plan, the_search_finds_what_the_order_of_size_misses) {
  const std::vector<lifetime> blocks{{1 << 10, 1, 6}, {3 << 10, 2, 8}, {4 << 10, 2, 4},
                                     {4 << 10, 3, 7}, {3 << 10, 4, 7}, {3 << 10, 6, 8},
                                     {3 << 10, 6, 7}};
  const plan planned = make_plan(blocks, {.improve = std::chrono::seconds{60}, .tries = 2000});
  expect_valid(blocks, planned);
  EXPECT_EQ(16u << 10, planned.bound);
  EXPECT_EQ(17u << 10, planned.first_height);
  EXPECT_EQ(planned.bound, planned.height);
  EXPECT_EQ(1u, planned.tries) << "the order of areas";
  const plan hurried = make_plan(blocks, {.improve = std::chrono::seconds{60}, .tries = 0});
  EXPECT_EQ(17u << 10, hurried.height);
  EXPECT_EQ(0u, hurried.tries);
  EXPECT_EQ(17.0 / 16, hurried.ratio());
  EXPECT_EQ(0u, make_plan(blocks, {.improve = std::chrono::seconds{0}}).tries);
}

/// The orders of size and of area both miss it.
TEST(plan, the_search_places_blocks_earlier_that_stick_out) {
  const std::vector<lifetime> blocks{{1, 0, 5}, {5, 3, 7}, {3, 4, 8}, {1, 6, 11}, {5, 6, 8},
                                     {2, 6, 8}, {1, 6, 8}, {4, 7, 8}, {4, 7, 12}};
  std::vector<std::uint64_t> heights;
  plan_settings settings{.improve = std::chrono::seconds{60}, .tries = 1};
  settings.progress = [&](std::uint64_t height) { heights.push_back(height); };
  const plan by_area = make_plan(blocks, settings);
  EXPECT_EQ(21u, by_area.height);
  EXPECT_TRUE(heights.empty());
  settings.tries = 2000;
  const plan planned = make_plan(blocks, settings);
  expect_valid(blocks, planned);
  EXPECT_EQ(20u, planned.bound);
  EXPECT_EQ(21u, planned.first_height);
  EXPECT_EQ(20u, planned.height);
  EXPECT_EQ(4u, planned.tries);
  EXPECT_EQ((std::vector<std::uint64_t>{21, 21, 20}), heights);
  EXPECT_EQ((std::vector<std::uint64_t>{5, 0, 8, 16, 11, 17, 19, 0, 4}), planned.offsets);
  EXPECT_GT(planned.search_time.count(), 0);
}

TEST(plan, the_search_goes_on_from_plans_that_are_no_lower) {
  const std::vector<lifetime> first{{3, 0, 5}, {2, 0, 4}, {2, 0, 5}, {2, 2, 6}, {6, 3, 5},
                                    {6, 4, 9}, {5, 5, 8}, {2, 5, 7}, {5, 6, 10}};
  const std::vector<lifetime> second{{4, 0, 4},  {3, 0, 3}, {3, 2, 6}, {5, 3, 6}, {2, 4, 7},
                                     {1, 5, 10}, {2, 5, 6}, {6, 6, 7}, {2, 6, 7}};
  const plan_settings settings{.improve = std::chrono::seconds{60}, .tries = 2000};
  const plan one = make_plan(first, settings);
  EXPECT_EQ(19u, one.height);
  EXPECT_EQ(4u, one.tries);
  EXPECT_EQ((std::vector<std::uint64_t>{8, 0, 17, 6, 11, 0, 11, 16, 6}), one.offsets);
  const plan two = make_plan(second, settings);
  EXPECT_EQ(13u, two.height);
  EXPECT_EQ(4u, two.tries);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 4, 10, 5, 2, 4, 0, 5, 0}), two.offsets);
}

TEST(plan, blocks_are_placed_as_they_come_where_there_is_no_time_for_more) {
  const plan_settings hurried{.improve = {}, .first = {}};
  // The last lies where the second and the third were; the fourth in the gap that fits it best.
  const std::vector<lifetime> blocks{{512, 0, 2},  {1024, 0, 3}, {512, 1, 4},
                                     {2048, 1, 2}, {512, 2, 6},  {1536, 4, 6}};
  const plan planned = make_plan(blocks, hurried);
  expect_valid(blocks, planned);
  EXPECT_EQ((std::vector<std::uint64_t>{0, 512, 1536, 2048, 0, 512}), planned.offsets);
  EXPECT_EQ(4096u, planned.height);
  EXPECT_EQ(4096u, planned.bound);
  EXPECT_EQ(0u, planned.first_height);
  EXPECT_EQ(0u, planned.tries);
  const auto many = lifetimes_between(make_script(recorded("gpt2_two_steps")), 0, UINT64_MAX);
  expect_valid(many, make_plan(many, hurried));
}

TEST(plan, blocks_that_are_placed_as_they_come_join_the_gaps_on_both_sides) {
  const plan_settings hurried{.improve = {}, .first = {}};
  // The last fits where the first two were, whichever of them ended first.
  for (const auto& [first, second] : {std::pair{2U, 1U}, std::pair{1U, 2U}}) {
    const std::vector<lifetime> blocks{
        {512, 0, first}, {512, 0, second}, {512, 0, 9}, {1024, 3, 9}};
    const plan planned = make_plan(blocks, hurried);
    expect_valid(blocks, planned);
    EXPECT_EQ((std::vector<std::uint64_t>{0, 512, 1024, 0}), planned.offsets);
    EXPECT_EQ(1536u, planned.height);
  }
}

/// Together they are larger than any address, and what is alive at once is found to be less.
TEST(plan, the_largest_block_can_stick_out_where_sizes_cannot_be_added) {
  constexpr std::uint64_t half = std::uint64_t{1} << 63;
  const std::vector<lifetime> blocks{{half + 50, 0, 2}, {half + 100, 1, 10}};
  const plan planned = make_plan(blocks, {.improve = std::chrono::seconds{60}, .tries = 100});
  EXPECT_EQ(half + 100, planned.first_height);
  EXPECT_EQ(half + 50, planned.height);
}

TEST(plan, the_same_seed_and_tries_give_the_same_plan) {
  const auto blocks = lifetimes_between(make_script(recorded("gnn_sample")), 0, UINT64_MAX);
  const plan_settings settings{.improve = std::chrono::hours{1}, .tries = 5};
  const plan first = make_plan(blocks, settings);
  const plan second = make_plan(blocks, settings);
  EXPECT_EQ(first.offsets, second.offsets);
  EXPECT_EQ(5u, first.tries);
}

TEST(plan, a_recorded_program_is_placed_near_its_bound) {
  const script steps = make_script(recorded("gpt2_two_steps"));
  const auto blocks = lifetimes_between(steps, 0, UINT64_MAX);
  const plan planned = make_plan(blocks, {.improve = std::chrono::seconds{60}, .tries = 3});
  expect_valid(blocks, planned);
  EXPECT_EQ(3313u, blocks.size());
  EXPECT_EQ(13'594'220'032u, planned.bound);  // of sizes that are rounded up
  EXPECT_EQ(planned.bound, planned.height);
}

TEST(lifetimes, are_cut_to_the_window_and_rounded) {
  const script steps = make_script(recording_of(
      {allocate(10, 1, 100), allocate(20, 2, 513), event_at(30, trace_kind::deallocate, 1),
       allocate(40, 3, 0), allocate(50, 4, 512), event_at(60, trace_kind::deallocate, 2),
       allocate(70, 5, 512)}));
  const auto all = lifetimes_between(steps, 0, UINT64_MAX);
  EXPECT_EQ((std::vector<lifetime>{{512, 1, 3}, {1024, 2, 6}, {512, 5, 8}, {512, 7, 8}}), all);
  // From the fourth step on, without the last: the first is gone, the second was there before, the
  // last comes later.
  const auto some = lifetimes_between(steps, 3, 6);
  EXPECT_EQ((std::vector<lifetime>{{1024, 0, 3}, {512, 2, 4}}), some);
}

TEST(lifetimes, of_a_window_that_begins_and_ends_with_an_event_have_both) {
  const script steps = make_script(recording_of(
      {allocate(10, 1, 512), allocate(20, 2, 1024), event_at(30, trace_kind::deallocate, 1),
       allocate(40, 3, 1536), event_at(50, trace_kind::deallocate, 2), allocate(50, 4, 2048),
       allocate(60, 5, 2560)}));
  EXPECT_EQ((std::vector<lifetime>{{512, 0, 1}, {1024, 0, 3}, {1536, 2, 5}, {2048, 4, 5}}),
            lifetimes_between(steps, 2, 6));
  // Just after the first and just before the last: the block of the first is gone.
  EXPECT_EQ((std::vector<lifetime>{{1024, 0, 2}, {1536, 1, 2}}), lifetimes_between(steps, 3, 4));
  // One step, and none.
  EXPECT_EQ((std::vector<lifetime>{{512, 0, 2}, {1024, 1, 2}}), lifetimes_between(steps, 1, 2));
  EXPECT_EQ((std::vector<lifetime>{{512, 0, 1}, {1024, 0, 1}}), lifetimes_between(steps, 2, 2));
  EXPECT_TRUE(lifetimes_between(steps, 0, 0).empty());
  EXPECT_EQ((std::vector<lifetime>{{1536, 0, 1}, {2048, 0, 1}, {2560, 0, 1}}),
            lifetimes_between(steps, 7, UINT64_MAX));
}

TEST(lifetimes, count_every_step_and_round_what_can_be_rounded) {
  const script steps = make_script(
      recording_of({allocate(1, 1, UINT64_MAX - 511), event_at(2, trace_kind::record_stream, 1),
                    allocate(3, 2, UINT64_MAX - 512), event_at(4, trace_kind::deallocate, 1),
                    allocate(5, 3, UINT64_MAX)}));
  EXPECT_EQ((std::vector<lifetime>{
                {UINT64_MAX - 511, 1, 4}, {UINT64_MAX - 511, 3, 6}, {UINT64_MAX, 5, 6}}),
            lifetimes_between(steps, 0, UINT64_MAX));
}

}  // namespace
}  // namespace weir::replay

// Offline plans: valid always, optimal where the optimum is known.
#include "replay/plan.hpp"

#include <gtest/gtest.h>

#include "replay/traces.hpp"

namespace weir::replay {
namespace {

/// No two blocks that live at the same time share a byte, and none lies above the height.
void expect_valid(const std::vector<lifetime>& blocks, const plan& planned) {
  ASSERT_EQ(blocks.size(), planned.offsets.size());
  EXPECT_GE(planned.height, planned.bound);
  EXPECT_LE(planned.height, planned.first_height);
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

TEST(plan, nothing_needs_no_room) {
  const plan planned = make_plan({});
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
  EXPECT_EQ(3584u, planned.height);
  EXPECT_EQ(1.0, planned.ratio());
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
  EXPECT_GE(planned.bound, steps.requested_peak);
  EXPECT_LT(planned.ratio(), 1.02);
}

TEST(lifetimes, are_cut_to_the_window_and_rounded) {
  const script steps = make_script(recording_of(
      {allocate(10, 1, 100), allocate(20, 2, 513), event_at(30, trace_kind::deallocate, 1),
       allocate(40, 3, 0), allocate(50, 4, 512), event_at(60, trace_kind::deallocate, 2),
       allocate(70, 5, 512)}));
  const auto all = lifetimes_between(steps, 0, UINT64_MAX);
  EXPECT_EQ((std::vector<lifetime>{{512, 1, 3}, {1024, 2, 6}, {512, 5, 8}, {512, 7, 8}}), all);
  // Between 35 and 65: the first is gone, the second was there before, the last comes later.
  const auto some = lifetimes_between(steps, 35, 65);
  EXPECT_EQ((std::vector<lifetime>{{1024, 0, 3}, {512, 2, 4}}), some);
}

}  // namespace
}  // namespace weir::replay

// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: under a limit, scattered free memory becomes one block, and nothing
// that is live is touched.
#include <random>

#include "allocator_contract/allocator_test.hpp"

namespace weir::testing_support { namespace {

class moves_under_a_limit : public allocator_test {
 protected:
  /// Full of 2 MiB blocks, every other one freed again. A multiple of classic segments, too.
  static constexpr bytes limit{std::uint64_t{80} << 20};
  std::vector<filled_block> fragment(const lane& on) {
    EXPECT_TRUE(memory().set_limit(limit));
    std::vector<filled_block> kept, freed;
    for (int i = 0; i < 40; ++i) (i % 2 == 0 ? kept : freed).push_back(make(2_MiB, on));
    for (const auto& each : freed) finish(each, on);
    return kept;
  }
};
WEIR_ALLOCATOR_CONTRACT(moves_under_a_limit);

TEST_P(moves_under_a_limit, free_memory_becomes_one_block_while_the_rest_is_read) {
  lane& on = new_lane();
  lane& reader = new_lane();
  const auto kept = fragment(on);
  reader.wait_for(on);
  // Kernels that read the live blocks run before, during and after the moves.
  for (int round = 0; round < 4; ++round)
    for (const auto& each : kept) reader.check(each.memory, each.size, each.value);
  const auto large = memory().try_allocate(24_MiB, on);
  for (const auto& each : kept) reader.check(each.memory, each.size, each.value);
  if (moves()) {
    ASSERT_TRUE(large) << large.error().message();
    EXPECT_GT(memory().stats().handles_moved, 0U);
    EXPECT_EQ(memory().stats().handles_released, 0U);
  }
  EXPECT_LE(memory().stats().reserved.peak, limit);
  expect_books();
  expect_snapshot();
  if (large) {
    const filled_block block{*large, 24_MiB, new_value()};
    on.fill(block.memory, block.size, block.value);
    for (const auto& each : kept) reader.check(each.memory, each.size, each.value);
    finish(block, on);
  } else {
    EXPECT_EQ(large.code(), errc::out_of_memory);
  }
  on.wait_for(reader);
  for (const auto& each : kept) finish(each, on);
}

TEST_P(moves_under_a_limit, another_stream_gets_the_moved_memory_behind_the_work) {
  lane& first = new_lane();
  lane& second = new_lane();
  const auto kept = fragment(first);
  // The frees of the first stream lie behind work that is not done.
  const auto large = memory().try_allocate(24_MiB, second);
  if (moves()) {
    ASSERT_TRUE(large) << large.error().message();
    EXPECT_GT(memory().stats().handles_moved, 0U);
  }
  if (large) {
    const filled_block block{*large, 24_MiB, new_value()};
    second.fill(block.memory, block.size, block.value);
    finish(block, second);
  }
  expect_books();
  for (const auto& each : kept) finish(each, first);
}

TEST_P(moves_under_a_limit, moved_memory_comes_back_to_its_old_blocks) {
  lane& on = new_lane();
  auto kept = fragment(on);
  for (int round = 0; round < 6; ++round) {
    if (const auto large = memory().try_allocate(28_MiB, on)) {
      const filled_block block{*large, 28_MiB, new_value()};
      on.fill(block.memory, block.size, block.value);
      for (const auto& each : kept) on.check(each.memory, each.size, each.value);
      finish(block, on);
    } else {
      EXPECT_FALSE(moves()) << large.error().message();
    }
    std::vector<filled_block> small;
    for (int i = 0; i < 14; ++i) small.push_back(make(2_MiB, on));
    for (const auto& each : kept) on.check(each.memory, each.size, each.value);
    for (const auto& each : small) finish(each, on);
    expect_books();
    expect_snapshot();
  }
  for (const auto& each : kept) finish(each, on);
}

TEST_P(moves_under_a_limit, requests_of_whole_handles_fit_as_long_as_there_is_memory) {
  // Blocks of up to 16 MiB stand on handles of 2 MiB in these two, so nothing can be pinned.
  const bool must_fit =
      policy() == placement_policy::balanced || policy() == placement_policy::compact;
  const bytes most = machine_effort().tight_limit;
  ASSERT_TRUE(memory().set_limit(most));
  lane* const lanes[] = {&new_lane(), &new_lane()};
  const bytes largest = std::min(most / 8, 16_MiB);
  std::mt19937_64 random{machine->seed() + 7};
  struct owned {
    filled_block block;
    lane* on;
  };
  std::vector<owned> live;
  bytes used{};
  for (int i = 0; i < machine_effort().operations; ++i) {
    const bytes size = 2_MiB * (1 + random() % (largest / 2_MiB));
    while (used + size > most || (!live.empty() && random() % 4 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      finish(live.back().block, *live.back().on);
      used -= live.back().block.size;
      live.pop_back();
    }
    lane& on = *lanes[random() % 2];
    const auto made = memory().try_allocate(size, on);
    if (!made) {
      EXPECT_EQ(made.code(), errc::out_of_memory);
      EXPECT_FALSE(must_fit) << to_string(used) << " live, " << to_string(size)
                             << " more: " << memory().explain(size, on).text();
      continue;
    }
    live.push_back({{*made, size, new_value()}, &on});
    on.fill(*made, size, live.back().block.value);
    used += size;
    if (i % 20 == 0) expect_books();
    if (i % 100 == 0) expect_snapshot();
  }
  if (must_fit) {
    EXPECT_GT(memory().stats().handles_moved, 0U);
  }
  EXPECT_LE(memory().stats().reserved.peak, most);
  for (const owned& each : live) finish(each.block, *each.on);
}

}  // namespace
}  // namespace weir::testing_support

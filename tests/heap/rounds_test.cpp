// SPDX-License-Identifier: Apache-2.0
// Memory of programs whose requests repeat.
#include "heap/rounds_fixture.hpp"

namespace weir::testing_support { namespace {

class rounds_of_requests : public repeating_heap_test,
                           public ::testing::WithParamInterface<placement_policy> {
 protected:
  [[nodiscard]] static allocator_options settings() {
    allocator_options chosen;
    chosen.policy = GetParam();
    return chosen;
  }
};

TEST_P(rounds_of_requests, memory_comes_to_rest_and_never_too_early) {
  auto memory = make(settings());
  const auto on = new_stream();
  const auto other = new_stream();
  std::vector<void*> weights;
  for (int i = 0; i < 8; ++i) weights.push_back(memory.allocate(8_MiB, on));
  std::vector<std::uint64_t> moved;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t before = memory.stats().handles_moved;
    play(memory, on, other, 40);
    moved.push_back(memory.stats().handles_moved - before);
    ASSERT_EQ(check(memory), "") << i;
    machine->run_until_idle();
  }
  EXPECT_GT(moved[1] + moved[2] + moved[3], 0u);
  EXPECT_EQ(std::vector<std::uint64_t>(moved.end() - 4, moved.end()),
            std::vector<std::uint64_t>(4, 0));
  end(memory, on);
  for (void* const each : weights) memory.deallocate(each, on);
  EXPECT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

/// Memory that another stream uses comes back now in this round and now in the next: nothing is
/// promised but that it is not given away before.
TEST_P(rounds_of_requests, where_streams_go_on_irregularly_nothing_comes_too_early) {
  auto memory = make(settings());
  const auto on = new_stream();
  const auto other = new_stream();
  for (int i = 0; i < 40; ++i) {
    play(memory, on, other, 40);
    ASSERT_EQ(check(memory), "") << i;
    if (i % 3 == 0 || i > 30) machine->run_until_idle();
  }
  end(memory, on);
}

INSTANTIATE_TEST_SUITE_P(Policies, rounds_of_requests,
                         ::testing::Values(placement_policy::balanced, placement_policy::compact));

}  // namespace
}  // namespace weir::testing_support

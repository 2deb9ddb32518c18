// SPDX-License-Identifier: Apache-2.0
// Planned rounds while the driver fails.
#include "heap/rounds_fixture.hpp"

namespace weir::testing_support { namespace {

TEST_F(repeating_heap_test, every_driver_call_of_a_planned_round_may_fail) {
  allocator_options settings;
  settings.policy = placement_policy::compact;
  writes_ = false;  // those make calls of their own
  std::uint64_t moved = 0;
  const auto some_rounds = [&](caching_allocator& memory, const stream& on, const stream& other) {
    for (int i = 0; i < 7; ++i) {
      const std::uint64_t before = memory.stats().handles_moved;
      play(memory, on, other, 12);
      machine->run_until_idle();
      moved = memory.stats().handles_moved - before;
    }
  };
  const auto settle = [&](caching_allocator& memory, const stream& on, const stream&) {
    end(memory, on);
    machine->run_until_idle();
  };
  {
    auto memory = make(settings);
    const auto on = new_stream();
    some_rounds(memory, on, on);
    EXPECT_GT(memory.stats().handles_moved, 40u);
    EXPECT_EQ(moved, 0u) << "the last round was planned";
    end(memory, on);
  }
  fail_each_call(settings, 512_MiB, some_rounds, settle);
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Without membarrier: fences on both sides, the same promises.
#include <atomic>
#include <thread>
#include <vector>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::asymmetric_barrier;
using heap::thread_cache;
using heap::thread_caches;

// Before main(): every test of this program runs without membarrier.
const bool refused = (asymmetric_barrier::refuse_membarrier(), true);

using fenced_test = heap_test;

TEST_F(fenced_test, is_what_this_program_tests) {
  asymmetric_barrier::prepare();
  EXPECT_TRUE(refused);
  EXPECT_FALSE(asymmetric_barrier::is_free());
  thread_caches all{4 << 20};
  EXPECT_NE(all.open()->attention.load() & thread_cache::fenced, 0u);
}

TEST_F(fenced_test, still_hits_without_driver_calls) {
  auto memory = make();
  const auto stream = new_stream();
  void* const small = memory.allocate(4_KiB, stream);
  memory.deallocate(memory.allocate(64_MiB, stream), stream);
  memory.deallocate(small, stream);  // both are in the cache now
  const auto before = memory.stats().hits;
  const auto calls = machine->calls();
  for (int i = 0; i < 1000; ++i) {
    memory.deallocate(memory.allocate(4_KiB, stream), stream);
    memory.deallocate(memory.allocate(64_MiB, stream), stream);
  }
  EXPECT_EQ(machine->calls(), calls);
  EXPECT_EQ(memory.stats().hits - before, 2000u);
  EXPECT_EQ(check(memory), "");
}

/// The owner counts up two numbers without a lock; whoever stops it sees them equal, and what it
/// writes meanwhile is seen by the owner.
TEST_F(fenced_test, a_stopped_owner_is_outside_and_stays_there) {
  asymmetric_barrier::prepare();
  thread_caches all{4 << 20};
  thread_cache& mine = *all.open();
  std::atomic<bool> over{false};
  std::uint64_t entered = 0;
  std::uint64_t wrong = 0;
  std::thread owner{[&] {
    while (!over.load(std::memory_order_relaxed)) {
      if (!mine.enter(thread_cache::closer_look)) continue;
      if (mine.units != mine.large_units) ++wrong;
      mine.units = mine.units + 1;
      std::atomic_signal_fence(std::memory_order_seq_cst);
      mine.large_units = mine.large_units + 1;
      ++entered;
      mine.leave();
    }
  }};
  for (int i = 0; i < 3000; ++i) {
    const thread_caches::stop stopped{all, nullptr};
    ASSERT_EQ(mine.units, mine.large_units);
    mine.units += 1000;
    mine.large_units += 1000;
  }
  over = true;
  owner.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(mine.units, 3'000'000u + entered);
}

TEST_F(fenced_test, stats_are_exact_while_threads_hit) {
  auto memory = make();
  constexpr std::uint64_t rounds = 20'000;
  std::atomic<int> running{3};
  std::vector<std::thread> all;
  for (int i = 0; i < 3; ++i) {
    all.emplace_back([&] {
      const auto stream = new_stream();
      for (std::uint64_t n = 0; n < rounds; ++n)
        memory.deallocate(memory.allocate(4_KiB, stream), stream);
      --running;
    });
  }
  while (running != 0) {
    const auto now = memory.stats();
    ASSERT_EQ(now.allocations - now.frees, now.blocks.current);
    ASSERT_LE(now.blocks.current, 3u);
    ASSERT_EQ(now.requested.current, now.blocks.current * 4_KiB);
  }
  for (auto& each : all) each.join();
  EXPECT_EQ(memory.stats().allocations, 3 * rounds);
  EXPECT_EQ(check(memory), "");
}

}  // namespace
}  // namespace weir::testing_support

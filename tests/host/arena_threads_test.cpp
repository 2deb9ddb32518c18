// SPDX-License-Identifier: Apache-2.0
// A host arena used by many threads, with helpers that pin and give back meanwhile.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "host/arena_fixture.hpp"

namespace weir::testing_support { namespace {

using arena_threads_test = arena_test;

TEST_F(arena_threads_test, threads_share_an_arena) {
  auto options = quiet();
  options.threads = 2;
  options.max_ahead = 16_MiB;
  options.max_idle = std::chrono::milliseconds{1};
  const auto arena = make(options);
  std::vector<stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(new_stream());
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (std::size_t number = 0; number < streams.size(); ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random{static_cast<unsigned>(number)};
      std::vector<std::pair<unsigned char*, std::size_t>> live;
      const auto value = static_cast<unsigned char>(number + 1);
      for (int step = 0; step < 400; ++step) {
        if (live.size() < 5) {
          const std::size_t size = 1 + random() % 200'000;
          const auto taken = arena->allocate(bytes{size}, streams[number], 64_B);
          if (!taken) {
            ++failures;
            continue;
          }
          auto* const memory = static_cast<unsigned char*>(*taken);
          memory[0] = memory[size - 1] = value;
          live.emplace_back(memory, size);
        } else {
          const std::size_t at = random() % live.size();
          const auto [memory, size] = live[at];
          if (memory[0] != value || memory[size - 1] != value) ++failures;
          if (!arena->deallocate(memory, nullptr)) ++failures;
          live[at] = live.back();
          live.pop_back();
        }
        if (step % 100 == 99) static_cast<void>(arena->trim(1_MiB));
      }
      for (const auto& [memory, size] : live)
        if (!arena->deallocate(memory, nullptr)) ++failures;
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(arena->stats().blocks.current, 0u);
  ASSERT_TRUE(arena->empty_cache());
  EXPECT_EQ(arena->check(), "");
}

TEST_F(arena_threads_test, a_close_beside_requests_ends_them) {
  auto options = quiet();
  options.threads = 1;
  options.max_ahead = 16_MiB;
  const auto arena = make(options);
  const auto stream = new_stream();
  std::thread user{[&] {
    for (;;) {
      const auto taken = arena->allocate(100'000_B, stream, 64_B);
      if (!taken) {
        EXPECT_EQ(taken.code(), errc::closed);
        return;
      }
      EXPECT_TRUE(arena->deallocate(*taken, nullptr));
    }
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  ASSERT_TRUE(arena->close());
  user.join();
  EXPECT_EQ(arena->check(), "");
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// The mutex: one holder at a time, and nobody sleeps for ever.
#include "base/mutex.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "support/this_process.hpp"

namespace weir { inline namespace v0 { namespace detail { namespace {

TEST(mutex_test, one_thread_at_a_time_holds_it) {
  mutex guard;
  std::uint64_t count = 0;
  const auto work = [&] {
    for (int i = 0; i < 20'000; ++i) {
      const mutex_lock lock{guard};
      ++count;
      if (i % 1000 == 0) std::this_thread::yield();  // while it is held: the others go to sleep
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(count, 80'000u);
}

TEST(mutex_test, who_finds_it_held_sleeps_until_woken) {
  using namespace std::chrono_literals;
  mutex guard;
  int turns = 0;
  std::array<std::atomic<pid_t>, 3> numbers{};
  guard.lock();
  std::vector<std::thread> sleepers;
  for (auto& number : numbers)
    sleepers.emplace_back([&] {
      number = ::gettid();
      const mutex_lock lock{guard};
      ++turns;
    });
  const auto all_sleep = [&] {
    return std::all_of(numbers.begin(), numbers.end(), [](const auto& each) {
      return each != 0 && testing_support::is_asleep(each);
    });
  };
  const auto latest = std::chrono::steady_clock::now() + 10s;
  while (!all_sleep() && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_TRUE(all_sleep());
  EXPECT_EQ(turns, 0);
  guard.unlock();
  for (std::thread& each : sleepers) each.join();
  EXPECT_EQ(turns, 3);
}

/// Whether a try takes it; it is let go again. Unchecked: the analysis does not follow the answer.
bool can_be_taken(mutex& guard) WEIR_UNCHECKED_LOCKING {
  const bool taken = guard.try_lock();
  if (taken) guard.unlock();
  return taken;
}

TEST(mutex_test, a_try_takes_it_only_where_nobody_has_it) {
  mutex guard;
  const auto elsewhere = [&] {
    bool taken = false;
    std::thread{[&] { taken = can_be_taken(guard); }}.join();
    return taken;
  };
  {
    const mutex_lock lock{guard};
    EXPECT_FALSE(elsewhere());
  }
  EXPECT_TRUE(elsewhere());
  EXPECT_TRUE(can_be_taken(guard)) << "what was tried is let go";
}

}  // namespace
}}}  // namespace weir::v0::detail

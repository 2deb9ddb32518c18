// SPDX-License-Identifier: Apache-2.0
// pinning_threads: pieces are worked on once, and a stop waits.
#include "host/pinning_threads.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace weir::host_test { namespace {

using host::pinning_piece;
using host::pinning_threads;

class recorded_work final : public host::pinning_work {
 public:
  void pin_ahead(pinning_piece piece) noexcept override {
    while (held.load()) std::this_thread::yield();
    const std::lock_guard lock{mutex};
    sizes.push_back(piece.size);
    if (piece.reserved) ++reserved;
  }
  std::optional<std::chrono::nanoseconds> give_back_idle() noexcept override {
    looks.fetch_add(1);
    if (looks.load() > 3) return std::nullopt;
    return std::chrono::milliseconds{1};
  }

  std::atomic<bool> held{false};
  std::atomic<int> looks{0};
  std::mutex mutex;
  std::vector<std::uint64_t> sizes;
  int reserved = 0;
};

TEST(PinningThreads, every_piece_is_pinned_once) {
  recorded_work work;
  pinning_threads threads{work, 2};
  for (std::uint64_t size = 1; size <= 50; ++size)
    ASSERT_TRUE(threads.post({.size = size, .reserved = size % 2 == 0}));
  threads.wait_until_idle();
  EXPECT_EQ(threads.queued(), 0u);
  const std::lock_guard lock{work.mutex};
  std::sort(work.sizes.begin(), work.sizes.end());
  ASSERT_EQ(work.sizes.size(), 50u);
  for (std::uint64_t size = 1; size <= 50; ++size) EXPECT_EQ(work.sizes[size - 1], size);
  EXPECT_EQ(work.reserved, 25);
}

TEST(PinningThreads, without_threads_nothing_is_accepted) {
  recorded_work work;
  pinning_threads threads{work, 0};
  EXPECT_FALSE(threads.post({.size = 1}));
  EXPECT_EQ(threads.queued(), 0u);
  threads.wait_until_idle();
}

TEST(PinningThreads, what_is_being_pinned_counts_as_queued) {
  recorded_work work;
  work.held = true;
  pinning_threads threads{work, 1};
  ASSERT_TRUE(threads.post({.size = 3}));
  ASSERT_TRUE(threads.post({.size = 4}));
  EXPECT_EQ(threads.queued(), 7u);
  work.held = false;
  threads.wait_until_idle();
  EXPECT_EQ(threads.queued(), 0u);
}

TEST(PinningThreads, a_stop_drops_what_is_queued_and_waits_for_the_rest) {
  recorded_work work;
  work.held = true;
  pinning_threads threads{work, 1};
  ASSERT_TRUE(threads.post({.size = 1}));
  while (threads.queued() != 1) std::this_thread::yield();
  for (std::uint64_t size = 2; size <= 9; ++size) ASSERT_TRUE(threads.post({.size = size}));
  std::thread release{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    work.held = false;
  }};
  threads.stop();
  release.join();
  const std::lock_guard lock{work.mutex};
  EXPECT_LE(work.sizes.size(), 1u) << "the first alone, if a thread had it already";
  EXPECT_FALSE(threads.post({.size = 1}));
  EXPECT_EQ(threads.queued(), 0u);
}

TEST(PinningThreads, idle_memory_is_looked_at_again_until_none_is_left) {
  recorded_work work;
  pinning_threads threads{work, 1};
  ASSERT_TRUE(threads.post({.size = 1}));
  for (int i = 0; i < 2000 && work.looks.load() < 4; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  EXPECT_EQ(work.looks.load(), 4);
  std::this_thread::sleep_for(std::chrono::milliseconds{10});
  EXPECT_EQ(work.looks.load(), 4) << "nobody looks any more";
}

}  // namespace
}  // namespace weir::host_test

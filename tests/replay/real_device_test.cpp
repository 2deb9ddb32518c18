// SPDX-License-Identifier: Apache-2.0
// Replays on a driver that is opened as a real one is; a simulated machine is behind it.
#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <set>
#include <thread>

#include "replay/replay.hpp"
#include "replay/traces.hpp"
#include "support/sizes.hpp"

namespace weir::replay { namespace {

using testing_support::mib;

settings real(replay::policy policy) {
  return {.policy = policy, .target = {.simulated = false}, .driver = WEIR_SIM_DRIVER};
}

/// Three threads by turns, of which the second frees what the first allocated.
script three_threads() {
  const auto by = [](std::uint16_t thread, trace_event event) {
    event.thread = thread;
    return event;
  };
  return make_script(recording_of(
      {by(0, allocate(1, 100, 3 * mib)), by(1, allocate(2, 200, 5 * mib, 1)),
       by(1, event_at(3, trace_kind::deallocate, 100)), by(2, allocate(4, 300, 7 * mib)),
       by(0, allocate(5, 400, mib)), by(2, event_at(6, trace_kind::deallocate, 300))}));
}

/// Which thread allocated a block of which size, in MiB.
struct thread_sink final : event_sink {
  void on_event(const memory_event& event) noexcept override {
    if (event.kind != memory_event_kind::allocate) return;
    threads.emplace_back(event.size / mib, std::this_thread::get_id());
  }
  std::vector<std::pair<std::uint64_t, std::thread::id>> threads;
};

TEST(real_device, each_thread_of_the_recording_has_one_of_its_own) {
  thread_sink sink;
  settings settings = real(policy::balanced);
  settings.observer = &sink;
  const auto played = play(three_threads(), settings);
  ASSERT_TRUE(played) << played.error().message();
  EXPECT_TRUE(played->is_complete());
  ASSERT_EQ(4u, sink.threads.size());
  const auto& [first, second, third, fourth] =
      std::tie(sink.threads[0], sink.threads[1], sink.threads[2], sink.threads[3]);
  EXPECT_EQ(3u, first.first);
  EXPECT_EQ(5u, second.first);
  EXPECT_EQ(7u, third.first);
  EXPECT_EQ(1u, fourth.first);
  EXPECT_EQ(first.second, fourth.second);
  const std::set<std::thread::id> threads{first.second, second.second, third.second,
                                          std::this_thread::get_id()};
  EXPECT_EQ(4u, threads.size());
}

TEST(real_device, plays_what_the_simulator_plays_and_checks_it) {
  for (const replay::policy policy : all_policies) {
    const outcome there = play(three_threads(), real(policy)).value();
    const outcome here = play(three_threads(), {.policy = policy}).value();
    EXPECT_EQ(policy, there.policy);
    EXPECT_EQ(here.allocations, there.allocations);
    EXPECT_EQ(here.events, there.events);
    EXPECT_EQ(here.requested_peak, there.requested_peak);
    EXPECT_EQ(here.reserved_peak, there.reserved_peak) << name(policy);
    EXPECT_EQ(0u, there.mismatches) << name(policy);
    EXPECT_EQ(0u, there.ooms);
    EXPECT_GT(there.driver_time.count(), 0);
    EXPECT_GT(there.play_time.count(), 0);
  }
}

std::chrono::nanoseconds thread_time() {
  timespec used{};
  EXPECT_EQ(0, ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used));
  return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
}

/// Has the first allocation wait for work of another thread.
struct waiting_sink final : event_sink {
  void on_event(const memory_event& event) noexcept override {
    if (event.kind != memory_event_kind::allocate || has_waited) return;
    has_waited = true;
    std::thread{[] {
      while (thread_time() < work) {
      }
    }}.join();
  }
  static constexpr std::chrono::milliseconds work{50};
  bool has_waited = false;
};

TEST(real_device, takes_its_time_where_the_simulator_takes_the_processors) {
  settings slow = real(policy::balanced);
  waiting_sink sink;
  slow.observer = &sink;
  EXPECT_GE(play(three_threads(), slow).value().play_time, waiting_sink::work);
  slow = {};
  sink = {};
  slow.observer = &sink;
  EXPECT_LT(play(three_threads(), slow).value().play_time, waiting_sink::work);
  EXPECT_TRUE(sink.has_waited);
}

TEST(real_device, counts_the_policys_calls_and_not_what_writes_patterns) {
  // As on the simulator. Of the patterns' four writes and two checks only the three calls count
  // that bind the context around each.
  const outcome here = play(three_threads(), {.policy = policy::driver_pool}).value();
  const outcome there = play(three_threads(), real(policy::driver_pool)).value();
  EXPECT_EQ(here.driver_calls + 3 * (4 + 2), there.driver_calls);
}

TEST(real_device, takes_no_more_than_its_share) {
  for (const replay::policy policy : {policy::balanced, policy::driver_pool}) {
    settings little = real(policy);
    little.capacity = bytes{32 * mib};
    const script steps = make_script(
        recording_of({allocate(1, 100, 20 * mib), allocate(2, 200, 20 * mib),
                      event_at(3, trace_kind::deallocate, 100), allocate(4, 300, 20 * mib)}));
    const outcome there = play(steps, little).value();
    EXPECT_EQ(1u, there.ooms) << name(policy);
    EXPECT_LE(there.reserved_peak, 32 * mib) << name(policy);
  }
}

TEST(real_device, that_is_not_there_is_an_error) {
  settings second = real(policy::balanced);
  second.target.device = 1;
  EXPECT_EQ(errc::no_device, play(three_threads(), second).code());
}

}  // namespace
}  // namespace weir::replay

// SPDX-License-Identifier: Apache-2.0
// Profiles: every step has its cause, and what it cost the driver.
#include "replay/profile.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "replay/replay.hpp"
#include "replay/traces.hpp"
#include "support/sizes.hpp"

namespace weir::replay { namespace {

using driver::call;
using std::chrono::nanoseconds;
using testing_support::mib;

profile profile_of(const script& script, replay::policy policy, bytes capacity = {}) {
  auto played = play_profiled(script, {.policy = policy, .capacity = capacity});
  EXPECT_TRUE(played) << played.error().message();
  EXPECT_TRUE(played && played->profile);
  return played && played->profile ? *played->profile : profile{};
}

std::uint64_t steps_of(const profile& profile, cause cause) { return profile.of(cause).count; }

TEST(profiles, tell_growth_hits_and_free_memory_apart) {
  // 4 MiB grow; the thread keeps the block and has it again; what is half as large gets of it.
  const script script = make_script(recording_of({
      allocate(0, 1, 4 * mib),
      event_at(1 * millisecond, trace_kind::deallocate, 1),
      allocate(2 * millisecond, 2, 4 * mib),
      event_at(3 * millisecond, trace_kind::deallocate, 2),
      allocate(4 * millisecond, 3, 2 * mib),
  }));
  const profile profile = profile_of(script, policy::balanced);
  EXPECT_EQ(1u, steps_of(profile, cause::growth));
  EXPECT_EQ(1u, steps_of(profile, cause::thread_cache));
  EXPECT_EQ(1u, steps_of(profile, cause::free_range));
  EXPECT_EQ(2u, steps_of(profile, cause::kept_free));
  EXPECT_EQ(0u, steps_of(profile, cause::heap_free));
  EXPECT_EQ(nanoseconds{}, profile.of(cause::thread_cache).driver_time);
  EXPECT_EQ(0u, profile.of(cause::free_range).driver_calls);
  // The memory of the first request: created, mapped, opened for access.
  const std::uint64_t created = profile.of(call::mem_create).count;
  EXPECT_GE(created, 1u);
  EXPECT_EQ(created * nanoseconds{12'000}, profile.of(call::mem_create).time);
  EXPECT_EQ(created * nanoseconds{1'000}, profile.of(call::mem_map).time);
  EXPECT_GE(profile.of(cause::growth).driver_time,
            profile.of(call::mem_create).time + profile.of(call::mem_map).time);
}

TEST(profiles, tell_moves_and_out_of_memory) {
  // Three blocks fill 60 MiB. Where the first and the last were there is room for one of 40, if the
  // handles of one move to the other; for 10 MiB more there is none.
  const script script = make_script(recording_of(
      {allocate(0, 1, 20 * mib), allocate(1 * millisecond, 2, 20 * mib),
       allocate(2 * millisecond, 3, 20 * mib),
       event_at(10 * millisecond, trace_kind::deallocate, 1),
       event_at(11 * millisecond, trace_kind::deallocate, 3),
       allocate(20 * millisecond, 4, 40 * mib), allocate(30 * millisecond, 5, 10 * mib)}));
  const profile profile = profile_of(script, policy::balanced, bytes{60 * mib});
  EXPECT_EQ(3u, steps_of(profile, cause::growth));
  EXPECT_EQ(1u, steps_of(profile, cause::move));
  EXPECT_EQ(1u, steps_of(profile, cause::out_of_memory));
  EXPECT_GT(profile.of(cause::move).driver_time, nanoseconds{});
}

TEST(profiles, are_of_the_recorded_streams_too) {
  const script script = make_script(recording_of({
      allocate(0, 1, 4 * mib),
      event_at(10, trace_kind::record_stream, 1, 1),
      event_at(20, trace_kind::deallocate, 1),
      allocate(30, 2, 2 * mib, 1),
  }));
  const profile profile = profile_of(script, policy::balanced);
  EXPECT_EQ(1u, steps_of(profile, cause::record_stream));
  EXPECT_EQ(1u, steps_of(profile, cause::heap_free));  // a recorded block is nobody's to keep
}

TEST(profiles, add_up_to_the_counters) {
  const script script = make_script(recorded("multistream_prefetch"));
  const outcome played = play_profiled(script, {.policy = policy::balanced}).value();
  const profile& profile = *played.profile;
  const memory_stats& stats = played.stats;
  EXPECT_EQ(stats.hits, steps_of(profile, cause::thread_cache));
  EXPECT_EQ(stats.heap_hits, steps_of(profile, cause::free_range) +
                                 steps_of(profile, cause::completed) +
                                 steps_of(profile, cause::flushed));
  EXPECT_EQ(stats.misses,
            steps_of(profile, cause::move) + steps_of(profile, cause::move_behind_wait) +
                steps_of(profile, cause::pending_behind_wait) + steps_of(profile, cause::growth) +
                steps_of(profile, cause::release) + steps_of(profile, cause::wait));
  EXPECT_EQ(stats.frees, steps_of(profile, cause::kept_free) + steps_of(profile, cause::heap_free));
  EXPECT_EQ(stats.events, profile.events_recorded());
  EXPECT_EQ(stats.waits, profile.waits_queued());
  std::uint64_t calls = 0;
  nanoseconds time{};
  for (const cause_cost& each : profile.causes) {
    calls += each.driver_calls;
    time += each.driver_time;
  }
  EXPECT_EQ(played.driver_calls, calls);
  EXPECT_EQ(played.driver_time, time);
  calls = 0;
  time = {};
  for (const call_tally& each : profile.calls) {
    calls += each.count;
    time += each.time;
  }
  EXPECT_EQ(played.driver_calls, calls);
  EXPECT_EQ(played.driver_time, time);
  // Measuring changes nothing of what is measured.
  const outcome plain = play(script, {.policy = policy::balanced}).value();
  EXPECT_FALSE(plain.profile);
  EXPECT_EQ(plain.driver_calls, played.driver_calls);
  EXPECT_EQ(plain.driver_time, played.driver_time);
  EXPECT_EQ(plain.reserved_peak, played.reserved_peak);
  EXPECT_EQ(plain.stats.hits, stats.hits);
}

TEST(profiles, of_the_drivers_pool_have_no_rungs) {
  const script script = make_script(recording_of({
      allocate(0, 1, 4 * mib),
      event_at(10, trace_kind::deallocate, 1),
      allocate(20, 2, 0),
  }));
  const profile profile = profile_of(script, policy::driver_pool);
  EXPECT_EQ(1u, steps_of(profile, cause::driver_pool));
  EXPECT_EQ(1u, steps_of(profile, cause::heap_free));
  EXPECT_EQ(0u, profile.locks);
  EXPECT_EQ(1u, profile.of(call::mem_alloc_from_pool_async).count);
  EXPECT_EQ(nanoseconds{400}, profile.of(call::mem_alloc_from_pool_async).time);
}

TEST(profiles, know_the_worst_window_and_the_longest_step_after_the_warm_up) {
  // The driver's pool takes 400 ns a request and a free, and 20 ns to bind the context around it.
  // Two of the ten events are the warm-up; of the others three, 50 ms apart, share a window of
  // 100 ms at most if the third comes before its end.
  recording spaced = recording_of({});
  spaced.streams = {0};
  const auto at = [&](std::uint64_t time, std::uint64_t address) {
    spaced.events.push_back(allocate(time * millisecond, address, 4 * mib));
  };
  for (std::uint64_t i = 0; i < 10; ++i) at(i < 5 ? i * 50 : 1000 + i * 49, 100 + i);
  const outcome played =
      play_profiled(make_script(spaced), {.policy = policy::driver_pool}).value();
  const nanoseconds step = played.driver_time / 10;
  EXPECT_EQ(step * 10, played.driver_time);
  EXPECT_EQ(step, played.profile->longest_step);
  EXPECT_EQ(3 * step, played.profile->worst_window);
  EXPECT_EQ(static_cast<double>((3 * step).count()) / 1e6, played.profile->worst_window_percent());
}

TEST(profiles, sum_up_the_host_times_of_steps) {
  profile profile;
  profile.steps = {
      {cause::move, 10}, {cause::growth, 5}, {cause::move, -3}, {cause::kept_free, -1}};
  profile.sum_up_host_time();
  EXPECT_EQ(nanoseconds{7}, profile.of(cause::move).host_time);
  EXPECT_EQ(nanoseconds{5}, profile.of(cause::growth).host_time);
  EXPECT_EQ(nanoseconds{0}, profile.of(cause::kept_free).host_time);
  EXPECT_EQ(nanoseconds{0}, profile.of(cause::thread_cache).host_time);
}

TEST(profiles, have_a_host_time_for_every_step) {
  const script script = make_script(recorded("gpt2_two_steps"));
  const profile profile = profile_of(script, policy::balanced);
  EXPECT_EQ(script.steps.size(), profile.steps.size());
  nanoseconds sum{};
  for (const cause_cost& each : profile.causes) sum += each.host_time;
  EXPECT_GT(sum, nanoseconds{});
  EXPECT_LT(sum, std::chrono::seconds{10});
}

TEST(profiles, are_of_three_plays) {
  struct counting_sink final : event_sink {
    void on_event(const memory_event& event) noexcept override {
      allocations += event.kind == memory_event_kind::allocate ? 1 : 0;
    }
    int allocations = 0;
  };
  counting_sink sink;
  const script script = make_script(recording_of({allocate(0, 1, 4 * mib)}));
  ASSERT_TRUE(play_profiled(script, {.policy = policy::balanced, .observer = &sink}));
  EXPECT_EQ(3, sink.allocations);
}

TEST(profiles, begin_with_nothing) {
  const profile none;
  for (const cause_cost& each : none.causes) {
    EXPECT_EQ(0u, each.count);
    EXPECT_EQ(0u, each.driver_calls);
    EXPECT_EQ(nanoseconds{}, each.driver_time);
    EXPECT_EQ(nanoseconds{}, each.host_time);
  }
  for (const call_tally& each : none.calls) {
    EXPECT_EQ(0u, each.count);
    EXPECT_EQ(nanoseconds{}, each.time);
  }
  EXPECT_EQ(0u, none.locks);
}

TEST(profiles, count_locks) {
  // The first request finds no cache and goes the slow way; its block is kept by the thread, and
  // the next is a hit. A request of another size takes the lock once.
  const script script = make_script(recording_of({
      allocate(0, 1, 4096),
      event_at(10, trace_kind::deallocate, 1),
      allocate(20, 2, 4096),
      allocate(30, 3, 8192),
  }));
  const profile profile = profile_of(script, policy::balanced);
  EXPECT_EQ(1u, steps_of(profile, cause::growth));
  EXPECT_EQ(1u, steps_of(profile, cause::thread_cache));
  EXPECT_EQ(1u, steps_of(profile, cause::free_range));
  EXPECT_EQ(2u, profile.locks);
}

TEST(profiles, name_every_cause) {
  EXPECT_EQ("thread_cache", name(cause::thread_cache));
  EXPECT_EQ("free_range", name(cause::free_range));
  EXPECT_EQ("completed", name(cause::completed));
  EXPECT_EQ("flushed", name(cause::flushed));
  EXPECT_EQ("move", name(cause::move));
  EXPECT_EQ("move_behind_wait", name(cause::move_behind_wait));
  EXPECT_EQ("pending_behind_wait", name(cause::pending_behind_wait));
  EXPECT_EQ("growth", name(cause::growth));
  EXPECT_EQ("release", name(cause::release));
  EXPECT_EQ("wait", name(cause::wait));
  EXPECT_EQ("out_of_memory", name(cause::out_of_memory));
  EXPECT_EQ("driver_pool", name(cause::driver_pool));
  EXPECT_EQ("kept_free", name(cause::kept_free));
  EXPECT_EQ("heap_free", name(cause::heap_free));
  EXPECT_EQ("record_stream", name(cause::record_stream));
}

}  // namespace
}  // namespace weir::replay

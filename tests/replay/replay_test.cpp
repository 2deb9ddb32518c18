// SPDX-License-Identifier: Apache-2.0
// Replays: the figures of recorded programs, and what a replay promises about itself.
#include "replay/replay.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "replay/nearest.hpp"
#include "replay/traces.hpp"
#include "support/sizes.hpp"

namespace weir::replay { namespace {

const script& script_of(const std::string& name) {
  static std::map<std::string, script> scripts;
  const auto known = scripts.find(name);
  if (known != scripts.end()) return known->second;
  return scripts.emplace(name, make_script(recorded(name))).first->second;
}

outcome played(const std::string& name, replay::policy policy) {
  auto outcome = play(script_of(name), {.policy = policy});
  EXPECT_TRUE(outcome) << outcome.error().message();
  return outcome ? *outcome : replay::outcome{};
}

// --- Figures ------------------------------------------------------------------------------------

// PyTorch's own counters said this of the same program (the recording contains it).
TEST(figures, pytorchs_policies_reserve_what_pytorch_reserved) {
  EXPECT_EQ(15'286'140'928u, played("gpt2_two_steps", policy::torch_default).reserved_peak);
  EXPECT_EQ(14'543'749'120u, played("gpt2_two_steps", policy::torch_expandable).reserved_peak);
  EXPECT_EQ(18'220'056'576u, played("multistream_prefetch", policy::torch_default).reserved_peak);
  EXPECT_EQ(9'191'817'216u, played("multistream_prefetch", policy::torch_expandable).reserved_peak);
}

TEST(figures, the_program_is_the_same_under_every_policy) {
  for (const replay::policy policy : all_policies) {
    const replay::outcome outcome = played("gpt2_two_steps", policy);
    EXPECT_EQ(policy, outcome.policy);
    EXPECT_EQ(13'594'206'920u, outcome.requested_peak);
    EXPECT_EQ(3313u, outcome.allocations);
    EXPECT_EQ(1u, outcome.streams);
    EXPECT_EQ(9933u, outcome.events);
    EXPECT_EQ(script_of("gpt2_two_steps").steady_time, outcome.steady_time);
    EXPECT_GE(outcome.reserved_peak, outcome.requested_peak);
    EXPECT_GT(outcome.driver_calls, 0u);
    EXPECT_GT(outcome.driver_time.count(), 0);
    EXPECT_LE(outcome.steady_driver_time, outcome.driver_time);
    EXPECT_GT(outcome.events_per_second(), 0);
    EXPECT_TRUE(outcome.is_complete());
  }
}

// The figures of docs/tuning.md.
TEST(figures, weirs_policies_hold_what_they_are_known_for) {
  EXPECT_NEAR(1.022, played("multistream_prefetch", policy::balanced).ratio(), 0.005);
  EXPECT_NEAR(1.036, played("multistream_prefetch", policy::throughput).ratio(), 0.01);
  EXPECT_NEAR(1.011, played("multistream_prefetch", policy::compact).ratio(), 0.005);
  const outcome still = played("multistream_prefetch", policy::never_move);
  EXPECT_LT(still.ratio(), 1.2);
  EXPECT_EQ(0u, still.stats.handles_moved);
  const outcome balanced = played("multistream_prefetch", policy::balanced);
  EXPECT_GT(balanced.stats.handles_moved, 0u);
  EXPECT_EQ(3u, balanced.streams);
  EXPECT_LT(balanced.steady_driver_percent(), 4);
}

TEST(figures, captured_batch_sizes_take_no_more_in_one_order_than_in_the_other) {
  const std::uint64_t ascending = played("graphs_ascending", policy::balanced).reserved_peak;
  const std::uint64_t descending = played("graphs_descending", policy::balanced).reserved_peak;
  const std::uint64_t requested = script_of("graphs_descending").requested_peak;
  EXPECT_EQ(script_of("graphs_ascending").requested_peak, requested);
  EXPECT_LE(static_cast<double>(std::max(ascending, descending)),
            1.03 * static_cast<double>(requested));
  EXPECT_LT(ascending, played("graphs_ascending", policy::torch_expandable).reserved_peak);
  EXPECT_LT(descending, played("graphs_descending", policy::torch_expandable).reserved_peak);
  // Under PyTorch's own allocator the order matters.
  EXPECT_GT(played("graphs_ascending", policy::torch_default).reserved_peak,
            played("graphs_descending", policy::torch_default).reserved_peak);
}

TEST(figures, stashed_tables_come_back_to_what_activations_leave) {
  EXPECT_LE(played("stash_pyramid", policy::balanced).ratio(), 1.03);
  for (const auto* const name : {"stash_pyramid", "stash_comb"}) {
    EXPECT_LT(played(name, policy::balanced).reserved_peak,
              played(name, policy::torch_default).reserved_peak);
    EXPECT_LT(played(name, policy::balanced).reserved_peak,
              played(name, policy::torch_expandable).reserved_peak);
  }
}

TEST(figures, the_drivers_pool_makes_two_calls_or_more_a_block) {
  const replay::outcome outcome = played("gpt2_two_steps", policy::driver_pool);
  EXPECT_GE(outcome.driver_calls,
            2 * outcome.allocations - 200);           // some live to the end
  EXPECT_EQ(0u, outcome.reserved_peak % (32 << 20));  // the unit in which it grows
}

TEST(figures, are_computed_from_the_counters) {
  const outcome some{.requested_peak = 200,
                     .reserved_peak = 300,
                     .steady_driver_time = std::chrono::nanoseconds{30},
                     .steady_time = std::chrono::nanoseconds{600},
                     .events = 50,
                     .play_time = std::chrono::milliseconds{200}};
  EXPECT_EQ(1.5, some.ratio());
  EXPECT_EQ(5.0, some.steady_driver_percent());
  EXPECT_EQ(250.0, some.events_per_second());
  EXPECT_TRUE(some.is_complete());
  EXPECT_FALSE(outcome{.ooms = 1}.is_complete());
  EXPECT_FALSE(outcome{.mismatches = 1}.is_complete());
  EXPECT_EQ(0.0, outcome{}.events_per_second());
  EXPECT_EQ(0.0, outcome{.reserved_peak = 300}.ratio());
}

// --- Figures of a program of twenty steps -------------------------------------------------------

using testing_support::mib;

/// Ten blocks of 1 to 10 MiB, a millisecond after the other, and their frees in the same order.
script ten_blocks() {
  recording blocks = recording_of({});
  blocks.streams = {0};
  for (std::uint64_t i = 0; i < 10; ++i)
    blocks.events.push_back(allocate(i * millisecond, 100 + i, (i + 1) * mib));
  for (std::uint64_t i = 0; i < 10; ++i)
    blocks.events.push_back(event_at((10 + i) * millisecond, trace_kind::deallocate, 100 + i));
  return make_script(blocks);
}

TEST(replay, counts_what_the_policy_asks_of_the_driver) {
  // Each request is one call, and those that bind the context around it.
  const outcome pooled = play(ten_blocks(), {.policy = policy::driver_pool}).value();
  EXPECT_EQ(10u, pooled.allocations);
  EXPECT_EQ(20u, pooled.events);
  EXPECT_EQ(55 * mib, pooled.requested_peak);
  EXPECT_EQ(64 * mib, pooled.reserved_peak);  // in units of 32 MiB
  EXPECT_EQ(0u, pooled.driver_calls % 20);
  EXPECT_GT(pooled.driver_calls, 0u);
  // Every one costs the same: four of the twenty steps are the warm-up.
  EXPECT_GT(pooled.driver_time.count(), 0);
  EXPECT_EQ(pooled.driver_time * 16, pooled.steady_driver_time * 20);
  EXPECT_EQ(std::chrono::milliseconds{15}, pooled.steady_time);
  EXPECT_EQ(0u, pooled.waits);
  EXPECT_EQ(memory_stats{}, pooled.stats);
  EXPECT_TRUE(pooled.samples.empty());
  EXPECT_GT(pooled.play_time.count(), 0);
  const outcome balanced = play(ten_blocks(), {}).value();
  EXPECT_EQ(policy::balanced, balanced.policy);
  EXPECT_EQ(10u, balanced.stats.allocations);
  EXPECT_EQ(10u, balanced.stats.frees);
  EXPECT_EQ(balanced.reserved_peak, balanced.stats.reserved.peak.count());
}

/// "3 ms: 10, 32": when, and the most that was requested and reserved from then on, in MiB.
std::vector<std::string> texts(const std::vector<sample>& samples) {
  std::vector<std::string> all;
  for (const sample& each : samples)
    all.push_back(std::to_string(each.time / millisecond) +
                  " ms: " + std::to_string(each.requested / mib) + ", " +
                  std::to_string(each.reserved / mib));
  return all;
}

TEST(replay, samples_are_the_most_of_each_stretch_and_cost_nothing) {
  using lines = std::vector<std::string>;
  for (const replay::policy policy : {policy::driver_pool, policy::balanced}) {
    const outcome plain = play(ten_blocks(), {.policy = policy}).value();
    const outcome sampled = play(ten_blocks(), {.policy = policy, .samples = 3}).value();
    const bool pooled = policy == policy::driver_pool;
    EXPECT_EQ((pooled ? lines{"0 ms: 10, 32", "4 ms: 55, 64", "11 ms: 54, 64", "18 ms: 19, 64"}
                      : lines{"0 ms: 10, 10", "4 ms: 55, 56", "11 ms: 54, 56", "18 ms: 19, 56"}),
              texts(sampled.samples));
    EXPECT_EQ(plain.reserved_peak, sampled.reserved_peak);
    EXPECT_EQ(plain.driver_calls, sampled.driver_calls);
    EXPECT_EQ(plain.driver_time, sampled.driver_time);
    EXPECT_EQ(plain.steady_driver_time, sampled.steady_driver_time);
  }
  EXPECT_EQ(20u, play(ten_blocks(), {.samples = 1000}).value().samples.size());
}

TEST(replay, a_sample_does_not_span_a_quiet_time) {
  recording quiet = recording_of({});
  quiet.streams = {0};
  const std::array<std::uint64_t, 6> times{0, 1, 2, 90, 91, 100};
  for (std::size_t i = 0; i < times.size(); ++i)
    quiet.events.push_back(allocate(times[i] * millisecond, i + 1, (i + 1) * mib));
  using lines = std::vector<std::string>;
  // The first ends with the warm-up, the second before the quiet time.
  EXPECT_EQ((lines{"0 ms: 1, 2", "1 ms: 6, 6", "90 ms: 21, 22"}),
            texts(play(make_script(quiet), {.samples = 2}).value().samples));
}

TEST(replay, tells_its_progress_at_each_stretch) {
  std::vector<std::size_t> seen;
  settings settings{.policy = policy::driver_pool};
  settings.progress = [&](std::size_t done) { seen.push_back(done); };
  ASSERT_TRUE(play(ten_blocks(), settings));
  EXPECT_EQ((std::vector<std::size_t>{4, 20}), seen);
  seen.clear();
  settings.samples = 3;
  ASSERT_TRUE(play(ten_blocks(), settings));
  EXPECT_EQ((std::vector<std::size_t>{4, 11, 18, 20}), seen);
  // And after so many steps that it takes a while. Blocks of no bytes take none.
  seen.clear();
  settings.samples = 0;
  recording many = recording_of({});
  many.streams = {0};
  for (std::uint64_t i = 0; i < 200'000; ++i) many.events.push_back(allocate(i, i + 1, 0));
  ASSERT_TRUE(play(make_script(many), settings));
  EXPECT_EQ((std::vector<std::size_t>{40'000, 105'536, 171'072, 200'000}), seen);
}

TEST(replay, leaves_out_what_there_is_no_memory_for) {
  const script steps = make_script(recording_of(
      {allocate(1, 100, 20 * mib), allocate(2, 200, 20 * mib),
       event_at(3, trace_kind::record_stream, 200), event_at(4, trace_kind::deallocate, 100),
       event_at(5, trace_kind::deallocate, 200), allocate(6, 300, 20 * mib), allocate(7, 400, 0)}));
  for (const replay::policy policy : all_policies) {
    const settings small{.policy = policy, .capacity = bytes{32 * mib}, .verify = true};
    const replay::outcome outcome = play(steps, small).value();
    EXPECT_EQ(1u, outcome.ooms) << name(policy);
    EXPECT_EQ(0u, outcome.mismatches) << name(policy);
    EXPECT_EQ(40 * mib, outcome.requested_peak);
    EXPECT_LE(outcome.reserved_peak, 32 * mib) << name(policy);
    EXPECT_GE(outcome.reserved_peak, 20 * mib) << name(policy);
  }
  EXPECT_EQ(errc::size_overflow, play(steps, {.capacity = bytes{UINT64_MAX}}).code());
}

/// Counts events by kind, and where blocks were.
struct counting_sink final : event_sink {
  void on_event(const memory_event& event) noexcept override {
    ++kinds[event.kind];
    if (event.kind == memory_event_kind::allocate) sizes.push_back(event.size);
    if (event.kind == memory_event_kind::pool_created) ++pools;
  }
  std::map<memory_event_kind, std::uint64_t> kinds;
  std::vector<std::uint64_t> sizes;
  int pools = 0;
};

TEST(replay, lets_an_observer_see_all_that_happens_and_frees_what_is_left) {
  trace_event pooled = allocate(4, 300, 300);
  pooled.pool = 2;
  trace_event pooled_again = allocate(5, 400, 400);
  pooled_again.pool = 2;
  trace_event pooled_elsewhere = allocate(6, 500, 500);
  pooled_elsewhere.pool = 1;
  const script steps = make_script(
      recording_of({allocate(1, 100, 100, 0), allocate(2, 200, 200, 1),
                    event_at(3, trace_kind::record_stream, 100, 1), pooled, pooled_again,
                    pooled_elsewhere, event_at(7, trace_kind::deallocate, 100, 1)}));
  counting_sink sink;
  ASSERT_TRUE(play(steps, {.observer = &sink}));
  EXPECT_EQ((std::vector<std::uint64_t>{100, 200, 300, 400, 500}), sink.sizes);
  EXPECT_EQ(5u, sink.kinds[memory_event_kind::deallocate]);
  EXPECT_EQ(1u, sink.kinds[memory_event_kind::record_stream]);
  EXPECT_EQ(2, sink.pools);
  counting_sink none;
  ASSERT_TRUE(play(steps, {.policy = policy::driver_pool, .observer = &none}));
  EXPECT_TRUE(none.kinds.empty());
}

TEST(replay, a_simulated_card_is_as_small_as_said_and_its_allocator_has_no_limit) {
  const script steps = make_script(recording_of({allocate(1, 100, 40 * mib)}));
  counting_sink sink;
  EXPECT_EQ(1u, play(steps, {.capacity = bytes{20 * mib}, .observer = &sink}).value().ooms);
  EXPECT_EQ(0u, sink.kinds[memory_event_kind::limit]);
}

/// Overwrites the first block as the second is allocated. Simulated memory lies at its addresses
/// in this process, too.
struct spoiling_sink final : event_sink {
  void on_event(const memory_event& event) noexcept override {
    if (event.kind != memory_event_kind::allocate) return;
    if (first != nullptr) *first = 0;
    first = reinterpret_cast<std::uint32_t*>(event.address);
  }
  std::uint32_t* first = nullptr;
};

TEST(replay, tells_of_blocks_that_something_else_wrote_to) {
  const auto mismatches = [](std::initializer_list<trace_event> events, bool spoils = true) {
    spoiling_sink sink;
    settings checked{.lag = std::chrono::nanoseconds{0}, .verify = true};
    if (spoils) checked.observer = &sink;
    return play(make_script(recording_of(events)), checked).value().mismatches;
  };
  const trace_event first = allocate(1000, 100, 20 * mib);
  const trace_event second = allocate(2000, 200, 40 * mib);
  const trace_event free_first = event_at(3000, trace_kind::deallocate, 100);
  const trace_event free_second = event_at(4000, trace_kind::deallocate, 200);
  EXPECT_EQ(0u, mismatches({first, second, free_first, free_second}, false));
  EXPECT_EQ(1u, mismatches({first, second, free_first, free_second}));
  EXPECT_EQ(1u, mismatches({first, second, free_second})) << "of what is left alive, too";
  // Where it was used on another stream it is looked at there, too.
  EXPECT_EQ(2u, mismatches({first, second, event_at(2500, trace_kind::record_stream, 100, 1),
                            free_first, free_second}));
}

/// One stream's memory goes to another that asks for it a microsecond later.
TEST(replay, work_takes_as_long_as_the_settings_say) {
  const script steps = make_script(recording_of({allocate(1000, 100, 20 * mib, 0),
                                                 event_at(2000, trace_kind::deallocate, 100, 0),
                                                 allocate(3000, 200, 20 * mib, 1)}));
  const auto waits = [&](std::chrono::nanoseconds lag) {
    return play(steps, {.lag = lag, .capacity = bytes{32 * mib}}).value().waits;
  };
  EXPECT_EQ(0u, waits(std::chrono::nanoseconds{0}));
  EXPECT_EQ(1u, waits(std::chrono::seconds{1}));
}

// --- What a replay promises ---------------------------------------------------------------------

TEST(replay, comes_out_the_same_every_time) {
  const outcome first = played("multistream_prefetch", policy::balanced);
  const outcome second = played("multistream_prefetch", policy::balanced);
  EXPECT_EQ(first.reserved_peak, second.reserved_peak);
  EXPECT_EQ(first.driver_calls, second.driver_calls);
  EXPECT_EQ(first.driver_time, second.driver_time);
  EXPECT_EQ(first.waits, second.waits);
}

TEST(replay, samples_change_nothing_and_show_the_peaks) {
  const outcome plain = played("gpt2_two_steps", policy::balanced);
  const auto sampled =
      play(script_of("gpt2_two_steps"), {.policy = policy::balanced, .samples = 100}).value();
  EXPECT_EQ(plain.reserved_peak, sampled.reserved_peak);
  EXPECT_EQ(plain.driver_calls, sampled.driver_calls);
  ASSERT_GE(sampled.samples.size(), 90u);
  ASSERT_LE(sampled.samples.size(), 202u);
  std::uint64_t requested = 0;
  std::uint64_t reserved = 0;
  std::uint64_t time = 0;
  for (const sample& each : sampled.samples) {
    requested = std::max(requested, each.requested);
    reserved = std::max(reserved, each.reserved);
    EXPECT_GE(each.time, time);
    time = each.time;
  }
  EXPECT_EQ(plain.requested_peak, requested);
  EXPECT_EQ(plain.reserved_peak, reserved);
}

TEST(replay, blocks_keep_what_was_written_to_them) {
  const auto outcome =
      play(script_of("multistream_prefetch"), {.policy = policy::balanced, .verify = true});
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(0u, outcome->mismatches);
  EXPECT_EQ(0u, outcome->ooms);
}

TEST(replay, what_does_not_fit_is_counted_and_left_out) {
  const settings small{.policy = policy::balanced, .capacity = bytes{std::uint64_t{8} << 30}};
  const replay::outcome outcome = play(script_of("gpt2_two_steps"), small).value();
  EXPECT_GT(outcome.ooms, 0u);
  EXPECT_FALSE(outcome.is_complete());
  EXPECT_LE(outcome.reserved_peak, std::uint64_t{8} << 30);
}

TEST(replay, tells_how_far_it_is) {
  std::vector<std::size_t> seen;
  settings settings;
  settings.progress = [&](std::size_t done) { seen.push_back(done); };
  const script& steps = script_of("gpt2_two_steps");
  ASSERT_TRUE(play(steps, settings));
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(steps.steps.size(), seen.back());
}

TEST(replay, an_empty_script_is_played) {
  for (const replay::policy policy : all_policies) {
    const auto outcome = play(script{}, {.policy = policy});
    ASSERT_TRUE(outcome) << outcome.error().message();
    EXPECT_EQ(0u, outcome->reserved_peak);
    EXPECT_EQ(0.0, outcome->ratio());
    EXPECT_EQ(0.0, outcome->steady_driver_percent());
  }
}

TEST(replay, recorded_streams_pools_and_blocks_of_no_bytes_are_played) {
  trace_event pooled = allocate(4, 300, 4 << 20, 1);
  pooled.pool = 3;
  const script steps = make_script(recording_of(
      {allocate(1, 100, 1 << 20, 0), event_at(2, trace_kind::record_stream, 100, 1),
       allocate(3, 200, 0, 0), pooled, event_at(5, trace_kind::deallocate, 100, 0),
       event_at(6, trace_kind::deallocate, 200, 0), event_at(7, trace_kind::deallocate, 300, 0)}));
  for (const replay::policy policy : all_policies) {
    const auto outcome = play(steps, {.policy = policy, .verify = true});
    ASSERT_TRUE(outcome) << outcome.error().message();
    EXPECT_TRUE(outcome->is_complete()) << name(policy);
    EXPECT_EQ(std::uint64_t{5} << 20, outcome->requested_peak);
  }
}

/// Pools one after the other, each with a block of 64 MiB that is freed before the pool is
/// released.
recording pools_in_turn(std::uint16_t count) {
  std::vector<trace_event> events;
  for (std::uint16_t pool = 1; pool <= count; ++pool) {
    const std::uint64_t time = std::uint64_t{pool} * 100'000'000;  // work is done long before
    events.push_back(allocate(time, pool, 64 * testing_support::mib));
    events.push_back(event_at(time + 1, trace_kind::deallocate, pool));
    events.push_back(event_at(time + 50'000'000, trace_kind::pool_released, 0));
    for (std::size_t i = events.size() - 3; i < events.size(); ++i) events[i].pool = pool;
  }
  recording all = recording_of({});
  all.events = std::move(events);
  all.pools.resize(std::size_t{count} + 1);
  return all;
}

/// PyTorch's expandable segments grow by 20 MiB at a time.
std::uint64_t reserved_for_64_mib(replay::policy policy) {
  return (policy == policy::torch_expandable ? 80 : 64) * testing_support::mib;
}

TEST(replay, memory_of_pools_that_were_released_serves_others) {
  const script steps = make_script(pools_in_turn(5));
  for (const replay::policy policy : all_policies) {
    const outcome found = play(steps, {.policy = policy}).value();
    EXPECT_EQ(64 * testing_support::mib, found.requested_peak) << name(policy);
    EXPECT_EQ(reserved_for_64_mib(policy), found.reserved_peak) << name(policy);
    EXPECT_EQ(5u, found.allocations);
  }
}

TEST(replay, waits_for_the_work_of_pools_whose_memory_went_back_at_their_release) {
  recording recorded = pools_in_turn(5);
  std::vector<trace_event> events;
  std::uint64_t time = 0;  // too little for a stream to come to an end
  for (trace_event each : recorded.events) {
    each.time = ++time;
    trace_event memory{.time = time,
                       .address = std::uint64_t{each.pool} << 32U,
                       .size = 64 * testing_support::mib,
                       .pool = each.pool,
                       .kind = trace_kind::reserve};
    if (each.kind == trace_kind::allocate) events.push_back(memory);
    events.push_back(each);
    memory.kind = trace_kind::release;
    if (each.kind == trace_kind::pool_released) events.push_back(memory);
  }
  recorded.events = events;
  const script steps = make_script(recorded);
  for (const replay::policy policy : all_policies)
    EXPECT_EQ(reserved_for_64_mib(policy), play(steps, {.policy = policy})->reserved_peak)
        << name(policy);
}

TEST(replay, blocks_outlive_the_release_of_their_pool) {
  recording recorded = pools_in_turn(2);
  std::swap(recorded.events[1].kind, recorded.events[2].kind);  // released, then freed
  std::swap(recorded.events[1].address, recorded.events[2].address);
  const outcome found = play(make_script(recorded), {.policy = policy::balanced}).value();
  EXPECT_TRUE(found.is_complete());
  EXPECT_EQ(64 * testing_support::mib, found.reserved_peak);
}

TEST(replay, without_the_device_it_says_so) {
  const auto outcome =
      play(script{}, {.target = {.simulated = false}, .driver = "/nonexistent/libcuda.so.1"});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(errc::driver_unavailable, outcome.error().code());
  const auto second = play(script{}, {.target = {.simulated = true, .device = 7}});
  ASSERT_FALSE(second);
  EXPECT_EQ(errc::no_device, second.error().code());
}

TEST(replay, one_device_alone_is_the_default) {
  const settings defaults;
  EXPECT_EQ(policy::balanced, defaults.policy);
  EXPECT_EQ(target{}, defaults.target);
  EXPECT_EQ(std::chrono::milliseconds{1}, defaults.lag);
  EXPECT_EQ(bytes{0}, defaults.capacity);
  EXPECT_EQ("", defaults.driver);
  EXPECT_EQ(0u, defaults.samples);
  EXPECT_FALSE(defaults.verify);
  EXPECT_EQ(nullptr, defaults.observer);
  EXPECT_FALSE(defaults.progress);
}

TEST(replay, an_outcome_and_a_sample_begin_as_nothing) {
  const outcome nothing;
  EXPECT_EQ(0u, nothing.streams);
  EXPECT_EQ(0u, nothing.allocations);
  EXPECT_EQ(0u, nothing.requested_peak);
  EXPECT_EQ(0u, nothing.reserved_peak);
  EXPECT_EQ(0u, nothing.driver_calls);
  EXPECT_EQ(0, nothing.driver_time.count());
  EXPECT_EQ(0, nothing.steady_driver_time.count());
  EXPECT_EQ(0, nothing.steady_time.count());
  EXPECT_EQ(0u, nothing.waits);
  EXPECT_EQ(0u, nothing.ooms);
  EXPECT_EQ(0u, nothing.mismatches);
  EXPECT_EQ(0u, nothing.events);
  EXPECT_EQ(0, nothing.play_time.count());
  EXPECT_EQ(memory_stats{}, nothing.stats);
  EXPECT_TRUE(nothing.samples.empty());
  const sample empty;
  EXPECT_EQ(0u, empty.time);
  EXPECT_EQ(0u, empty.requested);
  EXPECT_EQ(0u, empty.reserved);
}

// --- Names --------------------------------------------------------------------------------------

TEST(names, policies_are_read_from_a_list) {
  EXPECT_EQ((std::vector{policy::compact, policy::driver_pool}),
            parse_policies("compact,driver-pool,compact").value());
  const std::vector<policy> all(all_policies.begin(), all_policies.end());
  EXPECT_EQ(all, parse_policies("all").value());
  EXPECT_EQ(all, parse_policies("torch-default,torch-expandable,balanced,throughput,compact,"
                                "driver-pool")
                     .value());
  std::vector<policy> with_one_more = all;
  with_one_more.insert(with_one_more.begin(), policy::never_move);
  EXPECT_EQ(with_one_more, parse_policies("never-move,all").value());
  EXPECT_EQ("", name(static_cast<policy>(99)));
  EXPECT_EQ("never-move", name(policy::never_move));
}

TEST(names, a_wrong_policy_gets_a_suggestion) {
  const auto wrong = parse_policies("balanced,trougput");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(errc::bad_option, wrong.error().code());
  EXPECT_EQ("unknown policy \"trougput\"; did you mean \"throughput\"?", wrong.error().detail());
  for (const char* const list : {"", "balanced,", ",balanced", "balanced,,compact"})
    EXPECT_EQ("expected a policy between two commas", parse_policies(list).error().detail())
        << list;
  EXPECT_FALSE(parse_policies(std::string(100'000, 'x')));
  EXPECT_EQ("unknown policy \"al\"; did you mean \"all\"?", parse_policies("al").error().detail());
}

TEST(names, are_near_where_few_letters_differ) {
  EXPECT_EQ(0u, edit_distance("", ""));
  EXPECT_EQ(3u, edit_distance("", "abc"));
  EXPECT_EQ(3u, edit_distance("abc", ""));
  EXPECT_EQ(1u, edit_distance("abc", "abd"));
  EXPECT_EQ(1u, edit_distance("abc", "abcd"));
  EXPECT_EQ(1u, edit_distance("abcd", "acd"));
  EXPECT_EQ(2u, edit_distance("ab", "ba"));
  EXPECT_EQ(3u, edit_distance("kitten", "sitting"));
  EXPECT_EQ("b", nearest("c", {"aa", "b", "d"}));  // the first of equals
  EXPECT_EQ("abc", nearest("abc", {"bc", "abc", "ab"}));
  EXPECT_EQ("b", nearest("", {"aa", "b", "c"}));
  // Of a long word the first 64 letters count.
  EXPECT_EQ("b", nearest(std::string(63, 'a') + 'b', {"c", "b"}));
  EXPECT_EQ("c", nearest(std::string(64, 'a') + 'b', {"c", "b"}));
}

TEST(names, devices_are_read) {
  EXPECT_EQ((target{}), parse_target("sim").value());
  EXPECT_EQ((target{.simulated = false, .device = 0}), parse_target("cuda").value());
  EXPECT_EQ((target{.simulated = false, .device = 0}), parse_target("cuda:0").value());
  EXPECT_EQ((target{.simulated = false, .device = 12}), parse_target("cuda:12").value());
  EXPECT_EQ("cuda:12", to_string(target{.simulated = false, .device = 12}));
  EXPECT_EQ("sim", to_string(target{}));
  EXPECT_EQ("unknown device \"gpu\"; expected sim, cuda or cuda:N",
            parse_target("gpu").error().detail());
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", "sim:0"})
    EXPECT_FALSE(parse_target(wrong)) << wrong;
}

/// Larger than any address space: there is no memory for it, as for what is larger than the device.
TEST(replays, a_request_of_any_size_is_one_that_is_not_met) {
  const script script =
      make_script(recording_of({allocate(1, 1, std::uint64_t{1} << 48), allocate(2, 2, mib),
                                allocate(3, 3, std::uint64_t{1} << 62), allocate(4, 4, mib)}));
  for (const policy each : all_policies) {
    const auto played = play(script, {.policy = each});
    ASSERT_TRUE(played) << name(each) << ": " << played.error().message();
    EXPECT_EQ(2u, played->ooms) << name(each);
    EXPECT_EQ((shortfall{0, 1, std::uint64_t{1} << 48, 0}), played->first_oom) << name(each);
  }
}

}  // namespace
}  // namespace weir::replay

// Replays: the figures of recorded programs, and what a replay promises about itself.
#include "replay/replay.hpp"

#include <gtest/gtest.h>

#include "replay/traces.hpp"

namespace weir::replay {
namespace {

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

// PyTorch's own counters said this of the same program (tests/data/traces/peaks.csv).
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
  EXPECT_NEAR(1.019, played("multistream_prefetch", policy::balanced).ratio(), 0.01);
  EXPECT_NEAR(1.035, played("multistream_prefetch", policy::throughput).ratio(), 0.01);
  EXPECT_NEAR(1.008, played("multistream_prefetch", policy::compact).ratio(), 0.01);
  const outcome still = played("multistream_prefetch", policy::never_move);
  EXPECT_LT(still.ratio(), 1.2);
  EXPECT_EQ(0u, still.stats.handles_moved);
  const outcome balanced = played("multistream_prefetch", policy::balanced);
  EXPECT_GT(balanced.stats.handles_moved, 0u);
  EXPECT_EQ(3u, balanced.streams);
  EXPECT_LT(balanced.steady_driver_percent(), 4);
}

TEST(figures, the_drivers_pool_makes_two_calls_or_more_a_block) {
  const replay::outcome outcome = played("gpt2_two_steps", policy::driver_pool);
  EXPECT_GE(outcome.driver_calls,
            2 * outcome.allocations - 200);           // some live to the end
  EXPECT_EQ(0u, outcome.reserved_peak % (32 << 20));  // the unit in which it grows
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
  ASSERT_LE(sampled.samples.size(), 102u);
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

TEST(replay, without_the_device_it_says_so) {
  const auto outcome =
      play(script{}, {.target = {.simulated = false}, .driver = "/nonexistent/libcuda.so.1"});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(errc::driver_unavailable, outcome.error().code);
  const auto second = play(script{}, {.target = {.simulated = true, .device = 7}});
  ASSERT_FALSE(second);
  EXPECT_EQ(errc::no_device, second.error().code);
}

// --- Names --------------------------------------------------------------------------------------

TEST(names, policies_are_read_from_a_list) {
  EXPECT_EQ((std::vector{policy::compact, policy::driver_pool}),
            parse_policies("compact,driver-pool,compact").value());
  EXPECT_EQ(6u, parse_policies("all").value().size());
  EXPECT_EQ(7u, parse_policies("never-move,all").value().size());
}

TEST(names, a_wrong_policy_gets_a_suggestion) {
  const auto wrong = parse_policies("balanced,trougput");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(errc::bad_option, wrong.error().code);
  EXPECT_NE(std::string::npos, wrong.error().detail.find("did you mean \"throughput\"?"));
  EXPECT_FALSE(parse_policies(""));
  EXPECT_FALSE(parse_policies("balanced,"));
  EXPECT_FALSE(parse_policies(std::string(100'000, 'x')));
}

TEST(names, devices_are_read) {
  EXPECT_EQ((target{}), parse_target("sim").value());
  EXPECT_EQ((target{.simulated = false, .device = 0}), parse_target("cuda").value());
  EXPECT_EQ((target{.simulated = false, .device = 12}), parse_target("cuda:12").value());
  EXPECT_EQ("cuda:12", to_string(target{.simulated = false, .device = 12}));
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", "sim:0"})
    EXPECT_FALSE(parse_target(wrong)) << wrong;
}

}  // namespace
}  // namespace weir::replay

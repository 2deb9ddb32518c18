// SPDX-License-Identifier: Apache-2.0
// Fits: the least memory with which a policy plays a script to its end.
#include "replay/fit.hpp"

#include <gtest/gtest.h>

#include "replay/traces.hpp"
#include "support/sizes.hpp"
#include "weir/sim/machine.hpp"

namespace weir::replay { namespace {

using testing_support::mib;
/// What the context takes of a simulated card.
constexpr std::uint64_t context_size = 554'500'096;

/// Two blocks of 20 MiB, of which the first goes; then one of 30 MiB.
script three_blocks() {
  return make_script(recording_of({allocate(0, 1, 20 * mib), allocate(millisecond, 2, 20 * mib),
                                   event_at(10 * millisecond, trace_kind::deallocate, 1),
                                   allocate(20 * millisecond, 3, 30 * mib)}));
}

TEST(fits, are_the_least_memory_with_which_a_trace_runs) {
  // 50 MiB are in use at the end. The arena moves what the first block left behind; PyTorch's
  // segments of 20 MiB can only go back, and their successor is of 30.
  const fit balanced = find_fit(three_blocks(), {.policy = policy::balanced}).value();
  EXPECT_EQ(policy::balanced, balanced.policy);
  EXPECT_EQ(50 * mib, balanced.requested_peak);
  EXPECT_EQ(bytes{50 * mib}, balanced.capacity);
  EXPECT_EQ(1.0, balanced.ratio());
  EXPECT_EQ(2u, balanced.plays);  // with all there is, and with what was taken of it
  EXPECT_TRUE(balanced.cards.empty());
}

TEST(fits, are_found_between_what_is_in_use_and_what_is_taken) {
  // Segments hold what they hold: 20 MiB of requests of 1.5 MiB each in segments of 20 MiB.
  recording pieces = recording_of({});
  pieces.streams = {0};
  for (std::uint64_t i = 0; i < 14; ++i)
    pieces.events.push_back(allocate(i * millisecond, 100 + i, 3 * mib / 2));
  const script script = make_script(pieces);
  const fit torch = find_fit(script, {.policy = policy::torch_default}).value();
  EXPECT_EQ(21 * mib, torch.requested_peak);
  EXPECT_EQ(bytes{40 * mib}, torch.capacity);  // 13 in a segment, and one for the 14th
  EXPECT_EQ(40.0 / 21, torch.ratio());
  const auto ooms = [&](std::uint64_t capacity) {
    return play(script, {.policy = policy::torch_default, .capacity = bytes{capacity}})
        .value()
        .ooms;
  };
  EXPECT_EQ(0u, ooms(40 * mib));
  EXPECT_EQ(1u, ooms(38 * mib));
  EXPECT_EQ(bytes{22 * mib}, find_fit(script, {.policy = policy::balanced}).value().capacity);
}

TEST(fits, of_recorded_programs_run_where_they_say_and_not_a_step_below) {
  const script script = make_script(recorded("gpt2_two_steps"));
  for (const replay::policy policy :
       {policy::torch_default, policy::torch_expandable, policy::balanced}) {
    const fit found = find_fit(script, {.policy = policy}).value();
    const auto is_whole = [&](bytes capacity) {
      return play(script, {.policy = policy, .capacity = capacity}).value().is_complete();
    };
    EXPECT_EQ(0u, found.capacity.count() % fit_step.count());
    EXPECT_TRUE(is_whole(found.capacity)) << name(policy);
    EXPECT_FALSE(is_whole(found.capacity - fit_step)) << name(policy);
    EXPECT_LE(found.plays, 14u) << name(policy);
  }
}

TEST(fits, say_of_each_card_whether_the_trace_runs_on_it) {
  const std::vector<bytes> cards{bytes{context_size + 50 * mib}, bytes{context_size + 48 * mib},
                                 bytes{context_size}, bytes{1}, bytes{context_size + 400 * mib}};
  const fit found = find_fit(three_blocks(), {.policy = policy::balanced}, cards).value();
  const std::vector<card_fit> expected{
      {cards[0], true}, {cards[1], false}, {cards[2], false}, {cards[3], false}, {cards[4], true}};
  EXPECT_EQ(expected, found.cards);
  EXPECT_EQ(4u, found.plays);  // what is less than is in use is not tried
}

TEST(fits, are_not_above_the_most_memory_that_is_considered) {
  const fit exact =
      find_fit(three_blocks(), {.policy = policy::balanced, .capacity = bytes{50 * mib}}).value();
  EXPECT_EQ(bytes{50 * mib}, exact.capacity);
  EXPECT_EQ(1u, exact.plays);  // what is taken is all there is, and less cannot do
  // A most that is no multiple of the step is tried as it is.
  const bytes odd{51 * mib};
  const auto odd_fit = find_fit(make_script(recording_of({allocate(0, 1, 51 * mib - 512)})),
                                {.policy = policy::torch_default, .capacity = odd});
  EXPECT_EQ(errc::out_of_memory, odd_fit.code());  // a segment of 52 MiB
  const auto refused =
      find_fit(three_blocks(), {.policy = policy::balanced, .capacity = bytes{48 * mib}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(errc::out_of_memory, refused.code());
  EXPECT_EQ(bytes{50 * mib}, refused.error().requested());
  EXPECT_EQ("the trace does not run with 48 MiB", refused.error().detail());
}

TEST(fits, are_found_on_a_whole_card_less_its_context_unless_less_is_considered) {
  const sim::device_spec card;
  const auto refused =
      find_fit(make_script(recording_of({allocate(0, 1, card.capacity.count())})), {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(errc::out_of_memory, refused.code());
  EXPECT_EQ("the trace does not run with " + to_string(card.capacity - bytes{context_size}),
            refused.error().detail());
}

TEST(fits, of_nothing_are_refused) {
  const auto refused = find_fit(make_script(recording_of({})), {});
  EXPECT_EQ(errc::invalid_argument, refused.code());
  EXPECT_EQ("the trace contains no allocation", refused.error().detail());
  const auto real = find_fit(three_blocks(), {.target = {.simulated = false}});
  EXPECT_EQ(errc::invalid_argument, real.code());
  EXPECT_EQ(0.0, fit{}.ratio());
}

TEST(fits, replays_end_at_the_first_request_that_is_not_met) {
  // Ten blocks of 4 MiB that stay, where two fit.
  recording many = recording_of({});
  many.streams = {0};
  for (std::uint64_t i = 0; i < 10; ++i)
    many.events.push_back(allocate(i * millisecond, 100 + i, 4 * mib));
  const script script = make_script(many);
  settings settings{.capacity = bytes{8 * mib}};
  EXPECT_EQ(8u, play(script, settings).value().ooms);
  settings.stops_when_out = true;
  const outcome stopped = play(script, settings).value();
  EXPECT_EQ(1u, stopped.ooms);
  EXPECT_EQ(2u, stopped.stats.allocations);
  EXPECT_EQ(8 * mib, stopped.reserved_peak);
  EXPECT_EQ(10u, stopped.allocations) << "the script's";
  EXPECT_EQ(10u, stopped.events);
  EXPECT_EQ(40 * mib, stopped.requested_peak);
}

TEST(card_trials, end_at_the_first_request_that_is_not_met) {
  const script script = three_blocks();
  const auto on = [&](std::uint64_t left) {
    return try_card(script, {.policy = policy::balanced}, bytes{context_size + left}).value();
  };
  const card_trial enough = on(50 * mib);
  EXPECT_TRUE(enough.fits());
  EXPECT_EQ(policy::balanced, enough.policy);
  EXPECT_EQ(bytes{context_size + 50 * mib}, enough.card);
  EXPECT_EQ(bytes{50 * mib}, enough.left);
  EXPECT_FALSE(on(48 * mib).fits());
  EXPECT_EQ((shortfall{2, 20 * millisecond, 30 * mib, 20 * mib}), on(48 * mib).first_oom);
  EXPECT_EQ((shortfall{1, millisecond, 20 * mib, 20 * mib}), on(38 * mib).first_oom);
  EXPECT_EQ((shortfall{0, 0, 20 * mib, 0}), on(0).first_oom);
}

TEST(card_trials, of_a_card_that_the_context_fills_or_of_none) {
  const auto small = try_card(three_blocks(), {}, bytes{1});
  ASSERT_TRUE(small);
  EXPECT_EQ(bytes{}, small->left);
  EXPECT_EQ((shortfall{0, 0, 20 * mib, 0}), small->first_oom);
  EXPECT_EQ(errc::invalid_argument, try_card(three_blocks(), {}, bytes{}).code());
  EXPECT_EQ(errc::invalid_argument,
            try_card(three_blocks(), {.target = {.simulated = false}}, bytes{1 << 30}).code());
  EXPECT_TRUE(try_card(make_script(recording_of({})), {}, bytes{1})->fits());
}

/// In a replay blocks keep their memory: what does not fit there may well have fitted.
TEST(fits, are_not_told_of_programs_that_suspended_memory) {
  trace_event suspended = event_at(5 * millisecond, trace_kind::suspended, 0);
  suspended.pool = 1;
  suspended.size = 20 * mib;
  const script script = make_script(recording_of({allocate(0, 1, 20 * mib), suspended}));
  const auto fit = find_fit(script, {.policy = policy::balanced});
  ASSERT_FALSE(fit);
  EXPECT_EQ(errc::not_supported, fit.code());
  EXPECT_EQ(
      "the program suspended memory, which a replay does not do; --fit and --capacity are not "
      "supported for such a trace",
      fit.error().detail());
  EXPECT_EQ(errc::not_supported,
            try_card(script, {.policy = policy::balanced}, bytes{1 << 30}).code());
}

}  // namespace
}  // namespace weir::replay

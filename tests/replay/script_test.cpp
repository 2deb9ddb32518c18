// What of a recording is played, and when blocks are free.
#include "replay/script.hpp"

#include <gtest/gtest.h>

#include "replay/traces.hpp"

namespace weir::replay {
namespace {

TEST(script, blocks_are_freed_when_they_were_reusable_where_the_recording_knows) {
  const script played = make_script(recording_of({allocate(1, 100, 64, 0), allocate(2, 200, 32, 1),
                                                  event_at(3, trace_kind::record_stream, 100, 1),
                                                  event_at(4, trace_kind::deallocate, 100, 1),
                                                  event_at(9, trace_kind::reusable, 100)}));
  ASSERT_EQ(3u, played.steps.size());
  EXPECT_EQ(action::free, played.steps[2].action);
  EXPECT_EQ(9u, played.steps[2].time);
  EXPECT_EQ(0u, played.steps[2].stream);  // its own, not the one that freed it
  EXPECT_EQ(0u, played.steps[2].block);
  EXPECT_EQ(5u, played.events);
  EXPECT_EQ(96u, played.requested_peak);
  EXPECT_EQ(2u, played.allocations);
  EXPECT_EQ(2u, played.streams);
}

TEST(script, elsewhere_blocks_are_freed_where_the_program_did_and_streams_are_recorded) {
  const script played = make_script(
      recording_of({allocate(1, 100, 64, 0), event_at(3, trace_kind::record_stream, 100, 1),
                    event_at(4, trace_kind::deallocate, 100, 2)}));
  ASSERT_EQ(3u, played.steps.size());
  EXPECT_EQ(action::record_stream, played.steps[1].action);
  EXPECT_EQ(1u, played.steps[1].stream);
  EXPECT_EQ(action::free, played.steps[2].action);
  EXPECT_EQ(2u, played.steps[2].stream);
  EXPECT_EQ(64u, played.steps[2].size);
}

TEST(script, what_allocators_did_is_left_out) {
  const script played = make_script(recording_of(
      {event_at(1, trace_kind::reserve, 0), allocate(2, 100, 64), event_at(3, trace_kind::wait, 0),
       event_at(4, trace_kind::marker, 0), event_at(5, trace_kind::deallocate, 100),
       event_at(6, trace_kind::release, 0)}));
  EXPECT_EQ(2u, played.steps.size());
  EXPECT_EQ(2u, played.events);
}

TEST(script, an_address_that_comes_again_ends_the_block_that_had_it) {
  const script played = make_script(recording_of({allocate(1, 100, 64), allocate(2, 100, 32)}));
  ASSERT_EQ(3u, played.steps.size());
  EXPECT_EQ(action::free, played.steps[1].action);
  EXPECT_EQ(0u, played.steps[1].block);
  EXPECT_EQ(1u, played.steps[2].block);
  EXPECT_EQ(64u, played.requested_peak);
}

TEST(script, frees_of_unknown_blocks_are_left_out) {
  const script played = make_script(recording_of(
      {event_at(1, trace_kind::deallocate, 7), event_at(2, trace_kind::record_stream, 7)}));
  EXPECT_TRUE(played.steps.empty());
  EXPECT_EQ(0u, played.blocks);
}

TEST(script, the_first_fifth_of_the_events_is_warm_up) {
  recording ten = recording_of({});
  ten.streams = {0};
  for (std::uint64_t i = 0; i < 10; ++i) ten.events.push_back(allocate(100 * i, i + 1, 512));
  const script played = make_script(ten);
  EXPECT_EQ(2u, played.warm_up);
  EXPECT_EQ(std::chrono::nanoseconds{700}, played.steady_time);
}

TEST(script, nothing_makes_an_empty_script) {
  const script played = make_script(recording{});
  EXPECT_TRUE(played.steps.empty());
  EXPECT_EQ(0u, played.streams);
  EXPECT_EQ(0u, played.requested_peak);
}

}  // namespace
}  // namespace weir::replay

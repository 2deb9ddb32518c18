// SPDX-License-Identifier: Apache-2.0
// What of a recording is played, and when blocks are free.
#include "replay/script.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "replay/traces.hpp"

namespace weir::replay { namespace {

/// "9 free 0 of 64 on 0": time, action, block, size, stream; thread and pool if they are not 0.
std::vector<std::string> texts(const script& played) {
  std::vector<std::string> all;
  for (const step& each : played.steps) {
    const auto number = [](auto value) { return std::to_string(value); };
    std::string text = number(each.time);
    if (each.action == action::release_pool) {
      all.push_back(text + " release " + number(each.pool));
      continue;
    }
    text += each.action == action::allocate ? " allocate "
            : each.action == action::free   ? " free "
                                            : " record ";
    text += number(each.block) + " of " + number(each.size) + " on " + number(each.stream);
    if (each.thread != 0) text += " by " + number(each.thread);
    if (each.pool != 0) text += " from " + number(each.pool);
    all.push_back(text);
  }
  return all;
}
using lines = std::vector<std::string>;

TEST(script, blocks_are_freed_when_they_were_reusable_where_the_recording_knows) {
  const script played = make_script(recording_of({allocate(1, 100, 64, 0), allocate(2, 200, 32, 1),
                                                  event_at(3, trace_kind::record_stream, 100, 1),
                                                  event_at(4, trace_kind::deallocate, 100, 1),
                                                  event_at(9, trace_kind::reusable, 100, 1)}));
  // On the block's own stream, not on the one that freed it.
  EXPECT_EQ((lines{"1 allocate 0 of 64 on 0", "2 allocate 1 of 32 on 1", "9 free 0 of 64 on 0"}),
            texts(played));
  EXPECT_EQ(5u, played.events);
  EXPECT_EQ(96u, played.requested_peak);
  EXPECT_EQ(2u, played.allocations);
  EXPECT_EQ(2u, played.blocks);
  EXPECT_EQ(2u, played.streams);
  EXPECT_EQ(1u, played.threads);
  EXPECT_EQ(1u, played.pools);
}

TEST(script, streams_without_a_step_are_streams_of_the_program) {
  const script played = make_script(recording_of(
      {allocate(1, 100, 64, 0), event_at(2, trace_kind::record_stream, 100, 1),
       event_at(3, trace_kind::deallocate, 100, 2), event_at(4, trace_kind::reusable, 100, 3)}));
  EXPECT_EQ((lines{"1 allocate 0 of 64 on 0", "4 free 0 of 64 on 0"}), texts(played));
  EXPECT_EQ(1u, played.streams);
  EXPECT_EQ(3u, played.recorded_streams) << "a block becomes free on none";
}

TEST(script, elsewhere_blocks_are_freed_where_the_program_did_and_streams_are_recorded) {
  const script played = make_script(
      recording_of({allocate(1, 100, 64, 0), event_at(3, trace_kind::record_stream, 100, 1),
                    event_at(4, trace_kind::deallocate, 100, 2), allocate(5, 100, 32, 1)}));
  EXPECT_EQ((lines{"1 allocate 0 of 64 on 0", "3 record 0 of 64 on 1", "4 free 0 of 64 on 2",
                   "5 allocate 1 of 32 on 1"}),
            texts(played));
  EXPECT_EQ(64u, played.requested_peak);
}

TEST(script, a_recording_may_say_of_some_blocks_only_when_they_were_reusable) {
  const script played = make_script(recording_of(
      {allocate(1, 100, 64, 0), event_at(2, trace_kind::record_stream, 100, 1),
       event_at(3, trace_kind::deallocate, 100, 1), allocate(4, 200, 64, 0),
       event_at(5, trace_kind::record_stream, 200, 1), event_at(6, trace_kind::deallocate, 200, 1),
       event_at(7, trace_kind::reusable, 200, 1), allocate(8, 200, 16, 0),
       event_at(9, trace_kind::deallocate, 200, 1)}));
  EXPECT_EQ((lines{"1 allocate 0 of 64 on 0", "2 record 0 of 64 on 1", "3 free 0 of 64 on 1",
                   "4 allocate 1 of 64 on 0", "7 free 1 of 64 on 0", "8 allocate 2 of 16 on 0",
                   "9 free 2 of 16 on 1"}),
            texts(played));
  EXPECT_EQ(64u, played.requested_peak);
}

TEST(script, pools_are_released_where_they_were_if_a_block_came_from_them) {
  trace_event request = allocate(2, 100, 64);
  request.pool = 1;
  const auto pool_event = [](std::uint64_t time, std::uint16_t pool) {
    trace_event event = event_at(time, trace_kind::pool_released, 0);
    event.pool = pool;
    return event;
  };
  const script played =
      make_script(recording_of({pool_event(1, 1), request, event_at(3, trace_kind::deallocate, 100),
                                pool_event(4, 1), pool_event(5, 7), pool_event(6, 0)}));
  EXPECT_EQ((lines{"2 allocate 0 of 64 on 0 from 1", "3 free 0 of 64 on 0", "4 release 1"}),
            texts(played));
  EXPECT_EQ(2u, played.events);
}

/// It has gone where all that the pool had reserved is released before the next request.
TEST(script, the_memory_of_a_released_pool_may_go_at_once) {
  const auto pool_event = [](std::uint64_t time, trace_kind kind, std::uint16_t pool,
                             std::uint64_t size = 0) {
    trace_event event = event_at(time, kind, 0);
    event.pool = pool;
    event.size = size;
    return event;
  };
  const auto request = [](std::uint64_t time, std::uint64_t address, std::uint16_t pool) {
    trace_event event = allocate(time, address, 64);
    event.pool = pool;
    return event;
  };
  using enum trace_kind;
  const script played = make_script(recording_of(
      {pool_event(0, reserve, 1, 300), request(1, 1, 1), pool_event(2, reserve, 2, 100),
       request(3, 2, 2), pool_event(4, pool_released, 1), pool_event(5, pool_released, 2),
       pool_event(6, trace_kind::release, 1, 100), pool_event(7, pool_released, 1),
       pool_event(8, trace_kind::release, 1, 200), pool_event(9, pool_released, 1),
       request(10, 3, 0), pool_event(11, trace_kind::release, 2, 100),
       pool_event(12, pool_released, 2)}));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gone;
  for (const step& each : played.steps)
    if (each.action == action::release_pool) gone.emplace_back(each.time, each.size);
  EXPECT_EQ((std::vector<std::pair<std::uint64_t, std::uint64_t>>{
                {4, 1}, {5, 0}, {7, 1}, {9, 1}, {12, 1}}),
            gone);
}

/// Half a million releases of a pool that never goes took minutes when each looked for the next
/// request.
TEST(script, releases_of_pools_cost_no_more_the_more_there_are) {
  recording many = recording_of({});
  many.streams = {0};
  many.pools = {"", "p"};
  trace_event event = event_at(0, trace_kind::reserve, 0);
  event.pool = 1;
  event.size = 512;
  many.events.push_back(event);
  event = allocate(0, 1, 64);
  event.pool = 1;
  many.events.push_back(event);
  event = event_at(1, trace_kind::pool_released, 0);
  event.pool = 1;
  many.events.resize(500'000, event);
  EXPECT_EQ(499'999u, make_script(many).steps.size());
}

TEST(script, suspensions_are_counted_and_not_played) {
  const auto change = [](std::uint64_t time, trace_kind kind, std::uint64_t size) {
    trace_event event = event_at(time, kind, 0);
    event.size = size;
    return event;
  };
  const script played = make_script(
      recording_of({allocate(1, 100, 64), change(2, trace_kind::suspended, 64),
                    change(3, trace_kind::resumed, 64), change(4, trace_kind::suspended, 64),
                    change(5, trace_kind::suspended, 0)}));
  EXPECT_EQ(2u, played.suspensions);
  EXPECT_EQ((lines{"1 allocate 0 of 64 on 0"}), texts(played));
}

TEST(script, markers_stand_between_steps_whatever_their_times) {
  const script played = make_script(
      recording_of({event_at(1, trace_kind::marker, 0), allocate(1, 100, 64),
                    event_at(1, trace_kind::marker, 0), event_at(1, trace_kind::marker, 0),
                    event_at(1, trace_kind::deallocate, 100), event_at(1, trace_kind::marker, 0)}));
  EXPECT_EQ((std::vector<std::size_t>{0, 1, 1, 2}), played.markers);
}

TEST(script, streams_are_numbered_as_they_come_and_threads_and_pools_are_the_recordings) {
  trace_event first = allocate(1, 100, 64, 7);
  first.thread = 3;
  trace_event second = allocate(2, 200, 32, 4);
  second.pool = 5;
  trace_event freed = event_at(3, trace_kind::deallocate, 200, 7);
  freed.thread = 1;
  const script played = make_script(recording_of({first, second, freed}));
  EXPECT_EQ((lines{"1 allocate 0 of 64 on 0 by 3", "2 allocate 1 of 32 on 1 from 5",
                   "3 free 1 of 32 on 0 by 1"}),
            texts(played));
  EXPECT_EQ(2u, played.streams);
  EXPECT_EQ(4u, played.threads);
  EXPECT_EQ(6u, played.pools);
}

TEST(script, what_allocators_did_is_left_out) {
  const script played = make_script(recording_of(
      {event_at(1, trace_kind::reserve, 0), allocate(2, 100, 64), event_at(3, trace_kind::wait, 0),
       event_at(4, trace_kind::marker, 0), event_at(5, trace_kind::deallocate, 100),
       event_at(6, trace_kind::release, 0)}));
  EXPECT_EQ((lines{"2 allocate 0 of 64 on 0", "5 free 0 of 64 on 0"}), texts(played));
  EXPECT_EQ(2u, played.events);
}

TEST(script, an_address_that_comes_again_ends_the_block_that_had_it) {
  const script played =
      make_script(recording_of({allocate(1, 100, 64, 1), allocate(2, 100, 32, 2)}));
  EXPECT_EQ((lines{"1 allocate 0 of 64 on 0", "2 free 0 of 64 on 0", "2 allocate 1 of 32 on 1"}),
            texts(played));
  EXPECT_EQ(64u, played.requested_peak);
}

TEST(script, frees_of_unknown_blocks_are_left_out) {
  const script played = make_script(recording_of(
      {event_at(1, trace_kind::deallocate, 7), event_at(2, trace_kind::record_stream, 7)}));
  EXPECT_TRUE(played.steps.empty());
  EXPECT_EQ(0u, played.blocks);
  EXPECT_EQ(0u, played.threads);
  EXPECT_EQ(0u, played.pools);
  const script reusable = make_script(
      recording_of({event_at(1, trace_kind::reusable, 7), allocate(2, 7, 64),
                    event_at(3, trace_kind::deallocate, 7), event_at(4, trace_kind::reusable, 7),
                    event_at(5, trace_kind::reusable, 7)}));
  EXPECT_EQ((lines{"2 allocate 0 of 64 on 0", "4 free 0 of 64 on 0"}), texts(reusable));
}

TEST(script, the_first_fifth_of_the_events_is_warm_up) {
  recording ten = recording_of({});
  ten.streams = {0};
  for (std::uint64_t i = 0; i < 10; ++i) ten.events.push_back(allocate(100 * i, i + 1, 512));
  const script played = make_script(ten);
  EXPECT_EQ(2u, played.warm_up);
  EXPECT_EQ(std::chrono::nanoseconds{700}, played.steady_time);
  // Of events, though not each is a step.
  const script few = make_script(recording_of(
      {event_at(1, trace_kind::deallocate, 9), event_at(2, trace_kind::marker, 0),
       allocate(3, 1, 512), allocate(5, 2, 512), allocate(8, 3, 512), allocate(13, 4, 512)}));
  EXPECT_EQ(5u, few.events);
  EXPECT_EQ(0u, few.warm_up);
  EXPECT_EQ(std::chrono::nanoseconds{10}, few.steady_time);
}

TEST(script, a_step_begins_as_nothing_on_the_first_stream_and_thread) {
  const step empty;
  EXPECT_EQ(0u, empty.time);
  EXPECT_EQ(0u, empty.size);
  EXPECT_EQ(0u, empty.block);
  EXPECT_EQ(0u, empty.stream);
  EXPECT_EQ(0u, empty.thread);
  EXPECT_EQ(0u, empty.pool);
  EXPECT_EQ(action::allocate, empty.action);
}

TEST(script, nothing_makes_an_empty_script) {
  for (const script& played : {make_script(recording{}), script{}}) {
    EXPECT_TRUE(played.steps.empty());
    EXPECT_EQ(0u, played.blocks);
    EXPECT_EQ(0u, played.streams);
    EXPECT_EQ(0u, played.threads);
    EXPECT_EQ(0u, played.pools);
    EXPECT_EQ(0u, played.allocations);
    EXPECT_EQ(0u, played.events);
    EXPECT_EQ(0u, played.requested_peak);
    EXPECT_EQ(0u, played.warm_up);
    EXPECT_EQ(std::chrono::nanoseconds{0}, played.steady_time);
  }
}

}  // namespace
}  // namespace weir::replay

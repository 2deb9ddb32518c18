// SPDX-License-Identifier: Apache-2.0
// Requests that failed, explained: every figure, and each verdict to the word.
#include "report/oom_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "samples.hpp"
#include "support/sizes.hpp"

namespace weir::report_test { namespace {

using namespace weir::report;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;

using testing_support::kib;
using testing_support::mib;

class oom_report_test : public testing::Test {
 protected:
  trace_event& add(trace_kind kind, std::uint64_t size, std::uint64_t address = 0) {
    trace_event& event = writer.add(kind);
    event.address = address;
    event.size = size;
    return event;
  }
  std::vector<report::oom_report> explain(std::size_t most = 16) {
    return explain_ooms(writer.out, make_history(writer.out), most);
  }
  report::oom_report explain_one() {
    const auto all = explain();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? report::oom_report{} : all.front();
  }

  recording_writer writer;
};

TEST_F(oom_report_test, every_figure_is_of_the_moment_of_the_failure) {
  writer.out.device_capacity = bytes{100 * mib};
  writer.out.tags = {"", "a", "b"};
  add(trace_kind::limit, 90 * mib);
  add(trace_kind::reserve, 20 * mib, 100 * mib);
  writer.allocate(100 * mib, 1000, 0, 1);
  writer.allocate(101 * mib, 3 * mib - 100, 1, 2);
  writer.allocate(110 * mib, mib, 0, 2);
  writer.allocate(112 * mib, 7 * mib, 0, 0);
  writer.deallocate(112 * mib);
  trace_event& failed = add(trace_kind::out_of_memory, 15 * mib);
  failed.stream = 1;
  add(trace_kind::reserve, 50 * mib, 300 * mib);  // what came later is no matter
  writer.allocate(300 * mib, 40 * mib);
  const report::oom_report found = explain_one();
  EXPECT_EQ(found.event, 7U);
  EXPECT_EQ(found.requested, 15 * mib);
  EXPECT_EQ(found.stream, 1U);
  EXPECT_EQ(found.live, 1000 + 4 * mib - 100);
  EXPECT_EQ(found.rounded, 4 * mib + 1024);
  EXPECT_EQ(found.reserved, 20 * mib);
  EXPECT_EQ(found.limit, 90 * mib);
  EXPECT_EQ(found.free.bytes, 16 * mib - 1024);
  EXPECT_EQ(found.free.pieces, 3U);
  EXPECT_EQ(found.free.longest, 9 * mib);
  EXPECT_THAT(found.tags, ElementsAre(Pair(2, 4 * mib - 100), Pair(1, 1000)));
  EXPECT_EQ(found.verdict,
            "16 MiB are reserved and free, but in pieces of at most 9 MiB; the request needs 15 "
            "MiB in one piece. The pages below show which blocks separate the pieces.");
}

TEST_F(oom_report_test, five_tags_are_named_those_that_hold_most) {
  for (std::uint16_t tag = 1; tag <= 7; ++tag)
    writer.allocate(tag * mib, tag == 3 ? 900 : 100U * tag, 0, tag);
  add(trace_kind::out_of_memory, mib);
  EXPECT_THAT(explain_one().tags,
              ElementsAre(Pair(3, 900), Pair(7, 700), Pair(6, 600), Pair(5, 500), Pair(4, 400)));
}

TEST_F(oom_report_test, tags_that_hold_as_much_keep_their_order) {
  for (std::uint16_t tag = 1; tag <= 4; ++tag)
    writer.allocate(tag * mib, tag == 3 ? 900 : 100, 0, tag);
  add(trace_kind::out_of_memory, mib);
  EXPECT_THAT(explain_one().tags,
              ElementsAre(Pair(3, 900), Pair(1, 100), Pair(2, 100), Pair(4, 100)));
}

TEST_F(oom_report_test, the_first_ones_are_explained) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    writer.allocate((1 + i) * mib, 512);
    add(trace_kind::out_of_memory, (10 + i) * kib);
  }
  const auto some = explain(3);
  ASSERT_EQ(some.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(some[i].event, 2 * i + 1);
    EXPECT_EQ(some[i].requested, (10 + i) * kib);
    EXPECT_EQ(some[i].live, 512 * (i + 1));
  }
  EXPECT_EQ(explain(4).size(), 4U);
  EXPECT_EQ(explain(5).size(), 4U);
}

// --- The limit -----------------------------------------------------------------------------------

TEST_F(oom_report_test, the_limit_is_the_last_one_of_all_memory_and_no_tags) {
  writer.out.tags = {"", "a"};
  writer.allocate(mib, 20 * mib, 0, 1);
  add(trace_kind::limit, 10 * mib).tag = 1;  // of the tag alone
  add(trace_kind::out_of_memory, 5 * mib);
  add(trace_kind::limit, 50 * mib);
  add(trace_kind::limit, 40 * mib);
  add(trace_kind::limit, 22 * mib).tag = 1;
  add(trace_kind::out_of_memory, 20 * mib);      // as much as it allows
  add(trace_kind::out_of_memory, 20 * mib + 1);  // and more
  add(trace_kind::out_of_memory, 2 * mib).tag = 1;
  trace_event& of_a_pool = add(trace_kind::out_of_memory, 3 * mib);
  of_a_pool.tag = 1;
  of_a_pool.pool = 2;  // there are more pools than tags
  const auto all = explain();
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].limit, 0U);
  EXPECT_THAT(all[0].verdict, StartsWith("20 MiB are live. The device's free memory is unknown"));
  for (const std::size_t i : {1U, 2U, 3U, 4U}) EXPECT_EQ(all[i].limit, 40 * mib);
  EXPECT_THAT(all[1].verdict, StartsWith("20 MiB are live. The device's free memory is unknown"));
  EXPECT_EQ(all[2].verdict,
            "The allocator's limit of 40 MiB is in the way: 20 MiB are live. Raise it by 1 B, or "
            "free 1 B.");
  EXPECT_THAT(all[3].verdict, StartsWith("20 MiB are live. The device's free memory is unknown"));
  EXPECT_EQ(all[4].verdict,
            "The limit of tag \"a\", 22 MiB, is in the way: 20 MiB are live with it. Raise it by 1 "
            "MiB, or free 1 MiB of the tag.");
}

// --- Verdicts ------------------------------------------------------------------------------------

TEST_F(oom_report_test, a_program_may_need_more_than_the_device_has) {
  writer.out.device_capacity = bytes{50 * mib};
  writer.allocate(mib, 20 * mib - 100);  // 20 MiB with what it is rounded to
  add(trace_kind::out_of_memory, 30 * mib);
  add(trace_kind::out_of_memory, 30 * mib + 1);
  const auto all = explain();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_THAT(all[0].verdict, StartsWith("20 MiB are live."));
  EXPECT_EQ(all[1].verdict,
            "The device is full: of its 50 MiB this allocator has 20 MiB live. Free at least 1 "
            "B more.");
}

TEST_F(oom_report_test, what_is_free_must_be_enough_to_be_in_fragments) {
  writer.out.device_capacity = bytes{500 * mib};
  add(trace_kind::reserve, 40 * mib, 100 * mib);
  writer.allocate(110 * mib, 20 * mib);
  add(trace_kind::out_of_memory, 20 * mib);
  add(trace_kind::out_of_memory, 21 * mib);
  const auto all = explain();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_THAT(
      all[0].verdict,
      StartsWith(
          "20 MiB are reserved and free, but in pieces of at most 10 MiB; the request needs"));
  EXPECT_EQ(all[1].verdict,
            "Other users of the device hold at least 439 MiB of the device's 500 MiB: 20 MiB are "
            "live here, 40 MiB reserved.");
}

/// A graph keeps its memory: no other request can have it.
TEST_F(oom_report_test, what_other_pools_keep_is_not_free) {
  writer.out.pools = {"", "graph"};
  writer.out.device_capacity = bytes{1000 * mib};
  add(trace_kind::limit, 512 * mib);
  add(trace_kind::reserve, 400 * mib, 1000 * mib).pool = 1;
  add(trace_kind::reserve, 20 * mib, 2000 * mib);
  add(trace_kind::out_of_memory, 200 * mib);
  add(trace_kind::out_of_memory, 200 * mib).pool = 1;
  const auto all = explain();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].free.bytes, 20 * mib);
  EXPECT_EQ(all[0].free.pieces, 1U);
  EXPECT_EQ(all[0].free.longest, 20 * mib);
  EXPECT_EQ(all[0].verdict,
            "The allocator's limit of 512 MiB is in the way: 0 B are live, 420 MiB reserved. Raise "
            "it by 88 MiB.");
  EXPECT_EQ(all[1].free.longest, 400 * mib);
  EXPECT_EQ(all[1].verdict,
            "400 MiB are reserved and free, 400 MiB of it in one piece, but it is kept for other "
            "streams, or for work that has not completed. Raise the limit of 512 MiB by 108 MiB.");
}

TEST_F(oom_report_test, memory_that_is_moved_stays_its_pools) {
  add(trace_kind::reserve, 10 * mib, 100 * mib).pool = 1;
  trace_event& moved = add(trace_kind::move, 4 * mib, 200 * mib);
  moved.extra = 102 * mib;
  moved.pool = 1;
  add(trace_kind::out_of_memory, mib).pool = 1;
  add(trace_kind::out_of_memory, mib);
  const auto all = explain();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].free.bytes, 10 * mib);
  EXPECT_EQ(all[0].free.pieces, 3U);
  EXPECT_EQ(all[1].free.bytes, 0U);
}

TEST_F(oom_report_test, others_hold_nothing_where_the_request_is_larger_than_the_rest) {
  writer.out.device_capacity = bytes{100 * mib};
  add(trace_kind::reserve, 80 * mib, 100 * mib);
  writer.allocate(100 * mib, 70 * mib);
  add(trace_kind::out_of_memory, 30 * mib);
  EXPECT_THAT(explain_one().verdict, StartsWith("Other users of the device hold at least 0 B of"));
}

TEST_F(oom_report_test, what_a_recording_does_not_say_cannot_be_told) {
  add(trace_kind::reserve, 40 * mib, 100 * mib);
  writer.allocate(100 * mib, 30 * mib);
  add(trace_kind::out_of_memory, 20 * mib);
  const std::string unknown =
      "30 MiB are live. The device's free memory is unknown, so weir cannot say whether it was "
      "full or fragmented.";
  EXPECT_EQ(explain_one().verdict, unknown);
  writer.out.device_capacity = bytes{100 * mib};
  EXPECT_THAT(explain_one().verdict, StartsWith("Other users of the device hold at least 40"));
  // What a placement reserved is another allocator's.
  writer.out.real_addresses = false;
  placement placed;
  placed.places = {{100 * mib, 30 * mib}};
  placed.steps = {{0, memory_event_kind::reserve, 100 * mib, 60 * mib, 0}};
  const auto all = explain_ooms(writer.out, make_history(writer.out, &placed), 16);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].reserved, 0U);
  EXPECT_EQ(all[0].free.bytes, 0U);
  EXPECT_EQ(all[0].verdict, unknown);
}

// --- Free memory ---------------------------------------------------------------------------------

class free_memory_test : public oom_report_test {
 protected:
  /// Bytes, pieces and the longest, in MiB.
  std::vector<std::uint64_t> free_memory() {
    add(trace_kind::out_of_memory, mib);
    const holes found = explain_one().free;
    return {found.bytes / mib, found.pieces, found.longest / mib};
  }
  void reserve(std::uint64_t at, std::uint64_t size) {
    add(trace_kind::reserve, size * mib, at * mib);
  }
  void block(std::uint64_t at, std::uint64_t size) { writer.allocate(at * mib, size * mib); }
};

TEST_F(free_memory_test, is_counted_before_between_and_behind_blocks) {
  reserve(100, 30);
  block(104, 6);
  block(111, 9);
  EXPECT_THAT(free_memory(), ElementsAre(15, 3, 10));
}

TEST_F(free_memory_test, of_reservations_that_touch_is_one_piece) {
  reserve(100, 10);
  reserve(110, 10);
  reserve(130, 4);
  block(102, 3);
  EXPECT_THAT(free_memory(), ElementsAre(21, 3, 15));
}

TEST_F(free_memory_test, of_reservations_that_touch_is_one_piece_from_the_first) {
  reserve(100, 10);
  reserve(110, 10);
  block(200, 1);
  EXPECT_THAT(free_memory(), ElementsAre(20, 1, 20));
}

TEST_F(free_memory_test, is_none_where_blocks_reach_over_several_reservations) {
  reserve(100, 10);
  reserve(110, 10);
  reserve(120, 10);
  block(105, 20);
  EXPECT_THAT(free_memory(), ElementsAre(10, 2, 5));
}

TEST_F(free_memory_test, is_not_there_where_blocks_touch_or_fill_all) {
  reserve(100, 10);
  reserve(200, 6);
  block(100, 4);
  block(104, 6);
  block(199, 4);  // begins before
  block(202, 9);  // overlaps, and ends behind
  EXPECT_THAT(free_memory(), ElementsAre(0, 0, 0));
}

// Where a policy placed the blocks the addresses of the recording mean nothing.
TEST_F(free_memory_test, is_not_less_for_blocks_that_have_no_place) {
  block(110, 2);
  block(106, 3);
  block(108, 4);
  add(trace_kind::out_of_memory, mib);
  placement placed;
  placed.steps = {
      {.before = 0, .kind = memory_event_kind::reserve, .address = 100 * mib, .size = 20 * mib}};
  placed.places = {{.address = 101 * mib, .rounded = 2 * mib}, {}};  // and the third is not named
  const auto found = explain_ooms(writer.out, make_history(writer.out, &placed), 1);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].free.bytes, 18 * mib);
  EXPECT_EQ(found[0].free.pieces, 2U);
  EXPECT_EQ(found[0].free.longest, 17 * mib);
}

TEST_F(free_memory_test, is_that_of_the_moment) {
  reserve(100, 10);
  block(100, 10);
  writer.deallocate(100 * mib);
  reserve(200, 10);
  add(trace_kind::release, 10 * mib, 200 * mib);
  EXPECT_THAT(free_memory(), ElementsAre(10, 1, 10));
}

}  // namespace
}  // namespace weir::report_test

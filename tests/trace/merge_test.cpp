// SPDX-License-Identifier: Apache-2.0
// Records of many threads become one order that can have happened, with all that they say.
#include "trace/merge.hpp"

#include <tuple>

#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using trace::merger;
using trace::record;

constexpr std::uint64_t slack = 100;
constexpr std::uint64_t end = std::uint64_t{1} << 40;

constexpr auto make = trace_kind::allocate;
constexpr auto release = trace_kind::deallocate;

/// Fields that no other record of another thread, time or address has.
record record_of(std::uint16_t thread, std::uint64_t time, trace_kind kind, std::uint64_t address) {
  return {.time = time,
          .address = address,
          .size = 1000 * address + time,
          .extra = 2000 * address + time,
          .stream = 30u + thread,
          .other = 4000 * address + time,
          .pool = 50u + thread,
          .tag = static_cast<std::uint16_t>(60 + thread),
          .thread = thread,
          .kind = kind};
}

auto row_of(const record& each) {
  return std::tuple{static_cast<int>(each.kind),
                    each.address,
                    each.time,
                    each.size,
                    each.extra,
                    each.stream,
                    each.other,
                    each.pool,
                    each.tag,
                    each.thread};
}

using row = decltype(row_of(record{}));

std::vector<row> rows(const std::vector<record>& records) {
  std::vector<row> all;
  for (const record& each : records) all.push_back(row_of(each));
  return all;
}

std::vector<record> merged(std::vector<record> records, std::uint64_t until = end) {
  merger target{slack};
  target.incoming() = std::move(records);
  std::vector<record> out;
  target.merge_until(until, out);
  return out;
}

void expect_order(std::vector<record> records, const std::vector<std::size_t>& order) {
  std::vector<record> expected;
  for (const std::size_t each : order) expected.push_back(records[each]);
  EXPECT_EQ(rows(merged(records)), rows(expected));
}

TEST(merge, goes_by_time) {
  expect_order({record_of(0, 10, make, 1), record_of(0, 30, make, 3), record_of(1, 20, make, 2),
                record_of(1, 40, release, 2)},
               {0, 2, 1, 3});
}

TEST(merge, leaves_records_of_one_time_in_the_order_in_which_they_came) {
  std::vector<record> records;
  std::vector<std::size_t> order;
  for (std::uint64_t i = 0; i < 100; ++i) {
    records.push_back(record_of(static_cast<std::uint16_t>(i % 3), 10, make, i + 1));
    order.push_back(i);
  }
  expect_order(records, order);
}

TEST(merge, puts_a_free_behind_its_allocation_whatever_the_clocks_say) {
  // The other thread's clock reads the same, and then less.
  expect_order({record_of(0, 50, release, 1), record_of(1, 50, make, 1)}, {1, 0});
  expect_order({record_of(0, 40, release, 1), record_of(1, 45, make, 9), record_of(1, 50, make, 1)},
               {1, 2, 0});
}

TEST(merge, puts_a_recorded_stream_behind_the_allocation) {
  expect_order({record_of(0, 50, trace_kind::record_stream, 1), record_of(1, 60, make, 1)}, {1, 0});
}

TEST(merge, puts_nothing_else_behind_an_allocation_of_its_address) {
  for (const trace_kind kind : {trace_kind::reserve, trace_kind::release, trace_kind::move,
                                trace_kind::marker, trace_kind::limit, trace_kind::out_of_memory})
    expect_order({record_of(0, 50, kind, 1), record_of(1, 60, make, 1)}, {0, 1});
}

TEST(merge, puts_an_allocation_behind_the_free_of_its_address) {
  expect_order({record_of(0, 1, make, 1), record_of(1, 20, make, 1), record_of(0, 20, release, 1),
                record_of(1, 25, release, 1)},
               {0, 2, 1, 3});
}

TEST(merge, follows_a_block_through_three_threads) {
  expect_order({record_of(2, 10, release, 1), record_of(1, 11, make, 1), record_of(1, 11, make, 5),
                record_of(0, 12, release, 1), record_of(3, 13, make, 1)},
               {1, 0, 2, 4, 3});
}

TEST(merge, moves_what_a_thread_did_before_with_what_is_missing) {
  // The other thread's earlier records go first; a third thread's stay behind.
  expect_order({record_of(0, 10, release, 1), record_of(1, 20, make, 7), record_of(2, 25, make, 8),
                record_of(1, 30, make, 1)},
               {1, 3, 0, 2});
}

TEST(merge, moves_what_that_needs_as_well) {
  // The free needs the second allocation of thread 1, whose first one needs another free.
  expect_order({record_of(3, 1, make, 2), record_of(0, 10, release, 1), record_of(1, 11, make, 2),
                record_of(1, 12, make, 1), record_of(2, 13, release, 2)},
               {0, 4, 2, 3, 1});
}

/// A free that needs an allocation of thread 1, which needs one of thread 2, and so on to `depth`.
std::vector<record> chain_of(std::uint16_t depth) {
  std::vector<record> records = {record_of(0, 1, release, 1)};
  for (std::uint16_t thread = 1; thread <= depth; ++thread) {
    if (thread < depth) records.push_back(record_of(thread, 2u * thread, release, thread + 1u));
    records.push_back(record_of(thread, 2u * thread + 1u, make, thread));
  }
  return records;
}

TEST(merge, follows_sixteen_threads_and_no_more) {
  // The thread that the others need is the last, and each one's records stay in their order.
  std::vector<std::size_t> order = {31};
  for (std::size_t thread = 15; thread >= 1; --thread) {
    order.push_back(2 * thread - 1);
    order.push_back(2 * thread);
  }
  order.push_back(0);
  expect_order(chain_of(16), order);
  // The free of thread 16 is given up as one of an unknown block; thread 17 is where it was.
  order[0] = 32;
  order.push_back(33);
  expect_order(chain_of(17), order);
}

TEST(merge, believes_clocks_that_are_further_apart_than_the_slack) {
  expect_order({record_of(0, 10, release, 1), record_of(1, 10 + slack, make, 1)}, {1, 0});
  expect_order({record_of(0, 10, release, 1), record_of(1, 11 + slack, make, 1)}, {1});
}

TEST(merge, believes_the_order_of_one_thread) {
  expect_order({record_of(0, 10, release, 1), record_of(0, 20, make, 1)}, {1});
  // What it freed is what another thread had allocated.
  expect_order({record_of(0, 10, release, 1), record_of(0, 12, make, 1), record_of(1, 15, make, 1)},
               {2, 0, 1});
}

TEST(merge, leaves_out_what_happens_to_blocks_from_before_the_recording) {
  expect_order({record_of(0, 1, release, 7), record_of(0, 2, make, 1)}, {1});
  expect_order({record_of(0, 1, trace_kind::record_stream, 3)}, {});
  // What concerns no block is none of those.
  expect_order({record_of(0, 1, trace_kind::reserve, 7), record_of(0, 2, trace_kind::wait, 8),
                record_of(0, 3, trace_kind::marker, 9), record_of(0, 4, trace_kind::release, 7)},
               {0, 1, 2, 3});
}

TEST(merge, moves_no_allocation_before_a_free_once_records_were_dropped) {
  // Thread 0 frees a block whose allocation was dropped; thread 1 gets the address next.
  const std::vector<record> records = {record_of(0, 10, release, 1), record_of(1, 20, make, 1)};
  merger target{slack};
  target.incoming() = records;
  target.expect_gaps();
  std::vector<record> out;
  target.merge_until(end, out);
  EXPECT_EQ(rows(out), rows({records[1]}));
}

TEST(merge, puts_an_allocation_behind_a_free_also_once_records_were_dropped) {
  const std::vector<record> records = {record_of(0, 5, make, 1), record_of(1, 10, make, 1),
                                       record_of(0, 20, release, 1)};
  merger target{slack};
  target.incoming() = records;
  target.expect_gaps();
  std::vector<record> out;
  target.merge_until(end, out);
  EXPECT_EQ(rows(out), rows({records[0], records[2], records[1]}));
}

TEST(merge, mends_a_free_that_was_dropped) {
  const record first = record_of(1, 1, make, 1);
  const record second = record_of(2, 500, make, 1);
  record missing = first;  // all that is known of the block
  missing.kind = release;
  missing.time = second.time;
  missing.thread = second.thread;
  missing.extra = 0;
  missing.other = 0;
  EXPECT_EQ(rows(merged({first, second})), rows({first, missing, second}));
  // The block that has its place now is the one that is freed next.
  const record third = record_of(3, 900, make, 1);
  record later = second;
  later.kind = release;
  later.time = third.time;
  later.thread = third.thread;
  later.extra = 0;
  later.other = 0;
  EXPECT_EQ(rows(merged({first, second, third})), rows({first, missing, second, later, third}));
}

TEST(merge, forgets_a_block_that_was_freed) {
  expect_order({record_of(0, 1, make, 1), record_of(0, 2, release, 1), record_of(0, 3, release, 1),
                record_of(0, 4, make, 1)},
               {0, 1, 3});
}

TEST(merge, holds_back_what_is_not_certain_yet) {
  merger target{slack};
  const record made = record_of(0, 1899, make, 1);
  const record freed = record_of(0, 1900, release, 1);
  const record made_again = record_of(1, 1950, make, 1);
  target.incoming() = {made, freed};
  std::vector<record> out;
  target.merge_until(slack, out);
  EXPECT_TRUE(out.empty());
  target.merge_until(slack - 1, out);
  EXPECT_TRUE(out.empty());
  target.merge_until(1900 + slack, out);  // all before 1900
  EXPECT_EQ(rows(out), rows({made}));
  target.incoming().push_back(made_again);
  target.merge_until(end, out);  // appends, and nothing twice
  EXPECT_EQ(rows(out), rows({made, freed, made_again}));
  EXPECT_TRUE(target.incoming().empty());
}

TEST(merge, finds_what_is_missing_in_what_is_held_back) {
  merger target{slack};
  const record freed = record_of(0, 10, release, 1);
  const record made = record_of(1, 60, make, 1);
  target.incoming() = {freed, made};
  std::vector<record> out;
  target.merge_until(11 + slack, out);  // all before 11
  EXPECT_EQ(rows(out), rows({made}));
  target.merge_until(end, out);
  EXPECT_EQ(rows(out), rows({made, freed}));
}

}  // namespace
}  // namespace weir::testing_support

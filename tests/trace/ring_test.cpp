// SPDX-License-Identifier: Apache-2.0
// A thread's ring: what it holds, when it is full, and what its reader gets.
#include "trace/ring.hpp"

#include <optional>

#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using trace::record;
using trace::ring;

void put(ring& target, std::uint64_t address, std::uint64_t time = 1) {
  target.begin();
  record& next = target.next();
  next.address = address;
  next.time = time;
  target.publish();
}

std::vector<std::uint64_t> addresses(const std::vector<record>& records) {
  std::vector<std::uint64_t> all;
  for (const record& each : records) all.push_back(each.address);
  return all;
}

TEST(ring, holds_its_capacity_rounded_up_to_a_power_of_two) {
  ring target{13, 0, 0};
  for (std::uint64_t i = 0; i < 16; ++i) {
    EXPECT_FALSE(target.is_full()) << i;
    put(target, i);
  }
  EXPECT_TRUE(target.is_full());
  std::vector<record> out;
  target.drain(1, out);
  EXPECT_FALSE(target.is_full());
  put(target, 16);
  EXPECT_TRUE(target.is_full());
}

TEST(ring, gives_records_in_their_order_around_its_end) {
  ring target{16, 7, 4321};
  EXPECT_EQ(target.number(), 7);
  EXPECT_EQ(target.thread(), 4321u);
  std::vector<record> out;
  for (std::uint64_t i = 0; i < 40; ++i) {
    put(target, i);
    if (i % 3 == 2) target.drain(i, out);  // all but the last
  }
  target.drain(*target.settled(), out);
  std::vector<std::uint64_t> expected(40);
  for (std::uint64_t i = 0; i < 40; ++i) expected[i] = i;
  EXPECT_EQ(addresses(out), expected);
  for (const record& each : out) EXPECT_EQ(each.thread, 7);
}

TEST(ring, is_settled_only_while_no_record_is_begun) {
  ring target{16, 0, 0};
  EXPECT_EQ(target.settled(), 0u);
  put(target, 1);
  EXPECT_EQ(target.settled(), 1u);
  target.begin();
  EXPECT_EQ(target.settled(), std::nullopt);
  target.cancel();
  EXPECT_EQ(target.settled(), 1u);
  put(target, 2);
  EXPECT_EQ(target.settled(), 2u);
}

TEST(ring, wakes_its_reader_each_time_that_another_half_is_full) {
  ring target{16, 0, 0};
  std::vector<std::uint64_t> woken;
  for (std::uint64_t i = 1; i <= 16; ++i) {
    put(target, i);
    if (target.is_half_way()) woken.push_back(i);
  }
  EXPECT_EQ(woken, (std::vector<std::uint64_t>{8, 16}));
}

TEST(ring, lets_no_time_of_its_thread_go_back) {
  ring target{16, 0, 0};
  std::vector<record> out;
  put(target, 1, 50);
  put(target, 2, 40);
  target.drain(2, out);
  put(target, 3, 30);
  put(target, 4, 60);
  target.drain(4, out);
  std::vector<std::uint64_t> times;
  for (const record& each : out) times.push_back(each.time);
  EXPECT_EQ(times, (std::vector<std::uint64_t>{50, 50, 50, 60}));
}

TEST(ring, is_done_when_its_thread_has_ended_and_all_was_drained) {
  ring target{16, 0, 0};
  put(target, 1);
  EXPECT_FALSE(target.is_done());
  target.end_thread();
  EXPECT_FALSE(target.is_done());
  std::vector<record> out;
  target.drain(1, out);
  EXPECT_TRUE(target.is_done());

  ring living{16, 0, 0};
  EXPECT_FALSE(living.is_done());
}

TEST(ring, counts_what_it_dropped) {
  ring target{16, 0, 0};
  EXPECT_EQ(target.dropped(), 0u);
  target.drop();
  target.drop();
  EXPECT_EQ(target.dropped(), 2u);
  EXPECT_EQ(target.settled(), 0u);
}

}  // namespace
}  // namespace weir::testing_support

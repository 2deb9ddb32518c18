// SPDX-License-Identifier: Apache-2.0
// RMM's logs: hexadecimal streams, midnight, failures.
#include "formats/rmm_log.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

const std::string header = "Thread,Time,Action,Pointer,Size,Stream\n";

TEST(rmm_log, reads_events) {
  const auto read = formats::read_rmm_log(header +
                                              "10,23:59:59.999000,allocate,0x7f00,256,0x1\n"
                                              "11,23:59:59.999500,allocate,0x7f80,512,0x55d0a0\n"
                                              "11,00:00:00.000500,free,0x7f00,256,55d0a0\n"
                                              "10,00:00:00.000600,allocate failure,(nil),99,0\n"
                                              "10,00:00:00.000700,free,0x1234,8,0\n",
                                          "x")
                        .value();
  using enum trace_kind;
  const std::vector<trace_event> expected = {
      {.time = 0, .address = 0x7f00, .size = 256, .stream = 0, .kind = allocate},
      {.time = 500'000, .address = 0x7f80, .size = 512, .stream = 1, .thread = 1, .kind = allocate},
      {.time = 1'500'000,
       .address = 0x7f00,
       .size = 256,
       .stream = 1,
       .thread = 1,
       .kind = deallocate},
      {.time = 1'600'000, .size = 99, .stream = 2, .kind = out_of_memory}};
  EXPECT_EQ(read.events, expected);
  EXPECT_EQ(read.streams, (std::vector<std::uint64_t>{1, 0x55d0a0, 0}));
  EXPECT_EQ(read.threads, (std::vector<std::uint64_t>{10, 11}));
  EXPECT_TRUE(read.real_addresses);
}

std::vector<std::uint64_t> logged_times(const std::string& lines) {
  std::vector<std::uint64_t> times;
  for (const trace_event& each : formats::read_rmm_log(header + lines, "x").value().events)
    times.push_back(each.time);
  return times;
}
/// A failure at that time of day.
std::string at(const std::string& time) { return "1," + time + ",allocate failure,(nil),1,0\n"; }

constexpr std::uint64_t second = 1'000'000'000;
constexpr std::uint64_t hour = 3600 * second;

TEST(rmm_log, lines_that_are_a_little_out_of_order_begin_no_day) {
  EXPECT_THAT(logged_times(at("10:00:01") + at("10:00:01.5") + at("10:00:01.4") + at("10:00:02") +
                           at("10:00:00") + at("10:00:03")),
              ElementsAre(0, second / 2, second / 2, second, second, 2 * second));
}

TEST(rmm_log, more_than_half_a_day_back_is_another_day) {
  EXPECT_THAT(logged_times(at("18:00:00") + at("06:00:00") + at("18:00:01")),
              ElementsAre(0, 0, second));
  EXPECT_THAT(logged_times(at("18:00:00") + at("05:59:59.999999999") + at("07:00:00")),
              ElementsAre(0, 12 * hour - 1, 13 * hour));
  // One by one.
  EXPECT_THAT(logged_times(at("23:00:00") + at("01:00:00") + at("12:00:00") + at("23:30:00") +
                           at("00:30:00")),
              ElementsAre(0, 2 * hour, 13 * hour, 24 * hour + hour / 2, 25 * hour + hour / 2));
}

TEST(rmm_log, times_have_any_fraction_of_a_second) {
  EXPECT_THAT(
      logged_times(at("00:00:00") + at("00:00:00.1") + at("00:00:00.123456") +
                   at("00:00:00.123456789") + at("00:00:01.000000000") + at("00:02:00") +
                   at("03:00:00")),
      ElementsAre(0, 100'000'000, 123'456'000, 123'456'789, second, 120 * second, 3 * hour));
}

TEST(rmm_log, mends_a_free_that_it_lacks) {
  const auto read = formats::read_rmm_log(header +
                                              "1,00:00:00,allocate,0x10,4,0x5\n"
                                              "2,00:00:01,allocate,0x10,8,0x6\n"
                                              "3,00:00:02,free,0x10,99,0x7\n",
                                          "x")
                        .value();
  using enum trace_kind;
  EXPECT_EQ(
      read.events,
      (std::vector<trace_event>{
          {.address = 0x10, .size = 4, .kind = allocate},
          {.time = second, .address = 0x10, .size = 4, .thread = 1, .kind = deallocate},
          {.time = second, .address = 0x10, .size = 8, .stream = 1, .thread = 1, .kind = allocate},
          {.time = 2 * second,
           .address = 0x10,
           .size = 8,  // the block's
           .stream = 2,
           .thread = 2,
           .kind = deallocate}}));
}

TEST(rmm_log, failures_have_no_address) {
  const auto read = formats::read_rmm_log(header + "1,00:00:00,allocate failure,0x10,4,0x5\n", "x");
  EXPECT_EQ(read.value().events,
            (std::vector<trace_event>{{.size = 4, .kind = trace_kind::out_of_memory}}));
}

TEST(rmm_log, is_known_by_its_columns) {
  EXPECT_TRUE(formats::is_rmm_log(header));
  EXPECT_FALSE(formats::is_rmm_log("op,id,bytes,stream,t_us\n"));
  // Which come again where logs were joined; lines may be empty and end as on Windows.
  EXPECT_THAT(
      logged_times("\n" + at("00:00:00") + header + "1,00:00:01,free,0x1,1,0\r\n" + at("00:00:02")),
      ElementsAre(0, 2 * second));
  EXPECT_TRUE(formats::read_rmm_log(header, "x").value().events.empty());
}

TEST(rmm_log, counts_more_threads_than_numbers_as_the_last) {
  std::string log = header;
  for (int i = 0; i <= 65'540; ++i)
    log += std::to_string(1000 + i) + ",00:00:00,allocate failure,(nil),1,0\n";
  const auto read = formats::read_rmm_log(log, "x").value();
  ASSERT_EQ(read.events.size(), 65'541u);
  EXPECT_EQ(read.events[65'534].thread, 65'534);
  for (std::size_t i = 65'535; i <= 65'540; ++i) EXPECT_EQ(read.events[i].thread, 65'535);
  ASSERT_EQ(read.threads.size(), 65'536u);
  EXPECT_EQ(read.threads.back(), 1000u + 65'535);
}

TEST(rmm_log, names_the_line_that_is_wrong) {
  const auto refused = [](std::string line, std::string why) {
    const auto read = formats::read_rmm_log(header + line, "t.log");
    ASSERT_FALSE(read) << line;
    EXPECT_EQ(read.code(), errc::invalid_argument);
    EXPECT_EQ(read.error().detail(), "t.log:2: " + why);
  };
  refused("1,2,3", "not Thread,Time,Action,Pointer,Size,Stream");
  for (const char* const time :
       {"24:00:00", "00:60:00", "00:00:61", "0:00:00", "00:00", "00-00:00", "00:00-00", "aa:00:00",
        "00:aa:00", "00:00:aa", "00:00:00.x", "00:00:00.1234567890", "+1:00:00"})
    refused("1," + std::string{time} + ",allocate,0x1,1,0", "not a time of day");
  refused("x,00:00:00,allocate,0x1,1,0", "not a number");
  refused("1,00:00:00,allocate,zz,1,0", "not a number");
  refused("1,00:00:00,allocate,0x1,0x1,0", "not a number");
  refused("1,00:00:00,allocate,0x1,1,0xg", "not a number");
  refused("1,00:00:00,take,0x1,1,0", "unknown action; expected allocate, allocate failure or free");
  EXPECT_EQ(logged_times(at("23:59:60")).size(), 1u) << "a second that is inserted";
  const auto huge = formats::read_rmm_log(
      header + "1,00:00:00,allocate,0x1,1,0\n1,00:00:00,allocate,0x2,18446744073709551615,0",
      "t.log");
  EXPECT_EQ(huge.error().detail(), "t.log:3: the live bytes exceed the address space");
  EXPECT_EQ(logged_times("1,00:00:00,allocate,0X1F,1,0x0\n").size(), 1u);
}

}  // namespace
}  // namespace weir::testing_support

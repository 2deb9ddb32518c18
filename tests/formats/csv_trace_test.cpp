// SPDX-License-Identifier: Apache-2.0
// CSV traces: what a line may say, and what is refused with its line.
#include "formats/csv_trace.hpp"

#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

TEST(csv_trace, reads_events) {
  const auto read = formats::read_csv_trace(
                        "# op,id,bytes,stream,t_us\n"
                        "a,1,100,7,3\n"
                        "a,2,200,9,4\r\n"
                        "r,1,,7,5\n"
                        "f,1,,9,4\n"    // times that go back stand still
                        "a,1,300,7,6",  // an id may come back
                        "x")
                        .value();
  using enum trace_kind;
  const std::vector<trace_event> expected = {
      {.time = 0, .address = 1, .size = 100, .stream = 0, .kind = allocate},
      {.time = 1000, .address = 2, .size = 200, .stream = 1, .kind = allocate},
      {.time = 2000, .address = 1, .size = 100, .stream = 0, .kind = deallocate},
      {.time = 2000, .address = 1, .size = 100, .stream = 1, .kind = reusable},
      {.time = 3000, .address = 1, .size = 300, .stream = 0, .kind = allocate}};
  EXPECT_EQ(read.events, expected);
  EXPECT_EQ(read.streams, (std::vector<std::uint64_t>{7, 9}));
  EXPECT_EQ(read.threads, std::vector<std::uint64_t>{0});
  EXPECT_FALSE(read.real_addresses);
}

TEST(csv_trace, begins_with_its_first_event_and_has_decimals_of_a_microsecond) {
  const auto read = formats::read_csv_trace(
                        "a,1,100,0,1700000000000000.25\n"
                        "s,1,,7,1700000000000001\n"
                        "r,1,,0,1700000000300000.5\n"
                        "a,2,1,0,1600000000000000\n",  // before the first: time stands still
                        "x")
                        .value();
  std::vector<std::uint64_t> times;
  for (const trace_event& each : read.events) times.push_back(each.time);
  EXPECT_EQ(times, (std::vector<std::uint64_t>{0, 750, 300'000'250, 300'000'250}));
  EXPECT_EQ(
      read.events[1],
      (trace_event{.time = 750, .address = 1, .stream = 1, .kind = trace_kind::record_stream}));
}

TEST(csv_trace, an_id_is_another_block_once_it_was_freed) {
  const auto read = formats::read_csv_trace("a,1,100,0,0\nr,1,,0,1\na,1,50,0,2\n", "x").value();
  ASSERT_EQ(read.events.size(), 3u);
  EXPECT_EQ(read.events[2].kind, trace_kind::allocate);
  EXPECT_EQ(read.events[2].size, 50u);
  // What comes behind it is about the new block.
  EXPECT_FALSE(formats::read_csv_trace("a,1,100,0,0\nr,1,,0,1\na,1,50,0,2\nf,1,,0,3\n", "x"));
}

TEST(csv_trace, is_known_by_its_first_line) {
  for (const char* const text :
       {"op,id,bytes,stream,t_us", "# a trace: op,id,bytes,stream,t_us\n", "a,1,2,3,4\nx",
        "r,1,,3,4", "f,1,,3,4", "s,1,,3,4", "op,id,bytes,stream,t_us,more"})
    EXPECT_TRUE(formats::is_csv_trace(text)) << text;
  for (const char* const text : {"", "# something else", "x\nop,id,bytes,stream,t_us", "b,1,2,3,4",
                                 "a,1,2,3", "a,1,2,3,4,5", "a"})
    EXPECT_FALSE(formats::is_csv_trace(text)) << text;
}

TEST(csv_trace, skips_its_columns_names_and_remarks) {
  const auto read = formats::read_csv_trace(
      "op,id,bytes,stream,t_us\n#\na,1,1,0,0\n# op\na,2,1,0,18446744073709551\n", "x");
  ASSERT_TRUE(read);
  ASSERT_EQ(read->events.size(), 2u);
  EXPECT_EQ(read->events[1].time, 18'446'744'073'709'551'000u);
  EXPECT_TRUE(formats::read_csv_trace("", "x").value().events.empty());
}

TEST(csv_trace, may_begin_with_remarks_and_end_with_empty_lines) {
  const std::string lines = "a,1,1,0,0\nr,1,,0,1\n";
  const std::string names = "op,id,bytes,stream,t_us\n";
  for (const std::string& text :
       {"# made by a script\n" + lines, "# made by a script\n# " + names + lines,
        "# made by a script\n" + names + lines, "# " + names + "#\n" + names + lines, lines + "\n",
        lines + "\r\n\n", "#\r\n" + lines}) {
    EXPECT_TRUE(formats::is_csv_trace(text)) << text;
    const auto read = formats::read_csv_trace(text, "x");
    ASSERT_TRUE(read) << text << read.error().detail();
    EXPECT_EQ(read->events.size(), 2u) << text;
  }
  EXPECT_FALSE(formats::is_csv_trace("# a remark\n# another\n"));
  EXPECT_FALSE(formats::is_csv_trace("# a remark\nThread,Time,Action,Pointer,Size,Stream\n"));
  EXPECT_EQ(formats::read_csv_trace(lines + names, "x").error().detail(), "x:3: not a number");
  EXPECT_TRUE(formats::read_csv_trace("\n", "x").value().events.empty());
}

TEST(csv_trace, names_the_line_that_is_wrong) {
  const auto refused = [](std::string text, std::string why) {
    const auto read = formats::read_csv_trace("a,1,1,0,0\n" + text, "t.csv");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.code(), errc::invalid_argument);
    EXPECT_EQ(read.error().detail(), "t.csv:2: " + why);
  };
  refused("a,2,1,0", "not op,id,bytes,stream,t_us");
  refused("a,2,1,0,0,0", "not op,id,bytes,stream,t_us");
  refused("\na,2,1,0,0", "not op,id,bytes,stream,t_us");
  refused("op,id,bytes,stream,t_us", "not a number");  // it is no first line
  refused("a,x,1,0,0", "not a number");
  refused("a,2,-1,0,0", "not a number");
  refused("a,2,99999999999999999999,0,0", "not a number");
  refused("a,2,,0,0", "not a number");
  refused("a,2,1,x,0", "not a number");
  refused("a,2,1,0,x", "not a number");
  refused("a,2,1x,0,0", "not a number");
  refused("a,2,1,0,18446744073709552", "the time is out of range");
  refused("x,2,,0,0", "unknown operation; expected a, r, f or s");
  refused("a,2,1,0,1.", "not a number");
  refused("a,2,1,0,.1", "not a number");
  refused("a,2,1,0,1.0001", "not a number");
  refused("a,2,1,0,18446744073709551.616", "the time is out of range");
  refused("s,2,,0,0", "the block was not allocated before");
  refused("a,1,1,0,0", "the block is allocated twice");
  refused("a,2,18446744073709551615,0,0", "the live bytes exceed the address space");
  refused("r,2,,0,0", "the block was not allocated before");
  refused("f,1,,0,0", "the block is freed twice, or freed before its release");
  refused("r,1,5,0,0", "bytes must be empty for every operation but a");
  const auto refused_at_3 = [](std::string lines, std::string why) {
    const auto read = formats::read_csv_trace("a,1,1,0,0\nr,1,,0,0\n" + lines, "t.csv");
    ASSERT_FALSE(read) << lines;
    EXPECT_EQ(read.error().detail(), "t.csv:3: " + why);
  };
  refused_at_3("s,1,,0,0", "the block is used after its free");
  refused_at_3("r,1,,0,0", "the block is freed twice, or freed before its release");
  refused_at_3("f,2,,0,0", "the block was not allocated before");
}

TEST(csv_trace, reads_the_peaks_of_its_row) {
  const std::string text = "trace,…,,,,,,\none,1,2,3,4,5,6,7\ntwo,1,2,30,4,50,60,70\n";
  const std::vector<recorded_peak> expected = {{"torch-default", bytes{30}, bytes{50}},
                                               {"torch-expandable", bytes{60}, bytes{70}}};
  EXPECT_EQ(formats::read_csv_peaks(text, "p", "two").value(), expected);
  EXPECT_TRUE(formats::read_csv_peaks(text, "p", "three").value().empty());
  EXPECT_TRUE(formats::read_csv_peaks("one,1,2,3,4,5,6,7\n", "p", "one").value().empty())
      << "the first line has the columns' names";
  EXPECT_EQ(formats::read_csv_peaks("a,b\n", "p", "a").error().detail(),
            "p:1: expected eight columns");
  for (const std::size_t column : {3, 5, 6, 7}) {
    std::string row = "one,1,2,3,4,5,6,7\n";
    row[2 * column + 2] = 'x';
    EXPECT_EQ(formats::read_csv_peaks("t,s,a,r,a,d,e,x\n" + row, "p", "one").error().detail(),
              "p:2: not a number")
        << row;
  }
}

TEST(csv_trace, keeps_to_limits) {
  const auto two = "a,1,1,0,0\na,2,1,0,0\n";
  EXPECT_TRUE(formats::read_csv_trace(two, "x", {.events = 2}));
  const auto refused = formats::read_csv_trace(two, "x", {.events = 1});
  EXPECT_EQ(refused.code(), errc::limit_exceeded);
  EXPECT_EQ(refused.error().detail(), "x: too many events");
}

}  // namespace
}  // namespace weir::testing_support

// CSV traces: what a line may say, and what is refused with its line.
#include "formats/csv_trace.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support {
namespace {

using ::testing::HasSubstr;

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
      {.time = 3000, .address = 1, .size = 100, .stream = 0, .kind = allocate},
      {.time = 4000, .address = 2, .size = 200, .stream = 1, .kind = allocate},
      {.time = 5000, .address = 1, .size = 100, .stream = 0, .kind = deallocate},
      {.time = 5000, .address = 1, .size = 100, .stream = 1, .kind = reusable},
      {.time = 6000, .address = 1, .size = 300, .stream = 0, .kind = allocate}};
  EXPECT_EQ(read.events, expected);
  EXPECT_EQ(read.streams, (std::vector<std::uint64_t>{7, 9}));
  EXPECT_FALSE(read.real_addresses);
}

TEST(csv_trace, names_the_line_that_is_wrong) {
  const auto refused = [](std::string text, std::string why) {
    const auto read = formats::read_csv_trace("a,1,1,0,0\n" + text, "t.csv");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.code(), errc::invalid_argument);
    EXPECT_THAT(read.error().detail, HasSubstr("t.csv:2: " + why));
  };
  refused("a,2,1,0", "not op,id");
  refused("a,2,1,0,0,0", "not op,id");
  refused("\n", "not op,id");
  refused("a,x,1,0,0", "not a number");
  refused("a,2,-1,0,0", "not a number");
  refused("a,2,99999999999999999999,0,0", "not a number");
  refused("a,2,,0,0", "not a number");
  refused("a,2,1,0,18446744073709551615", "the time is out of range");
  refused("x,2,,0,0", "the operation is none of");
  refused("a,1,1,0,0", "the block is allocated twice");
  refused("r,2,,0,0", "the block was not allocated before");
  refused("f,1,,0,0", "the block is freed out of turn");
  refused("r,1,5,0,0", "only an allocation has a size");
}

TEST(csv_trace, reads_the_peaks_of_its_row) {
  const std::string text = "trace,…,,,,,,\none,1,2,3,4,5,6,7\ntwo,1,2,30,4,50,60,70\n";
  const std::vector<recorded_peak> expected = {{"torch-default", bytes{30}, bytes{50}},
                                               {"torch-expandable", bytes{60}, bytes{70}}};
  EXPECT_EQ(formats::read_csv_peaks(text, "p", "two").value(), expected);
  EXPECT_TRUE(formats::read_csv_peaks(text, "p", "three").value().empty());
  EXPECT_FALSE(formats::read_csv_peaks("a,b\n", "p", "a"));
}

TEST(csv_trace, keeps_to_limits) {
  EXPECT_EQ(formats::read_csv_trace("a,1,1,0,0\na,2,1,0,0\n", "x", {.events = 1}).code(),
            errc::limit_exceeded);
}

}  // namespace
}  // namespace weir::testing_support

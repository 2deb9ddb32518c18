// Reading traces: what is understood, and what is refused with its line.
#include "support/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;

TEST(trace, numbers_blocks_and_streams_without_gaps) {
  const trace read = parse_trace(
                         "# op,id,bytes,stream,t_us\n"
                         "a,70,1000,3,5\n"
                         "a,9,512,0,6\n"
                         "r,70,,3,7\n"
                         "f,70,,3,8\n",
                         "text")
                         .value();
  EXPECT_EQ(read.blocks, 2U);
  EXPECT_EQ(read.streams, 2U);
  ASSERT_EQ(read.events.size(), 4U);
  EXPECT_EQ(read.events[0].kind, trace::event_kind::allocate);
  EXPECT_EQ(read.events[0].block, 0U);
  EXPECT_EQ(read.events[0].stream, 0U);
  EXPECT_EQ(read.events[0].size, 1000U);
  EXPECT_EQ(read.events[0].time, 5U);
  EXPECT_EQ(read.events[1].block, 1U);
  EXPECT_EQ(read.events[1].stream, 1U);
  EXPECT_EQ(read.events[2].kind, trace::event_kind::free);
  EXPECT_EQ(read.events[2].size, 1000U) << "a free has the size of its block";
  EXPECT_EQ(read.events[3].kind, trace::event_kind::reusable);
  EXPECT_EQ(read.events[3].block, 0U);
}

TEST(trace, takes_the_last_line_without_its_end) {
  EXPECT_EQ(parse_trace("a,1,1,0,0\na,2,1,0,0", "text").value().blocks, 2U);
}

struct refused {
  const char* text;
  const char* why;
};

class refused_traces : public ::testing::TestWithParam<refused> {};

TEST_P(refused_traces, name_the_line) {
  const auto read = parse_trace(GetParam().text, "some.trace");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.code(), errc::invalid_argument);
  EXPECT_THAT(read.error().detail, HasSubstr("some.trace:2: "));
  EXPECT_THAT(read.error().detail, HasSubstr(GetParam().why));
}

INSTANTIATE_TEST_SUITE_P(
    all, refused_traces,
    ::testing::Values(refused{"a,1,8,0,0\n\n", "op,id,bytes,stream,t_us"},
                      refused{"a,1,8,0,0\na,2,8,0\n", "op,id,bytes,stream,t_us"},
                      refused{"a,1,8,0,0\na,2,8,0,0,0\n", "op,id,bytes,stream,t_us"},
                      refused{"a,1,8,0,0\na,2,,0,0\n", "not a number"},
                      refused{"a,1,8,0,0\na,2,-8,0,0\n", "not a number"},
                      refused{"a,1,8,0,0\na,2,8x,0,0\n", "not a number"},
                      refused{"a,1,8,0,0\na,2,8,0,18446744073709551616\n", "not a number"},
                      refused{"a,1,8,0,0\na,1,8,0,0\n", "allocated twice"},
                      refused{"a,1,8,0,0\nr,2,,0,0\n", "not allocated"},
                      refused{"a,1,8,0,0\nr,1,8,0,0\n", "only an allocation has a size"},
                      refused{"a,1,8,0,0\nf,1,,0,0\n", "out of turn"},
                      refused{"a,1,8,0,0\nx,1,,0,0\n", "none of a, r, f"}));

TEST(trace, refuses_a_second_free) {
  const auto read = parse_trace("a,1,8,0,0\nr,1,,0,0\nf,1,,0,0\nr,1,,0,0\n", "text");
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().detail, HasSubstr("text:4: the block is freed out of turn"));
}

TEST(trace, says_that_a_file_is_missing_or_damaged) {
  EXPECT_EQ(read_trace(trace_path("no_such.trace.gz")).code(), errc::not_found);

  std::ifstream whole{trace_path("gpt2_two_steps.trace.gz"), std::ios::binary};
  const std::string packed{std::istreambuf_iterator<char>{whole}, {}};
  ASSERT_GT(packed.size(), 1000U);
  const auto half = std::filesystem::temp_directory_path() /
                    ("weir_half_" + std::to_string(::getpid()) + ".trace.gz");
  std::ofstream{half, std::ios::binary}.write(packed.data(), 1000);
  EXPECT_EQ(read_trace(half.string()).code(), errc::system);
  std::filesystem::remove(half);
}

TEST(trace_peaks, are_read_by_column) {
  const auto rows = parse_trace_peaks("trace,…\nsome,1,2,3,4,5,6,7\n", "text").value();
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].name, "some");
  EXPECT_EQ(rows[0].streams, 1U);
  EXPECT_EQ(rows[0].allocations, 2U);
  EXPECT_EQ(rows[0].requested, 3U);
  EXPECT_EQ(rows[0].active, 4U);
  EXPECT_EQ(rows[0].fixed_reserved, 5U);
  EXPECT_EQ(rows[0].expandable_requested, 6U);
  EXPECT_EQ(rows[0].expandable_reserved, 7U);
}

TEST(trace_peaks, refuse_a_row_that_is_none) {
  EXPECT_EQ(parse_trace_peaks("trace\nsome,1,2,3,4,5,6\n", "text").code(), errc::invalid_argument);
  EXPECT_EQ(parse_trace_peaks("trace\nsome,1,2,3,4,5,6,x\n", "text").code(),
            errc::invalid_argument);
  EXPECT_EQ(read_trace_peaks(trace_path("no_such.csv")).code(), errc::not_found);
}

}  // namespace
}  // namespace weir::testing_support

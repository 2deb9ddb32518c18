// SPDX-License-Identifier: Apache-2.0
// Reading traces: what is understood, and what is refused with its event.
#include "support/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;

trace_event happened(trace_kind kind, std::uint64_t address, std::uint32_t stream = 0,
                     std::uint64_t size = 0, std::uint64_t time = 0) {
  return {.time = time, .address = address, .size = size, .stream = stream, .kind = kind};
}

TEST(trace, numbers_blocks_and_streams_without_gaps) {
  recording recorded;
  recorded.events = {happened(trace_kind::allocate, 70, 3, 1000, 5000),
                     happened(trace_kind::allocate, 9, 0, 512, 6999),
                     happened(trace_kind::deallocate, 70, 3, 1000, 7000),
                     happened(trace_kind::reusable, 70, 3, 1000, 8000)};
  recorded.peaks = {{.policy = "torch-default", .requested = bytes{11}, .reserved = bytes{22}},
                    {.policy = "torch-expandable", .requested = bytes{11}, .reserved = bytes{33}}};
  const trace read = trace_of(recorded).value();
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
  EXPECT_EQ(read.events[1].time, 6U);
  EXPECT_EQ(read.events[2].kind, trace::event_kind::free);
  EXPECT_EQ(read.events[2].size, 1000U) << "a free has the size of its block";
  EXPECT_EQ(read.events[3].kind, trace::event_kind::reusable);
  EXPECT_EQ(read.events[3].block, 0U);
  EXPECT_EQ(read.requested_peak, 11U);
  EXPECT_EQ(read.fixed_reserved_peak, 22U);
  EXPECT_EQ(read.expandable_reserved_peak, 33U);
}

struct refused {
  trace_event second;
  const char* why;
};

class refused_traces : public ::testing::TestWithParam<refused> {};

TEST_P(refused_traces, name_the_event) {
  recording recorded;
  recorded.events = {happened(trace_kind::allocate, 1), GetParam().second};
  const auto read = trace_of(recorded);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.code(), errc::invalid_argument);
  EXPECT_THAT(read.error().detail(), HasSubstr("event 1: "));
  EXPECT_THAT(read.error().detail(), HasSubstr(GetParam().why));
}

INSTANTIATE_TEST_SUITE_P(
    all, refused_traces,
    ::testing::Values(refused{happened(trace_kind::allocate, 1), "allocated twice"},
                      refused{happened(trace_kind::deallocate, 2), "not allocated"},
                      refused{happened(trace_kind::reusable, 1), "freed before its release"},
                      refused{happened(trace_kind::marker, 0), "not an event"}));

TEST(trace, a_missing_file_is_an_error) {
  EXPECT_EQ(read_trace("no_such_program").code(), errc::not_found);
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Records of threads as events of a file: their times, and the tables that they need.
#include "trace/trace_writer.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/scratch.hpp"
#include "trace/ticks.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using trace::record;

class trace_writer_test : public ::testing::Test {
 protected:
  static constexpr std::uint64_t start = 1'000'000'000;

  recording finish_and_read(std::uint64_t dropped = 0) {
    EXPECT_TRUE(writer_.finish(dropped));
    EXPECT_EQ(writer_.file_size(), read_bytes(folder_.path("a")).size());
    auto read = read_trace(folder_.path("a")).value();
    EXPECT_FALSE(read.damage);
    EXPECT_EQ(writer_.events(), read.events.size());
    return read;
  }
  static std::uint64_t nanoseconds(std::uint64_t ticks) {
    return static_cast<std::uint64_t>(static_cast<double>(ticks) * trace::nanoseconds_per_tick());
  }

  scratch_folder folder_;
  trace::trace_writer writer_{trace::file_writer::create(folder_.path("a"), nullptr, 0).value(),
                              start};
};

TEST_F(trace_writer_test, begins_with_what_is_known_of_the_program) {
  writer_.begin("program", "device", 80);
  const auto read = finish_and_read(5);
  EXPECT_EQ(read.program, "program");
  EXPECT_EQ(read.device, "device");
  EXPECT_EQ(read.device_capacity, bytes{80});
  EXPECT_EQ(read.dropped, 5u);
  EXPECT_TRUE(read.events.empty());
}

TEST_F(trace_writer_test, turns_ticks_since_the_start_into_times_that_never_go_back) {
  const auto at = [](std::uint64_t time) {
    return record{.time = time, .kind = trace_kind::limit};
  };
  ASSERT_TRUE(writer_.write({at(start - 1), at(start), at(start + 2'000'000)}));
  ASSERT_TRUE(writer_.write({at(start + 1'000'000), at(start + 9'000'000)}));
  std::vector<std::uint64_t> times;
  for (const trace_event& each : finish_and_read().events) times.push_back(each.time);
  EXPECT_THAT(times, ElementsAre(0, 0, nanoseconds(2'000'000), nanoseconds(2'000'000),
                                 nanoseconds(9'000'000)));
}

TEST_F(trace_writer_test, knows_threads_by_their_numbers) {
  writer_.add_thread(0, 70);
  writer_.add_thread(3, 73);  // those between were never heard of
  writer_.add_thread(1, 71);
  writer_.add_thread(3, 73);
  writer_.add_thread(4, 74);
  ASSERT_TRUE(writer_.write(
      {{.thread = 3, .kind = trace_kind::limit}, {.thread = 4, .kind = trace_kind::limit}}));
  const auto read = finish_and_read();
  EXPECT_THAT(read.threads, ElementsAre(70, 0, 0, 73, 74));
  EXPECT_EQ(read.events.at(0).thread, 3);
  EXPECT_EQ(read.events.at(1).thread, 4);
}

TEST_F(trace_writer_test, writes_names_before_they_are_too_large_for_a_frame) {
  const std::string text(600'000, 'x');
  writer_.add_text(text);
  EXPECT_EQ(writer_.file_size(), 16u);
  writer_.add_text(text);
  EXPECT_GT(writer_.file_size(), 2 * text.size());
  writer_.add_text("end");
  ASSERT_TRUE(writer_.write({{.other = 2, .kind = trace_kind::marker}}));
  EXPECT_THAT(finish_and_read().texts, ElementsAre(text, text, "end"));
}

/// So much less than a frame of names is one text: what it is, and its length.
constexpr std::size_t around_text = 1 + 3;

TEST_F(trace_writer_test, keeps_names_that_leave_a_byte_of_a_frame) {
  writer_.add_text(std::string(trace::frame_names - around_text - 1, 'x'));
  EXPECT_EQ(writer_.file_size(), 16u);
}

TEST_F(trace_writer_test, writes_names_that_fill_a_frame) {
  writer_.add_text(std::string(trace::frame_names - around_text, 'x'));
  EXPECT_GT(writer_.file_size(), trace::frame_names);
}

TEST_F(trace_writer_test, writes_an_end_alone_where_there_is_nothing_to_say) {
  writer_.begin("", "", 0);
  ASSERT_TRUE(writer_.write({}));
  const auto read = finish_and_read(0);
  EXPECT_EQ(writer_.file_size(), 16u + 20u + 1u);
  EXPECT_EQ(read.dropped, 0u);
}

TEST_F(trace_writer_test, writes_stacks_before_they_are_too_large_for_a_frame) {
  const std::vector<void*> stack(700'000, reinterpret_cast<void*>(0x10));
  writer_.add_stack(stack);
  EXPECT_EQ(writer_.file_size(), 16u);
  writer_.add_stack(stack);
  EXPECT_GT(writer_.file_size(), 2 * stack.size());
  EXPECT_EQ(finish_and_read().stacks.size(), 2u);
}

TEST_F(trace_writer_test, writes_each_frame_of_stacks_once) {
  void* const first = reinterpret_cast<void*>(0x10);
  void* const second = reinterpret_cast<void*>(0x20);
  writer_.add_stack({first, second});
  writer_.add_stack({second});
  writer_.add_stack({});
  const auto read = finish_and_read();
  EXPECT_THAT(read.frames, ElementsAre("0x10", "0x20"));
  EXPECT_THAT(read.stacks, ElementsAre(ElementsAre(0, 1), ElementsAre(1), ElementsAre()));
}

TEST_F(trace_writer_test, writes_more_records_than_a_frame_has) {
  std::vector<record> records(trace::frame_events + 1);
  for (std::size_t i = 0; i < records.size(); ++i)
    records[i] = {.size = i, .kind = trace_kind::limit};
  ASSERT_TRUE(writer_.write(records));
  const auto read = finish_and_read();
  ASSERT_EQ(read.events.size(), records.size());
  for (std::size_t i = 0; i < records.size(); ++i) ASSERT_EQ(read.events[i].size, i);
}

TEST_F(trace_writer_test, can_be_given_up) {
  ASSERT_TRUE(writer_.write({{.kind = trace_kind::limit}}));
  EXPECT_EQ(folder_.files(), 1u);
  writer_.abandon();
  EXPECT_EQ(folder_.files(), 0u);
}

}  // namespace
}  // namespace weir::testing_support

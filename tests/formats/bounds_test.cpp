// SPDX-License-Identifier: Apache-2.0
// What a file may cost at most, and what is wrong about it by a little.
#include <string>
#include <vector>

#include "formats/pickle.hpp"
#include "formats/rmm_log.hpp"
#include "formats/torch_snapshot.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

const std::string rmm_header = "Thread,Time,Action,Pointer,Size,Stream\n";

TEST(bounds, are_8_gib_and_2_to_the_28_events_unless_said_otherwise) {
  const formats::input_limits usual;
  EXPECT_EQ(usual.bytes, 8'589'934'592u);
  EXPECT_EQ(usual.events, 268'435'456u);
}

TEST(bounds, count_the_frees_that_an_rmm_log_lacks) {
  const std::string log = rmm_header +
                          "1,00:00:00,allocate,0x10,4,0x0\n"
                          "1,00:00:01,allocate,0x10,8,0x0\n"  // two events: it was freed before
                          "1,00:00:02,free,0x99,8,0x0\n";     // no event
  const auto read = formats::read_rmm_log(log, "x", {.events = 3});
  ASSERT_TRUE(read);
  EXPECT_EQ(read->events.size(), 3u);
  EXPECT_EQ(formats::read_rmm_log(log, "x", {.events = 2}).code(), errc::limit_exceeded);
}

/// Segments with so many live blocks of which the history says nothing, and remarks.
std::string snapshot_of(int blocks, int remarks) {
  formats::pickle_writer out;
  out.begin_dict();
  out.text("segments");
  out.begin_list();
  out.begin_dict();
  out.text("blocks");
  out.begin_list();
  for (int i = 0; i < blocks; ++i) {
    out.begin_dict();
    out.text("size");
    out.natural(512);
    out.text("state");
    out.text("active_allocated");
    out.end_dict();
  }
  out.end_list();
  out.end_dict();
  out.end_list();
  out.text("external_annotations");
  out.begin_list();
  for (int i = 0; i < remarks; ++i) {
    out.begin_dict();
    out.text("name");
    out.text("step");
    out.end_dict();
  }
  out.end_list();
  out.end_dict();
  return std::move(out).finish();
}

TEST(bounds, count_what_was_there_before_a_snapshot_s_history_and_its_remarks) {
  const std::string snapshot = snapshot_of(4, 2);
  const auto read = formats::read_torch_snapshot(snapshot, "x", {.events = 7});
  ASSERT_TRUE(read);
  EXPECT_EQ(read->events.size(), 7u);  // with the marker behind what was there before
  EXPECT_EQ(formats::read_torch_snapshot(snapshot, "x", {.events = 6}).code(),
            errc::limit_exceeded);
}

/// A snapshot of `count` entries that share one text of `length` by the memo: in their frames, in
/// remarks, or in annotations.
std::string sharing_snapshot(std::string_view where, std::size_t length, std::uint64_t count) {
  const std::string name(length, 'x');
  formats::pickle_writer out;
  const auto number = [&](std::string_view key, std::uint64_t value) {
    out.word(key);
    out.natural(value);
  };
  out.begin_dict();
  out.word("segments");
  out.begin_list();
  out.end_list();
  out.word("device_traces");
  out.begin_list();
  out.begin_list();
  for (std::uint64_t i = 0; where != "annotations" && i < count; ++i) {
    out.begin_dict();
    out.word("action");
    out.word(where == "frames" ? "alloc" : "snapshot");
    number("addr", 4096 * (i + 1));
    number("size", 512);
    if (where == "frames") {
      out.word("frames");
      out.begin_list();
      out.begin_dict();
      out.word("name");
      out.word(name);
      out.word("filename");
      out.word("a");
      number("line", i);
      out.end_dict();
      out.end_list();
    } else {
      out.word("user_metadata");
      out.word(name);
    }
    out.end_dict();
  }
  out.end_list();
  out.end_list();
  out.word("external_annotations");
  out.begin_list();
  for (std::uint64_t i = 0; where == "annotations" && i < count; ++i) {
    out.begin_dict();
    out.word("name");
    out.word(name);
    number("time_us", i);
    out.end_dict();
  }
  out.end_list();
  out.end_dict();
  return std::move(out).finish();
}

TEST(bounds, count_the_copies_of_texts_that_a_snapshot_shares) {
  for (const std::string_view where : {"frames", "remarks", "annotations"}) {
    SCOPED_TRACE(where);
    constexpr std::size_t length = 200'000;
    const auto few = formats::read_torch_snapshot(sharing_snapshot(where, length, 8), "x");
    ASSERT_TRUE(few) << few.error().detail();
    EXPECT_EQ(few->events.size(), 8u);
    const std::string many = sharing_snapshot(where, length, 40);
    ASSERT_LT(many.size(), length + 40 * 100);
    const auto refused = formats::read_torch_snapshot(many, "x");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), errc::limit_exceeded);
    EXPECT_EQ(
        refused.error().detail(),
        "the texts of the snapshot's frames and remarks are too long for the size of the file");
    // Names as long as those of real programs may be shared by any number of entries.
    EXPECT_TRUE(formats::read_torch_snapshot(sharing_snapshot(where, 300, 2'000), "x"));
  }
}

std::vector<std::uint64_t> times_of(const std::string& lines) {
  std::vector<std::uint64_t> times;
  const auto read = formats::read_rmm_log(rmm_header + lines, "x").value();
  for (const trace_event& each : read.events) times.push_back(each.time);
  return times;
}

TEST(rmm_log_midnight, is_passed_once_though_a_thread_writes_a_little_late) {
  EXPECT_THAT(times_of("1,23:59:59.999998,allocate,0x10,4,0x0\n"
                       "1,00:00:00.000002,allocate,0x20,4,0x0\n"
                       "2,23:59:59.999999,allocate,0x30,4,0x0\n"  // lifted to the one before
                       "1,00:00:00.000003,allocate,0x40,4,0x0\n"),
              ElementsAre(0, 4000, 4000, 5000));
}

TEST(rmm_log_midnight, lies_between_the_first_line_and_one_that_is_late) {
  EXPECT_THAT(times_of("1,00:00:00.000002,allocate,0x20,4,0x0\n"
                       "2,23:59:59.999999,allocate,0x30,4,0x0\n"
                       "1,00:00:00.000003,allocate,0x40,4,0x0\n"),
              ElementsAre(0, 0, 1000));
}

}  // namespace
}  // namespace weir::testing_support

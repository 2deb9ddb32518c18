// PyTorch snapshots: what torch recorded, what its ring lost, and back again.
#include "formats/torch_snapshot.hpp"

#include <map>

#include "formats/open.hpp"
#include "formats/pickle.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support {
namespace {

using ::testing::HasSubstr;

std::string data_file(std::string_view file) {
  return std::string{WEIR_DATA_FOLDER} + "/" + std::string{file};
}

/// What blocks go through, without their addresses: blocks by the order of their allocation.
struct step {
  trace_kind kind;
  std::uint64_t block;
  std::uint64_t size;
  std::uint64_t stream;
  friend bool operator==(const step&, const step&) = default;
};
std::vector<step> steps(const recording& recorded) {
  std::vector<step> steps_read;
  std::map<std::uint64_t, std::uint64_t> numbers;
  std::uint64_t next = 0;
  for (const trace_event& each : recorded.events) {
    if (each.kind == trace_kind::allocate) {
      numbers[each.address] = next++;
    } else if (each.kind != trace_kind::deallocate && each.kind != trace_kind::reusable) {
      continue;
    }
    steps_read.push_back(
        {each.kind, numbers.at(each.address), each.size, recorded.streams[each.stream]});
  }
  return steps_read;
}

TEST(torch_snapshot, says_the_same_as_the_trace_of_the_same_run) {
  const auto trace = formats::read_recording(data_file("traces/gpt2_two_steps.trace.gz")).value();
  std::vector<std::uint64_t> sizes;
  for (const trace_event& each : trace.events)
    if (each.kind == trace_kind::allocate) sizes.push_back(each.size);
  for (const auto kind : {"default", "expandable"}) {
    const auto path =
        data_file("snapshots/gpt2_two_steps." + std::string{kind} + ".snapshot.pickle.gz");
    const auto read = formats::read_recording(path).value();
    std::vector<std::uint64_t> got;
    std::uint64_t reserved = 0;
    for (const trace_event& each : read.events) {
      if (each.kind == trace_kind::allocate) got.push_back(each.size);
      if (each.kind == trace_kind::reserve) reserved += each.size;
    }
    EXPECT_EQ(got, sizes);
    EXPECT_EQ(got.size(), 3313u);
    EXPECT_EQ(reserved, kind == std::string{"default"} ? 15'286'140'928u : 14'543'749'120u);
    // The other run freed a few blocks in another order.
    EXPECT_EQ(steps(read) == steps(trace), kind == std::string{"default"});
    EXPECT_EQ(steps(read).size(), steps(trace).size());
    EXPECT_TRUE(read.real_addresses);
    EXPECT_EQ(read.device, "cuda:0");
    EXPECT_THAT(read.texts, ::testing::Contains("begin of Optimizer.step#AdamW.step"));
  }
}

/// A snapshot under construction, with the parts that a test wants.
class snapshot_text {
 public:
  snapshot_text() {
    out_.begin_dict();
    out_.text("device_traces");
    out_.begin_list();
    out_.begin_list();
  }
  snapshot_text& entry(std::string_view action, std::uint64_t address, std::uint64_t size,
                       std::uint64_t time, bool frames = false) {
    out_.begin_dict();
    text("action", action);
    number("addr", address);
    number("size", size);
    number("stream", 0);
    number("time_us", time);
    if (frames) {
      out_.text("frames");
      out_.begin_list();
      out_.begin_dict();
      text("name", "forward");
      text("filename", "model.py");
      number("line", 12);
      out_.end_dict();
      out_.end_list();
    }
    out_.end_dict();
    return *this;
  }
  snapshot_text& segments() {
    out_.end_list();
    out_.end_list();
    out_.text("segments");
    out_.begin_list();
    return *this;
  }
  snapshot_text& segment(std::uint64_t address,
                         std::vector<std::pair<std::uint64_t, bool>> blocks) {
    out_.begin_dict();
    number("device", 0);
    number("address", address);
    number("stream", 0);
    out_.text("blocks");
    out_.begin_list();
    for (const auto& [size, live] : blocks) {
      out_.begin_dict();
      number("size", size);
      text("state", live ? "active_allocated" : "inactive");
      out_.end_dict();
    }
    out_.end_list();
    out_.end_dict();
    return *this;
  }
  std::string finish() {
    out_.end_list();
    out_.end_dict();
    return std::move(out_).finish();
  }

 private:
  void number(std::string_view key, std::uint64_t value) {
    out_.text(key);
    out_.natural(value);
  }
  void text(std::string_view key, std::string_view value) {
    out_.text(key);
    out_.text(value);
  }
  formats::pickle_writer out_;
};

TEST(torch_snapshot, rebuilds_what_was_there_before_its_history) {
  const auto bytes = snapshot_text{}
                         .entry("free_completed", 0x9000, 9, 100)  // asked for before: left out
                         .entry("free_requested", 0x2000, 20, 101)
                         .entry("free_completed", 0x2000, 20, 102)
                         .entry("alloc", 0x2000, 30, 103, true)
                         .segments()
                         .segment(0x1000, {{0x1000, true}, {0x1000, true}, {0x1000, false}})
                         .finish();
  const auto read = formats::read_torch_snapshot(bytes, "x").value();
  using enum trace_kind;
  const std::vector<trace_event> expected = {
      {.address = 0x1000, .size = 0x1000, .kind = allocate},  // touched by nobody
      {.address = 0x2000, .size = 20, .kind = allocate},      // freed without an allocation
      {.kind = marker},
      {.time = 1000, .address = 0x2000, .size = 20, .kind = deallocate},
      {.time = 2000, .address = 0x2000, .size = 20, .kind = reusable},
      {.time = 3000, .address = 0x2000, .size = 30, .other = 1, .kind = allocate}};
  EXPECT_EQ(read.events, expected);
  EXPECT_THAT(read.frames, ::testing::ElementsAre("forward at model.py:12"));
}

TEST(torch_snapshot, refuses_pickles_of_something_else) {
  EXPECT_THAT(formats::read_torch_snapshot("\x80\x04K\x01.", "x").error().detail,
              HasSubstr("not a PyTorch snapshot"));
  EXPECT_THAT(formats::read_torch_snapshot("\x80\x04}.", "x").error().detail,
              HasSubstr("segments"));
  EXPECT_TRUE(formats::read_torch_snapshot("\x80\x04].", "x")) << "a bare list is segments";
}

/// A list of ten thousand blocks, named by ten thousand segments.
TEST(torch_snapshot, is_not_led_on_an_endless_walk) {
  std::string bytes{"\x80\x04](", 4};
  bytes += "]\x94(";
  for (int i = 0; i < 10'000; ++i) bytes += "}";
  bytes += "e0";  // the blocks stay in the memo
  std::string segment =
      "}(\x8c\x06"
      "blocksh";
  segment.push_back('\0');
  for (int i = 0; i < 10'000; ++i) bytes += segment + "u";
  bytes += "e.";
  const auto read = formats::read_torch_snapshot(bytes, "x");
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().detail, HasSubstr("too often"));
}

TEST(torch_snapshot, reads_back_what_it_exports) {
  const auto read =
      formats::read_recording(data_file("snapshots/gpt2_two_steps.expandable.snapshot.pickle.gz"))
          .value();
  const std::string bytes = formats::torch_snapshot_of(read);
  const auto again = formats::read_torch_snapshot(bytes, "x").value();
  EXPECT_EQ(steps(again), steps(read));
  // What only tells blocks apart gets places that do not overlap.
  const auto trace = formats::read_recording(data_file("traces/gpt2_two_steps.trace.gz")).value();
  const auto placed = formats::read_torch_snapshot(formats::torch_snapshot_of(trace), "x").value();
  EXPECT_EQ(steps(placed), steps(trace));
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// PyTorch snapshots: what torch recorded, what its ring lost, and back again.
#include "formats/torch_snapshot.hpp"

#include <functional>
#include <initializer_list>
#include <map>

#include "formats/open.hpp"
#include "formats/pickle.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string data_file(std::string_view file) {
  return std::string{WEIR_DATA_FOLDER} + "/" + std::string{file};
}

/// What blocks go through, without their addresses: blocks by the order of their allocation, times
/// since the first.
struct step {
  trace_kind kind;
  std::uint64_t block;
  std::uint64_t size;
  std::uint64_t stream;
  std::uint64_t time;
  friend bool operator==(const step&, const step&) = default;
};
std::vector<step> steps(const recording& recorded) {
  std::vector<step> steps_read;
  std::map<std::uint64_t, std::uint64_t> numbers;
  std::uint64_t next = 0;
  std::optional<std::uint64_t> start;
  for (const trace_event& each : recorded.events) {
    if (each.kind == trace_kind::allocate) {
      if (!start) start = each.time;
      numbers[each.address] = next++;
    } else if (each.kind != trace_kind::deallocate && each.kind != trace_kind::reusable) {
      continue;
    }
    steps_read.push_back({each.kind, numbers.at(each.address), each.size,
                          recorded.streams[each.stream], each.time - *start});
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
    const bool is_default = kind == std::string{"default"};
    std::vector<std::uint64_t> got;
    std::uint64_t reserved = 0;
    std::map<trace_kind, int> kinds;
    for (const trace_event& each : read.events) {
      if (each.kind == trace_kind::allocate) got.push_back(each.size);
      if (each.kind == trace_kind::reserve) reserved += each.size;
      ++kinds[each.kind];
    }
    EXPECT_EQ(got, sizes);
    EXPECT_EQ(reserved, is_default ? 15'286'140'928u : 14'543'749'120u);
    using enum trace_kind;
    EXPECT_EQ(kinds, (std::map<trace_kind, int>{{allocate, 3313},
                                                {deallocate, 3310},
                                                {reusable, 3310},
                                                {reserve, is_default ? 154 : 153},
                                                {marker, 8}}));
    // The other run took another time, and freed a few blocks in another order.
    EXPECT_EQ(steps(read) == steps(trace), is_default);
    EXPECT_EQ(steps(read).size(), steps(trace).size());
    EXPECT_TRUE(read.real_addresses);
    EXPECT_EQ(read.device, "cuda:0");
    EXPECT_EQ(read.program, "gpt2_two_steps." + std::string{kind});
    EXPECT_THAT(read.streams, ElementsAre(0));
    EXPECT_THAT(read.threads, ElementsAre(0));
    EXPECT_THAT(read.tags, ElementsAre(""));
    EXPECT_THAT(read.pools, ElementsAre(""));
    EXPECT_TRUE(read.stacks.empty());
    EXPECT_TRUE(read.frames.empty());
    std::vector<std::string> texts;
    for (int i = 0; i < 2; ++i)
      for (const std::string name :
           {"Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad"})
        for (const std::string stage : {"begin of ", "end of "}) texts.push_back(stage + name);
    EXPECT_EQ(read.texts, texts);
  }
}

// --- Snapshots made for a test ------------------------------------------------------------------

/// A value of Python.
class py {
 public:
  using member = std::pair<std::string, py>;

  py(std::int64_t value) : write_{[=](auto& out) { out.integer(value); }} {}
  py(int value) : py{std::int64_t{value}} {}
  py(const char* value) : write_{[text = std::string{value}](auto& out) { out.text(text); }} {}
  static py list(std::vector<py> items) {
    return py{[=](formats::pickle_writer& out) {
      out.begin_list();
      for (const py& each : items) each.write_(out);
      out.end_list();
    }};
  }
  static py dict(std::vector<member> members) {
    return py{[=](formats::pickle_writer& out) {
      out.begin_dict();
      for (const auto& [key, value] : members) {
        out.text(key);
        value.write_(out);
      }
      out.end_dict();
    }};
  }
  static py pair(std::int64_t first, std::int64_t second) {
    return py{[=](formats::pickle_writer& out) { out.pair(first, second); }};
  }
  [[nodiscard]] std::string pickled() const {
    formats::pickle_writer out;
    write_(out);
    return std::move(out).finish();
  }

 private:
  using function = std::function<void(formats::pickle_writer&)>;
  explicit py(function write) : write_{std::move(write)} {}
  function write_;
};

using members = std::vector<py::member>;

py entry(const char* action, std::int64_t address, std::int64_t size, std::int64_t time,
         const members& more = {}) {
  members all{{"action", action}, {"addr", address}, {"size", size}, {"time_us", time}};
  all.insert(all.end(), more.begin(), more.end());
  return py::dict(all);
}

py frames(std::initializer_list<py> all) { return py::list(all); }
py frame(const char* name, const char* file, std::int64_t line) {
  return py::dict({{"name", name}, {"filename", file}, {"line", line}});
}

result<recording> read(const py& snapshot, const formats::input_limits& limits = {}) {
  return formats::read_torch_snapshot(snapshot.pickled(), "x", limits);
}
/// Of one device without segments.
result<recording> read_history(const std::vector<py>& history) {
  return read(
      py::dict({{"device_traces", py::list({py::list(history)})}, {"segments", py::list({})}}));
}

using enum trace_kind;

TEST(torch_snapshot, has_every_action_and_all_that_it_says) {
  const members more{{"stream", 7}, {"pool_id", py::pair(0, 3)}, {"user_metadata", "weights"}};
  const auto recorded =
      read_history(
          {entry("segment_alloc", 0x1000, 0x100, 1000, more),
           entry("alloc", 0x1000, 10, 1001,
                 {{"stream", 8}, {"frames", frames({frame("f", "a.py", 3)})}}),
           entry("free_requested", 0x1000, 10, 1002,
                 {{"stream", 7}, {"frames", frames({frame("g", "", 0), frame("f", "a.py", 3)})}}),
           entry("free_completed", 0x1000, 10, 1003, more),
           entry("segment_map", 0x2000, 0x200, 1004, {{"pool_id", py::pair(2, 0)}}),
           entry("segment_unmap", 0x2000, 0x200, 1005, {{"pool_id", py::pair(0, 3)}}),
           entry("segment_free", 0x1000, 0x100, 1006, {{"user_metadata", "cache"}}),
           entry("oom", 0x77, 1 << 30, 1007, more), entry("snapshot", 0, 0, 1008),
           entry("annotate", 0, 0, 1009, {{"user_metadata", "a remark"}}),
           entry("something new", 1, 2, 1010)})
          .value();
  EXPECT_EQ(
      recorded.events,
      (std::vector<trace_event>{
          {.time = 0, .address = 0x1000, .size = 0x100, .tag = 1, .pool = 1, .kind = reserve},
          {.time = 1000, .address = 0x1000, .size = 10, .stream = 1, .other = 1, .kind = allocate},
          {.time = 2000, .address = 0x1000, .size = 10, .other = 2, .kind = deallocate},
          {.time = 3000, .address = 0x1000, .size = 10, .tag = 1, .pool = 1, .kind = reusable},
          {.time = 4000, .address = 0x2000, .size = 0x200, .stream = 2, .pool = 2, .kind = reserve},
          {.time = 5000,
           .address = 0x2000,
           .size = 0x200,
           .stream = 2,
           .pool = 1,
           .kind = trace_kind::release},
          {.time = 5000, .pool = 1, .kind = pool_released},  // it had no more
          {.time = 6000,
           .address = 0x1000,
           .size = 0x100,
           .stream = 2,
           .tag = 2,
           .kind = trace_kind::release},
          {.time = 7000, .size = 1 << 30, .tag = 1, .pool = 1, .kind = out_of_memory},
          {.time = 8000, .other = 0, .kind = marker},
          {.time = 9000, .other = 1, .kind = marker}}));
  EXPECT_THAT(recorded.streams, ElementsAre(7, 8, 0));
  EXPECT_THAT(recorded.tags, ElementsAre("", "weights", "cache", "a remark"));
  EXPECT_THAT(recorded.pools, ElementsAre("", "pool 0,3", "pool 2,0"));
  EXPECT_THAT(recorded.texts, ElementsAre("snapshot", "a remark"));
  EXPECT_THAT(recorded.frames, ElementsAre("f at a.py:3", "g"));
  EXPECT_THAT(recorded.stacks, ElementsAre(ElementsAre(0), ElementsAre(1, 0)));
  EXPECT_EQ(recorded.device, "cuda:0");
  EXPECT_TRUE(recorded.real_addresses);
}

TEST(torch_snapshot, has_stacks_once_and_none_where_they_are_empty) {
  const py stack = frames({frame("f", "a.py", 1)});
  const auto recorded =
      read_history({entry("alloc", 1, 1, 0, {{"frames", stack}}),
                    entry("alloc", 2, 1, 0, {{"frames", frames({frame("f", "a.py", 2)})}}),
                    entry("alloc", 3, 1, 0, {{"frames", frames({})}}),
                    entry("alloc", 4, 1, 0, {{"frames", stack}})})
          .value();
  std::vector<std::uint32_t> stacks;
  for (const trace_event& each : recorded.events) stacks.push_back(each.other);
  EXPECT_THAT(stacks, ElementsAre(1, 2, 0, 1));
  EXPECT_THAT(recorded.frames, ElementsAre("f at a.py:1", "f at a.py:2"));
  EXPECT_THAT(recorded.stacks, ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(torch_snapshot, has_no_tag_of_names_that_are_too_long) {
  const std::string longest(255, 'x');
  const auto recorded =
      read_history({entry("oom", 0, 1, 0, {{"user_metadata", longest.c_str()}}),
                    entry("oom", 0, 1, 0, {{"user_metadata", (longest + "x").c_str()}})})
          .value();
  EXPECT_THAT(recorded.tags, ElementsAre("", longest));
  EXPECT_EQ(recorded.events.at(0).tag, 1);
  EXPECT_EQ(recorded.events.at(1).tag, 0);
}

TEST(torch_snapshot, has_streams_that_were_written_as_signed_numbers) {
  const auto recorded = read_history({entry("oom", 0, 1, 0, {{"stream", -2}})}).value();
  EXPECT_THAT(recorded.streams, ElementsAre(UINT64_MAX - 1));
}

TEST(torch_snapshot, lifts_times_that_go_back) {
  const auto recorded = read_history({entry("oom", 0, 1, 100), entry("oom", 0, 2, 105),
                                      entry("oom", 0, 3, 99), entry("oom", 0, 4, 106)})
                            .value();
  std::vector<std::uint64_t> times;
  for (const trace_event& each : recorded.events) times.push_back(each.time);
  EXPECT_THAT(times, ElementsAre(0, 5000, 5000, 6000));
}

TEST(torch_snapshot, rebuilds_what_was_there_before_its_history) {
  const auto recorded =
      read(
          py::dict({{"device_traces",
                     py::list({py::list(
                         {entry("free_completed", 0x9000, 9, 100),  // asked for before: left out
                          entry("free_requested", 0x2000, 20, 101, {{"stream", 7}}),
                          entry("free_completed", 0x2000, 20, 102),
                          entry("alloc", 0x2000, 30, 103,
                                {{"frames", frames({frame("forward", "model.py", 12)})}}),
                          entry("free_requested", 0x2000, 30, 104)})})},
                    {"segments",
                     py::list({py::dict(
                         {{"device", 0},
                          {"address", 0x1000},
                          {"stream", 9},
                          {"blocks",
                           py::list({py::dict({{"size", 0x1000},
                                               {"state", "active_allocated"},
                                               {"frames", frames({frame("load", "", 0)})}}),
                                     py::dict({{"size", 0x1000},
                                               {"state", "active_allocated"}}),  // in the history
                                     py::dict({{"size", 0x1000}, {"state", "inactive"}}),
                                     py::dict({{"size", 0x1000}, {"state", "active_pending_free"}}),
                                     py::dict({{"size", 0x1000},
                                               {"requested_size", 77},
                                               {"state", "active_allocated"}}),
                                     py::dict({{"address", 0x8000},
                                               {"size", 0x400},
                                               {"state", "active_allocated"}})})}})})}}))
          .value();
  EXPECT_EQ(
      recorded.events,
      (std::vector<trace_event>{
          {.address = 0x1000, .size = 0x1000, .other = 1, .kind = allocate},  // by address
          {.address = 0x2000, .size = 20, .stream = 1, .kind = allocate},
          {.address = 0x5000, .size = 77, .kind = allocate},
          {.address = 0x8000, .size = 0x400, .kind = allocate},
          {.other = 0, .kind = marker},
          {.time = 1000, .address = 0x2000, .size = 20, .stream = 1, .kind = deallocate},
          {.time = 2000, .address = 0x2000, .size = 20, .stream = 2, .kind = reusable},
          {.time = 3000, .address = 0x2000, .size = 30, .stream = 2, .other = 2, .kind = allocate},
          {.time = 4000, .address = 0x2000, .size = 30, .stream = 2, .kind = deallocate},
          {.time = 4000, .address = 0x2000, .size = 30, .stream = 2, .kind = reusable}}));
  EXPECT_THAT(recorded.streams, ElementsAre(9, 7, 0));
  EXPECT_THAT(recorded.texts, ElementsAre("what was there before the recording began"));
  EXPECT_THAT(recorded.frames, ElementsAre("load", "forward at model.py:12"));
}

/// A segment at the end of a snapshot, in one block.
py segment_at_end(std::int64_t address, std::int64_t size, const char* state, members more = {}) {
  more.insert(more.end(), {{"address", address},
                           {"total_size", size},
                           {"blocks", py::list({py::dict({{"size", size}, {"state", state}})})}});
  return py::dict(more);
}

TEST(torch_snapshot, rebuilds_what_was_reserved_before_its_history) {
  const auto recorded =
      read(py::dict(
               {{"device_traces",
                 py::list({py::list({entry("segment_alloc", 0x9000, 0x1000, 100),
                                     entry("segment_free", 0x5000, 0x2000, 101, {{"stream", 7}}),
                                     entry("segment_unmap", 0x1000, 0x400, 102),
                                     entry("segment_map", 0x1000, 0x400, 103),
                                     entry("segment_free", 0x9000, 0x1000, 104),
                                     entry("segment_alloc", 0x7000, 0x1000, 105)})})},
                {"segments", py::list({segment_at_end(0x1000, 0x2000, "inactive", {{"stream", 9}}),
                                       segment_at_end(0x7000, 0x1000, "inactive")})}}))
          .value();
  EXPECT_EQ(recorded.events,
            (std::vector<trace_event>{
                {.address = 0x1000, .size = 0x400, .stream = 0, .kind = reserve},
                {.address = 0x1400, .size = 0x1c00, .stream = 1, .kind = reserve},
                {.address = 0x5000, .size = 0x2000, .stream = 2, .kind = reserve},
                {.address = 0x9000, .size = 0x1000, .kind = reserve},
                {.time = 1000, .address = 0x5000, .size = 0x2000, .stream = 2, .kind = release},
                {.time = 2000, .address = 0x1000, .size = 0x400, .kind = release},
                {.time = 3000, .address = 0x1000, .size = 0x400, .kind = reserve},
                {.time = 4000, .address = 0x9000, .size = 0x1000, .kind = release},
                {.time = 5000, .address = 0x7000, .size = 0x1000, .kind = reserve}}));
  EXPECT_THAT(recorded.streams, ElementsAre(0, 9, 7));
}

TEST(torch_snapshot, says_when_a_private_pool_has_no_segments_left) {
  const members pool{{"pool_id", py::pair(0, 1)}};
  const auto recorded =
      read_history(
          {entry("segment_alloc", 0x1000, 64, 1, pool), entry("alloc", 0x1000, 64, 2, pool),
           entry("segment_alloc", 0x2000, 64, 3, pool), entry("segment_free", 0x2000, 64, 4, pool),
           entry("free_requested", 0x1000, 64, 5, pool),
           entry("segment_free", 0x1000, 64, 6, pool)})
          .value();
  ASSERT_EQ(recorded.events.size(), 7u);
  EXPECT_EQ(recorded.events.back(),
            (trace_event{.time = 5000, .pool = 1, .kind = trace_kind::pool_released}));
}

TEST(torch_snapshot, keeps_blocks_in_use_whose_frees_its_history_does_not_complete) {
  const auto recorded =
      read_history({entry("alloc", 0x1000, 10, 1), entry("alloc", 0x2000, 20, 1),
                    entry("free_requested", 0x1000, 10, 2), entry("free_requested", 0x2000, 20, 3),
                    entry("free_completed", 0x2000, 20, 3), entry("alloc", 0x3000, 30, 9)})
          .value();
  EXPECT_EQ(
      recorded.events.back(),
      (trace_event{.time = 8000, .address = 0x1000, .size = 10, .kind = trace_kind::reusable}));
  // Where it completes none, it does not know of it.
  const auto without =
      read_history({entry("alloc", 0x1000, 10, 1), entry("free_requested", 0x1000, 10, 2)}).value();
  EXPECT_EQ(without.events.size(), 2u);
}

TEST(torch_snapshot, takes_frees_as_requested_when_they_are_completed_where_it_says_no_more) {
  const auto recorded =
      read_history({entry("free_completed", 0x5000, 7, 1), entry("alloc", 0x1000, 10, 1),
                    entry("free_completed", 0x1000, 10, 4), entry("alloc", 0x1000, 10, 5),
                    entry("alloc", 0x2000, 20, 6), entry("free_completed", 0x2000, 20, 8)})
          .value();
  EXPECT_EQ(recorded.events,
            (std::vector<trace_event>{
                {.address = 0x5000, .size = 7, .kind = allocate},
                {.kind = trace_kind::marker},
                {.address = 0x5000, .size = 7, .kind = deallocate},
                {.address = 0x1000, .size = 10, .kind = allocate},
                {.time = 3000, .address = 0x1000, .size = 10, .kind = deallocate},
                {.time = 4000, .address = 0x1000, .size = 10, .kind = allocate},
                {.time = 5000, .address = 0x2000, .size = 20, .kind = allocate},
                {.time = 7000, .address = 0x2000, .size = 20, .kind = deallocate}}));
  // One request says that they are told, and a completion without one is of a free from before.
  const auto told =
      read_history({entry("alloc", 0x1000, 10, 1), entry("free_completed", 0x1000, 10, 4),
                    entry("alloc", 0x2000, 20, 6), entry("free_requested", 0x2000, 20, 8)})
          .value();
  EXPECT_EQ(told.events.size(), 3u);
  // Of blocks that the history did not allocate it is more likely that they were freed before it.
  EXPECT_EQ(read_history({entry("free_completed", 0x5000, 7, 1)}).value().events.size(), 0u);
}

TEST(torch_snapshot, chooses_the_device_by_what_was_live_though_frees_are_only_completed) {
  std::vector<py> often;
  for (std::int64_t time = 0; time < 4; ++time) {
    often.push_back(entry("alloc", 0x1000, 100, time));
    often.push_back(entry("free_completed", 0x1000, 100, time));
  }
  const auto recorded = read(py::dict(
      {{"device_traces", py::list({py::list(often), py::list({entry("alloc", 0x2000, 300, 1)})})},
       {"segments", py::list({})}}));
  EXPECT_EQ(recorded.value().device, "cuda:1");
}

TEST(torch_snapshot, knows_the_pools_of_blocks_from_before_its_history) {
  const auto recorded =
      read(py::dict(
               {{"device_traces",
                 py::list({py::list(
                     {entry("free_requested", 0x1000, 10, 100, {{"pool_id", py::pair(0, 1)}}),
                      entry("free_requested", 0x5000, 20, 101),
                      entry("segment_free", 0x5000, 0x1000, 102, {{"pool_id", py::pair(0, 2)}}),
                      entry("free_requested", 0x9000, 30, 103)})})},
                {"segments", py::list({segment_at_end(0x1000, 0x1000, "inactive",
                                                      {{"segment_pool_id", py::pair(0, 1)}}),
                                       segment_at_end(0x3000, 0x1000, "active_allocated",
                                                      {{"segment_pool_id", py::pair(0, 3)}})})}}))
          .value();
  std::map<std::uint64_t, std::string> pools;
  for (const trace_event& each : recorded.events)
    if (each.kind == allocate) pools[each.address] = recorded.pools[each.pool];
  EXPECT_EQ(pools,
            (std::map<std::uint64_t, std::string>{
                {0x1000, "pool 0,1"}, {0x3000, "pool 0,3"}, {0x5000, "pool 0,2"}, {0x9000, ""}}));
}

/// cuda:0 held 8 KiB once, cuda:1 64 bytes many times.
std::string large_and_busy_device() {
  std::vector<py> busy{entry("segment_alloc", 0x100, 64, 1)};
  for (int i = 0; i < 9; ++i) {
    busy.push_back(entry("alloc", 0x100, 64, 2 + i));
    busy.push_back(entry("free_requested", 0x100, 64, 2 + i));
  }
  const std::vector<py> large{
      entry("segment_alloc", 0x1000, 8192, 1), entry("alloc", 0x1000, 8192, 2),
      entry("free_requested", 0x1000, 8192, 3), entry("segment_free", 0x1000, 8192, 4)};
  return py::dict(
             {{"device_traces", py::list({py::list(large), py::list(busy)})},
              {"segments", py::list({segment_at_end(0x100, 64, "inactive", {{"device", 1}})})}})
      .pickled();
}

TEST(torch_snapshot, of_several_devices_says_which_is_read_and_reads_which_is_asked_for) {
  const std::string bytes = large_and_busy_device();
  std::string remark;
  const auto most = formats::read_torch_snapshot(bytes, "x", {}, {.remark = &remark}).value();
  EXPECT_EQ(most.device, "cuda:0");
  EXPECT_EQ(remark,
            "the snapshot has cuda:0 (at most 8 KiB), cuda:1 (at most 64 B); reading cuda:0");
  const auto chosen =
      formats::read_torch_snapshot(bytes, "x", {}, {.device = 1, .remark = &remark}).value();
  EXPECT_EQ(chosen.device, "cuda:1");
  EXPECT_EQ(chosen.events.size(), 19u);
  EXPECT_EQ(remark,
            "the snapshot has cuda:0 (at most 8 KiB), cuda:1 (at most 64 B); reading cuda:1");
  const auto missing = formats::read_torch_snapshot(bytes, "x", {}, {.device = 2});
  EXPECT_EQ(missing.code(), errc::invalid_argument);
  EXPECT_EQ(missing.error().detail(),
            "the snapshot has no device 2; it has cuda:0 (at most 8 KiB), cuda:1 (at most 64 B)");
}

TEST(torch_snapshot, of_one_device_needs_no_remark) {
  std::string remark;
  const std::string bytes =
      py::dict({{"device_traces", py::list({py::list({entry("alloc", 1, 1, 1)}), py::list({})})},
                {"segments", py::list({})}})
          .pickled();
  EXPECT_TRUE(formats::read_torch_snapshot(bytes, "x", {}, {.remark = &remark}));
  EXPECT_EQ(remark, "");
}

/// A dict of many members that the list of segments names again and again: short to write down.
std::string one_dict_many_times(int count) {
  const auto number = [](int value) {
    return std::string{"J"} + static_cast<char>(value & 255) + static_cast<char>(value >> 8 & 255) +
           std::string(2, 0);
  };
  std::string bytes = "\x80\x02}q";
  bytes += '\0';
  bytes += '(';
  for (int i = 0; i < count; ++i) bytes += number(i) + "K\x01";
  bytes += "u0](";
  for (int i = 0; i < count; ++i) bytes += std::string{"h"} + '\0';
  return bytes + "e.";
}

TEST(torch_snapshot, does_not_search_one_large_dict_again_and_again) {
  const auto refused = formats::read_torch_snapshot(one_dict_many_times(20'000), "x");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().detail(), HasSubstr("refer to each other too often"));
  EXPECT_TRUE(formats::read_torch_snapshot(one_dict_many_times(10), "x"));
}

TEST(torch_snapshot, mends_a_free_that_the_history_lacks) {
  const members second{{"stream", 8},
                       {"user_metadata", "b"},
                       {"pool_id", py::pair(1, 0)},
                       {"frames", frames({frame("f", "", 0)})}};
  const auto recorded =
      read_history({entry("alloc", 0x1000, 10, 0, {{"stream", 7}}),
                    entry("alloc", 0x1000, 20, 5, second), entry("free_completed", 0x1000, 10, 6)})
          .value();
  EXPECT_EQ(
      recorded.events,
      (std::vector<trace_event>{
          {.address = 0x1000, .size = 10, .kind = allocate},
          {.time = 5000, .address = 0x1000, .size = 10, .tag = 1, .pool = 1, .kind = deallocate},
          {.time = 5000,
           .address = 0x1000,
           .size = 20,
           .stream = 1,
           .other = 1,
           .tag = 1,
           .pool = 1,
           .kind = allocate}}));
}

TEST(torch_snapshot, leaves_out_what_is_freed_twice_or_reusable_without_a_free) {
  const auto recorded =
      read_history({entry("alloc", 1, 10, 0), entry("free_completed", 1, 10, 1),
                    entry("free_requested", 1, 10, 2), entry("free_requested", 1, 10, 3),
                    entry("free_completed", 1, 10, 4), entry("free_completed", 1, 10, 5)})
          .value();
  EXPECT_EQ(recorded.events,
            (std::vector<trace_event>{{.address = 1, .size = 10, .kind = allocate},
                                      {.time = 2000, .address = 1, .size = 10, .kind = deallocate},
                                      {.time = 4000, .address = 1, .size = 10, .kind = reusable}}));
}

/// Histories of three devices, of which the second has most events.
py several_devices(const py& annotations) {
  const auto segment = [](std::int64_t device, std::int64_t address) {
    return py::dict(
        {{"device", device},
         {"address", address},
         {"blocks", py::list({py::dict({{"size", 64}, {"state", "active_allocated"}})})}});
  };
  return py::dict(
      {{"device_traces",
        py::list({py::list({entry("alloc", 1, 1, 200)}),
                  py::list({entry("alloc", 2, 2, 100), entry("alloc", 3, 300, 110)}),
                  py::list({entry("alloc", 4, 4, 50), entry("alloc", 5, 5, 60),
                            entry("alloc", 6, 1, 70)})})},
       {"segments", py::list({segment(0, 0x100), segment(1, 0x200), segment(2, 0x300)})},
       {"external_annotations", annotations}});
}

TEST(torch_snapshot, is_of_the_device_with_most_bytes_and_its_annotations) {
  const auto remark = [](std::int64_t device, const char* stage, const char* name,
                         std::int64_t time) {
    return py::dict({{"device", device}, {"stage", stage}, {"name", name}, {"time_us", time}});
  };
  const auto recorded = read(several_devices(py::list(
                                 {remark(1, "END", "step", 110), remark(0, "START", "other", 105),
                                  remark(1, "START", "step", 100), remark(2, "END", "another", 104),
                                  remark(1, "START", "late", 120), remark(1, "START", "early", 90),
                                  remark(1, "START", "between", 109)})))
                            .value();
  EXPECT_EQ(recorded.device, "cuda:1");
  EXPECT_EQ(recorded.events,
            (std::vector<trace_event>{{.address = 0x200, .size = 64, .kind = allocate},
                                      {.other = 0, .kind = marker},
                                      {.other = 1, .kind = marker},
                                      {.other = 2, .kind = marker},
                                      {.address = 2, .size = 2, .kind = allocate},
                                      {.time = 9000, .other = 3, .kind = marker},
                                      {.time = 10'000, .other = 4, .kind = marker},
                                      {.time = 10'000, .address = 3, .size = 300, .kind = allocate},
                                      {.time = 20'000, .other = 5, .kind = marker}}));
  EXPECT_THAT(recorded.texts,
              ElementsAre("what was there before the recording began", "begin of early",
                          "begin of step", "begin of between", "end of step", "begin of late"));
}

TEST(torch_snapshot, a_time_that_nanoseconds_cannot_hold_is_the_last_there_is) {
  constexpr std::int64_t last = UINT64_MAX / 1000;
  const auto recorded =
      read_history({entry("alloc", 1, 1, 0), entry("alloc", 2, 1, last),
                    entry("alloc", 3, 1, last + 1), entry("alloc", 4, 1, INT64_MAX)})
          .value();
  std::vector<std::uint64_t> times;
  for (const trace_event& each : recorded.events) times.push_back(each.time);
  EXPECT_THAT(times, ElementsAre(0, UINT64_MAX / 1000 * 1000, UINT64_MAX, UINT64_MAX));
}

TEST(torch_snapshot, without_a_history_is_of_the_first_segments_device) {
  const py segments = py::list(
      {py::dict({{"device", 3},
                 {"address", 0x100},
                 {"blocks", py::list({py::dict({{"size", 64}, {"state", "active_allocated"}})})}}),
       py::dict({{"device", 0}, {"address", 0x200}}), py::dict({{"device", 3}})});
  const std::vector<trace_event> expected{{.address = 0x100, .size = 64, .kind = allocate},
                                          {.other = 0, .kind = marker}};
  for (const py& snapshot :
       {segments, py::dict({{"segments", segments}}),
        py::dict({{"segments", segments}, {"device_traces", py::list({})}}),
        py::dict({{"segments", segments}, {"device_traces", py::list({py::list({})})}})}) {
    const auto recorded = read(snapshot).value();
    EXPECT_EQ(recorded.device, "cuda:3");
    EXPECT_EQ(recorded.events, expected);
  }
}

TEST(torch_snapshot, of_nothing_is_of_the_first_device) {
  for (const py& snapshot :
       {py::list({}), py::dict({{"segments", py::list({})}}),
        py::dict({{"segments", py::list({})}, {"device_traces", py::list({})}}),
        py::dict({{"segments", py::list({})},
                  {"device_traces", py::list({py::list({}), py::list({})})}})}) {
    const auto recorded = read(snapshot).value();
    EXPECT_EQ(recorded.device, "cuda:0");
    EXPECT_TRUE(recorded.events.empty());
  }
  // Nor does a segment say of which it is.
  EXPECT_EQ(read(py::list({py::dict({{"address", 0x100}})})).value().device, "cuda:0");
}

TEST(torch_snapshot, with_a_history_is_of_its_device_whatever_the_segments_say) {
  const py segments = py::list({py::dict({{"device", 3}, {"address", 0x100}})});  // of no bytes
  const py traces = py::list({py::list({}), py::list({entry("alloc", 2, 2, 100)})});
  const auto recorded = read(py::dict({{"segments", segments}, {"device_traces", traces}})).value();
  EXPECT_EQ(recorded.device, "cuda:1");
  EXPECT_EQ(recorded.events,
            (std::vector<trace_event>{{.address = 2, .size = 2, .kind = allocate}}));
}

TEST(torch_snapshot, refuses_pickles_of_something_else) {
  const auto refusal = [](const py& snapshot) { return read(snapshot).error().detail(); };
  const std::string none = "not a PyTorch snapshot: ";
  EXPECT_EQ(refusal(1), none + "expected a list of segments");
  EXPECT_EQ(refusal(py::dict({})), none + "expected a list of segments");
  EXPECT_EQ(refusal(py::dict({{"segments", 1}})), none + "expected a list of segments");
  EXPECT_EQ(refusal(py::list({1})), none + "expected a dict for each segment");
  for (const py& wrong : {py{1}, py::dict({{"addr", 1}})})
    EXPECT_EQ(read_history({entry("oom", 0, 1, 0), wrong}).error().detail(),
              none + "entry 1 has no action");
  EXPECT_TRUE(read(py::list({}))) << "a bare list is segments";
  constexpr std::int64_t half = INT64_MAX;
  EXPECT_EQ(read_history(
                {entry("alloc", 1, half, 0), entry("alloc", 2, half, 0), entry("alloc", 3, 2, 0)})
                .error()
                .detail(),
            none + "the live bytes exceed the address space");
}

TEST(torch_snapshot, keeps_to_limits) {
  const py snapshot = py::dict(
      {{"segments", py::list({})},
       {"device_traces", py::list({py::list({entry("oom", 0, 1, 0), entry("oom", 0, 1, 0)})})}});
  EXPECT_EQ(read(snapshot, {.events = 2}).value().events.size(), 2u);
  const auto refused = read(snapshot, {.events = 1});
  EXPECT_EQ(refused.code(), errc::limit_exceeded);
  EXPECT_EQ(refused.error().detail(), "the snapshot has more events than weir reads");
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
  EXPECT_THAT(read.error().detail(), HasSubstr("too often"));
}

/// So many blocks, which are the annotations, too, and an entry with a stack of one frame.
std::string snapshot_with_blocks_as_annotations(int count) {
  const std::string shared{"h\0", 2};
  std::string bytes{"\x80\x04]\x94("};
  for (int i = 0; i < count; ++i) bytes += "}";
  bytes += "e0";  // they stay in the memo
  bytes +=
      "}(\x8c\x08"
      "segments](}(\x8c\x06"
      "blocks" +
      shared +
      "ue\x8c\x0d"
      "device_traces](](}(\x8c\x06"
      "action\x8c\x05"
      "alloc\x8c\x06"
      "frames](}euee\x8c\x14"
      "external_annotations" +
      shared + "u.";
  return bytes;
}

TEST(torch_snapshot, does_not_walk_on_behind_annotations_that_were_too_many) {
  const auto read = formats::read_torch_snapshot(snapshot_with_blocks_as_annotations(10), "x");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->stacks.size(), 1u);
  EXPECT_EQ(read->texts.size(), 10u);
  const auto refused = formats::read_torch_snapshot(snapshot_with_blocks_as_annotations(1000), "x");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().detail(),
            "not a PyTorch snapshot: its parts refer to each other too often");
}

/// A stack of a thousand frames, named by two thousand entries, as Python writes what is shared.
TEST(torch_snapshot, walks_once_through_a_stack_that_is_shared) {
  std::string bytes{"\x80\x04]\x94("};
  for (int i = 0; i < 1000; ++i) bytes += "}";
  bytes += "e0";  // the frames stay in the memo
  bytes +=
      "}(\x8c\x08"
      "segments]"
      "\x8c\x0d"
      "device_traces](](";
  std::string shared =
      "}(\x8c\x06"
      "action\x8c\x05"
      "alloc\x8c\x06"
      "framesh";
  shared.push_back('\0');
  for (int i = 0; i < 2000; ++i) bytes += shared + "u";
  bytes += "eeu.";
  const auto read = formats::read_torch_snapshot(bytes, "x");
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->stacks.size(), 1u);
  EXPECT_EQ(read->stacks[0], std::vector<std::uint32_t>(1000, 0));
  std::size_t allocations = 0;
  for (const trace_event& each : read->events) {
    if (each.kind != allocate) continue;
    EXPECT_EQ(each.other, 1u);
    ++allocations;
  }
  EXPECT_EQ(allocations, 2000u);
}

TEST(torch_snapshot, reads_back_what_it_exports) {
  const auto read =
      formats::read_recording(data_file("snapshots/gpt2_two_steps.expandable.snapshot.pickle.gz"))
          .value();
  const std::string bytes = formats::torch_snapshot_of(read);
  const auto again = formats::read_torch_snapshot(bytes, "x").value();
  EXPECT_TRUE(steps(again) == steps(read));
  EXPECT_EQ(again.texts, read.texts);  // a moment begins and ends
  // What only tells blocks apart gets places that do not overlap.
  const auto trace = formats::read_recording(data_file("traces/gpt2_two_steps.trace.gz")).value();
  const auto placed = formats::read_torch_snapshot(formats::torch_snapshot_of(trace), "x").value();
  EXPECT_TRUE(steps(placed) == steps(trace));
}

}  // namespace
}  // namespace weir::testing_support

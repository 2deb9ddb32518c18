// SPDX-License-Identifier: Apache-2.0
// Snapshots for torch's viewers: the history, and what it leaves.
#include <stdexcept>

#include "formats/memory_map.hpp"
#include "formats/pickle.hpp"
#include "formats/torch_snapshot.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

/// A part of a snapshot as text: the members of a dict in the order of `keys`.
class snapshot_view {
 public:
  explicit snapshot_view(const recording& recorded)
      : bytes_{formats::torch_snapshot_of(recorded)},
        tree_{formats::pickle::read(bytes_).value()} {}

  [[nodiscard]] const formats::pickle_value& at(const formats::pickle_value& dict,
                                                std::string_view key) const {
    const auto* const member = tree_.find(dict, key);
    if (member == nullptr) throw std::out_of_range{std::string{key}};
    return *member;
  }
  [[nodiscard]] const formats::pickle_value& at(std::string_view key) const {
    return at(tree_.root(), key);
  }
  [[nodiscard]] std::vector<std::string> lines(const formats::pickle_value& list,
                                               std::initializer_list<std::string_view> keys) const {
    std::vector<std::string> all;
    for (const auto& each : tree_.elements(list)) {
      std::string line;
      for (const std::string_view key : keys)
        if (const auto* const member = tree_.find(each, key)) line += text(*member) + " ";
      all.push_back(line);
    }
    return all;
  }
  [[nodiscard]] std::string text(const formats::pickle_value& value) const {
    if (const auto number = tree_.integer(value)) return std::to_string(*number);
    if (const auto word = tree_.text(value)) return std::string{*word};
    if (tree_.find(value, "name") != nullptr)
      return text(at(value, "name")) + "@" + text(at(value, "filename")) + ":" +
             text(at(value, "line"));
    if (value.type == formats::pickle_value::value_type::boolean)
      return value.bits != 0 ? "true" : "false";
    std::string list;
    for (const auto& each : tree_.elements(value)) list += (list.empty() ? "" : ",") + text(each);
    return "(" + list + ")";
  }
  [[nodiscard]] const formats::pickle& tree() const { return tree_; }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
  formats::pickle tree_;
};

recording with_pending_blocks() {
  using enum trace_kind;
  recording recorded;
  recorded.tags = {"", "weights"};
  recorded.pools = {"", "p", "q"};
  recorded.streams = {3, 7};
  recorded.threads = {1};
  recorded.texts = {"remark"};
  recorded.frames = {"run at run.cpp:70", "0x1234", "f at g at h:x", "only at file"};
  recorded.stacks = {{0, 1}, {2, 3, 9}};
  recorded.events = {{.time = 1000, .address = 0x1000, .size = 0x1000, .kind = reserve},
                     {.time = 2000,
                      .address = 0x1200,
                      .size = 500,
                      .extra = 512,
                      .stream = 1,
                      .other = 1,
                      .tag = 1,
                      .pool = 2,
                      .kind = allocate},
                     {.time = 3000, .address = 0x1600, .size = 100, .extra = 512, .kind = allocate},
                     {.time = 4000,
                      .address = 0x1600,
                      .size = 100,
                      .stream = 1,
                      .other = 2,
                      .kind = deallocate},  // and never reusable
                     {.time = 5000, .address = 0x1800, .size = 200, .extra = 512, .kind = allocate},
                     {.time = 6000, .address = 0x1800, .size = 200, .kind = deallocate},
                     {.time = 7000, .address = 0x1800, .size = 200, .kind = reusable},
                     {.time = 7500, .other = 0, .kind = marker},
                     {.time = 7500, .other = 1, .kind = marker},  // whose text is missing
                     {.time = 8000,
                      .size = 1 << 30,
                      .stream = 1,
                      .tag = 2,  // which the table does not have
                      .pool = 1,
                      .kind = out_of_memory},
                     {.time = 9000, .address = 0x1f00, .size = 0x100, .kind = trace_kind::release}};
  return recorded;
}

TEST(torch_export, has_the_history) {
  const snapshot_view view{with_pending_blocks()};
  const auto& devices = view.tree().elements(view.at("device_traces"));
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_THAT(
      view.lines(devices[0], {"action", "addr", "device_free", "size", "stream", "time_us",
                              "user_metadata", "pool_id", "compile_context", "frames"}),
      ElementsAre("segment_map 4096 4096 3 1  (0,0) N/A ",
                  "alloc 4608 500 7 2 weights (0,2) N/A (run@run.cpp:70,0x1234@:0) ",
                  "alloc 5632 100 3 3  (0,0) N/A ",
                  "free_requested 5632 100 7 4  (0,0) N/A (f at g@h:x:0,only@file:0) ",
                  "free_completed 5632 100 7 4  (0,0) N/A ",  // it does not say: at once
                  "alloc 6144 200 3 5  (0,0) N/A ", "free_requested 6144 200 3 6  (0,0) N/A ",
                  "free_completed 6144 200 3 7  (0,0) N/A ", "oom 0 1073741824 7 8  (0,1) N/A ",
                  "segment_unmap 7936 256 3 9  (0,0) N/A "));
}

TEST(torch_export, has_what_is_live_at_the_end) {
  const snapshot_view view{with_pending_blocks()};
  const auto& segments = view.tree().elements(view.at("segments"));
  ASSERT_EQ(segments.size(), 1u);
  EXPECT_THAT(
      view.lines(view.at("segments"), {"device", "address", "total_size", "allocated_size",
                                       "active_size", "requested_size", "stream", "segment_type",
                                       "segment_pool_id", "is_expandable", "frames"}),
      ElementsAre("0 4096 3840 512 512 500 3 large (0,0) true () "));
  EXPECT_THAT(view.lines(view.at(segments[0], "blocks"),
                         {"address", "size", "requested_size", "state", "frames"}),
              ElementsAre("4096 512 0 inactive () ",
                          "4608 512 500 active_allocated (run@run.cpp:70,0x1234@:0) ",
                          "5120 2816 0 inactive () "));
}

TEST(torch_export, has_what_is_pending_at_the_end) {
  recording recorded = with_pending_blocks();
  // The block's free is completed behind the last event that is exported.
  recorded.events.push_back({.time = 9000, .address = 0x1600, .kind = trace_kind::reusable});
  formats::memory_map map{recorded};
  for (std::size_t i = 0; i + 1 < recorded.events.size(); ++i) map.apply(recorded.events[i]);
  ASSERT_TRUE(map.blocks().contains(0x1600));
  EXPECT_TRUE(map.blocks().at(0x1600).pending);
}

/// What a replay needs of a recording comes back from its export.
TEST(torch_export, keeps_frees_on_other_streams_recorded_streams_and_released_pools) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {3, 7};
  recorded.pools = {"", "pool 0,1"};
  recorded.threads = {0};
  recorded.events = {
      {.time = 0, .address = 0x1000, .size = 512, .pool = 1, .kind = allocate},
      {.time = 1000, .address = 0x2000, .size = 512, .kind = allocate},
      {.time = 2000, .address = 0x2000, .stream = 1, .kind = record_stream},
      {.time = 3000, .address = 0x2000, .size = 512, .kind = deallocate},
      {.time = 4000, .address = 0x1000, .size = 512, .stream = 1, .pool = 1, .kind = deallocate},
      {.time = 5000, .pool = 1, .kind = pool_released},
      {.time = 6000, .address = 0x3000, .size = 512, .kind = allocate},
      {.time = 7000, .address = 0x3000, .size = 512, .stream = 1, .kind = deallocate},
      {.time = 7000, .address = 0x3000, .size = 512, .kind = reusable}};
  const auto again =
      formats::read_torch_snapshot(formats::torch_snapshot_of(recorded), "x").value();
  std::vector<trace_event> events;
  for (const trace_event& each : again.events)
    if (each.kind != reserve && each.kind != trace_kind::release) events.push_back(each);
  EXPECT_EQ(events, recorded.events);
  EXPECT_EQ(again.streams, recorded.streams);
  EXPECT_EQ(again.pools, recorded.pools);
}

TEST(torch_export, keeps_markers_as_they_are) {
  using enum trace_kind;
  recording recorded;
  recorded.texts = {"step 1", "begin of step", "end of step", "begin of ", "end of x"};
  for (std::uint32_t i = 0; i < 5; ++i)
    recorded.events.push_back({.time = 1000 * i, .other = i, .kind = marker});
  std::string bytes = formats::torch_snapshot_of(recorded);
  for (int round = 0; round < 3; ++round) {
    const auto again = formats::read_torch_snapshot(bytes, "x").value();
    EXPECT_EQ(again.texts, recorded.texts);
    bytes = formats::torch_snapshot_of(again);
  }
}

TEST(torch_export, has_remarks_and_settings) {
  const snapshot_view view{with_pending_blocks()};
  EXPECT_THAT(view.lines(view.at("external_annotations"), {"stage", "name", "device", "time_us"}),
              ElementsAre("START remark 0 7 ", "END remark 0 7 "));
  const auto& settings = view.at("allocator_settings");
  EXPECT_EQ(view.text(view.at(settings, "PYTORCH_CUDA_ALLOC_CONF")), "");
  EXPECT_EQ(view.text(view.at(settings, "max_split_size")), "-1");
  EXPECT_EQ(view.at(settings, "garbage_collection_threshold").bits, 0u);
  EXPECT_EQ(view.text(view.at(settings, "expandable_segments")), "true");
}

TEST(torch_export, has_long_lists_in_batches) {
  recording recorded;
  recorded.streams = {0};
  recorded.texts = {"x"};
  for (std::uint64_t i = 0; i < 2500; ++i)
    recorded.events.push_back(
        {.address = 0x10000 * (i + 1), .size = 512, .kind = trace_kind::allocate});
  recorded.events.resize(recorded.events.size() + 1000, {.kind = trace_kind::marker});
  const snapshot_view view{recorded};
  EXPECT_EQ(view.tree().elements(view.tree().elements(view.at("device_traces"))[0]).size(), 5000u);
  EXPECT_EQ(view.tree().elements(view.at("segments")).size(), 2500u);
  EXPECT_EQ(view.tree().elements(view.at("external_annotations")).size(), 2000u);
  // Before each thousandth item another batch of dicts begins.
  std::size_t batches = 0;
  for (std::size_t at = view.bytes().find("e(}("); at != std::string::npos;
       at = view.bytes().find("e(}(", at + 1))
    ++batches;
  EXPECT_EQ(batches, 5u + 2 + 2);
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Traces, recorders and live pages as text.
#include <gtest/gtest.h>

#include <sstream>

#include "weir/trace/live_page.hpp"
#include "weir/trace/recorder.hpp"
#include "weir/trace/trace.hpp"

namespace weir { namespace {

TEST(trace_text, an_event_has_the_fields_of_its_kind_that_are_not_zero) {
  EXPECT_EQ(to_string(trace_event{.time = 1'500'000'000,
                                  .address = 0x7f00,
                                  .size = 1000,
                                  .extra = 1024,
                                  .stream = 1,
                                  .other = 7,
                                  .thread = 2,
                                  .tag = 3,
                                  .pool = 4,
                                  .kind = trace_kind::allocate}),
            "1.500000000 s allocate 0x7f00 size 1000 rounded 1024 stream 1 stack 7 thread 2 tag 3 "
            "pool 4");
  EXPECT_EQ(
      to_string(trace_event{
          .time = 20, .address = 0x2000, .size = 512, .extra = 0x1000, .kind = trace_kind::move}),
      "0.000000020 s move 0x2000 from 0x1000 size 512");
  EXPECT_EQ(to_string(trace_event{.stream = 1, .other = 2, .kind = trace_kind::wait}),
            "0.000000000 s wait stream 1 for stream 2");
  EXPECT_EQ(to_string(trace_event{.kind = trace_kind::marker}), "0.000000000 s marker text 0");
}

TEST(trace_text, every_kind_has_a_name) {
  const char* const names[] = {"allocate",      "deallocate",    "reusable",    "record_stream",
                               "wait",          "reserve",       "move",        "release",
                               "out_of_memory", "capture_begin", "capture_end", "pool_created",
                               "pool_released", "limit",         "marker",      "suspended",
                               "resumed"};
  unsigned number = 0;
  for (const char* const each : names) {
    EXPECT_EQ(name(static_cast<trace_kind>(++number)), each);
    EXPECT_EQ(to_string(static_cast<trace_kind>(number)), each);
  }
  EXPECT_EQ(static_cast<trace_kind>(number), trace_kind::resumed);
  EXPECT_EQ(name(trace_kind{}), "");
}

TEST(trace_text, a_kind_that_does_not_exist_has_its_number) {
  EXPECT_EQ(to_string(trace_kind::out_of_memory), "out_of_memory");
  EXPECT_EQ(to_string(static_cast<trace_kind>(77)), "kind 77");
}

TEST(trace_text, a_recording_has_its_counts_and_its_damage) {
  recording recorded;
  EXPECT_EQ(to_string(recorded), "recording: 0 events, 0 streams, 0 threads");
  recorded.program = "train";
  recorded.events.resize(3);
  recorded.streams = {0, 7};
  recorded.threads = {1};
  EXPECT_EQ(to_string(recorded), "train: 3 events, 2 streams, 1 threads");
  recorded.dropped = 5;
  recorded.damage = trace_damage{4096, "a frame's checksum is wrong"};
  EXPECT_EQ(to_string(recorded),
            "train: 3 events, 2 streams, 1 threads, 5 dropped, damaged at byte 4096: a frame's "
            "checksum is wrong");
  EXPECT_EQ(to_string(recorded_peak{"balanced", bytes{1024}, bytes{2048}}),
            "balanced: 1 KiB requested, 2 KiB reserved");
}

TEST(trace_text, stats_and_views_are_written_to_streams) {
  std::ostringstream out;
  out << recorder_stats{.written = 12, .dropped = 1, .threads = 2, .file_size = bytes{2048}};
  EXPECT_EQ(out.str(), "written 12, dropped 1, threads 2, file_size 2 KiB");

  EXPECT_EQ(to_string(live_tag{}), "name (no tag), requested 0 B (peak 0 B), blocks 0");
  EXPECT_EQ(to_string(live_view{}),
            "process 0, device 0, card unknown, device_total 0 B, updates 0\n" +
                to_string(memory_stats{}));
  live_view view;
  view.process = 9;
  view.device_total = bytes{4096};
  view.updates = 3;
  view.tags = {{"weights", {bytes{512}, bytes{1024}}, 2}};
  view.streams = {{stream_id{7}, bytes{512}, bytes{1024}}};
  out.str("");
  out << view;
  EXPECT_EQ(out.str(), "process 9, device 0, card unknown, device_total 4 KiB, updates 3\n" +
                           to_string(memory_stats{}) +
                           "\nname weights, requested 512 B (peak 1 KiB), blocks 2"
                           "\nstream 7, live 512 B, bound 1 KiB");
}

}  // namespace
}  // namespace weir

// SPDX-License-Identifier: Apache-2.0
// Two recordings compared.
#include "replay/diff.hpp"

#include <gtest/gtest.h>

#include "replay/traces.hpp"

namespace weir::replay { namespace {

using groups = std::map<std::string, holding>;

recording tagged(std::uint64_t cache_size) {
  trace_event weights = allocate(1, 100, 3000);
  weights.tag = 1;
  weights.other = 1;
  trace_event cache = allocate(2, 200, cache_size);
  cache.tag = 2;
  cache.other = 2;
  recording recorded_run =
      recording_of({weights, cache, allocate(3, 300, 600), event_at(4, trace_kind::deallocate, 200),
                    allocate(5, 400, 100), event_at(6, trace_kind::out_of_memory, 0)});
  recorded_run.tags = {"", "weights", "kv cache"};
  recorded_run.frames = {"load at model.cpp:7", "grow at cache.cpp:9", "main at main.cpp:1"};
  recorded_run.stacks = {{0, 2}, {1, 2}};
  return recorded_run;
}

TEST(summary, is_of_the_moment_at_which_most_was_held) {
  const peak_summary summary = summarize(tagged(8192));
  EXPECT_EQ((holding{11'792, 3}), summary.live);
  EXPECT_EQ(3u, summary.time);
  EXPECT_EQ((groups{{"(no tag)", {600, 1}}, {"kv cache", {8192, 1}}, {"weights", {3000, 1}}}),
            summary.by_tag);
  EXPECT_EQ((groups{{"2 KiB to 4 KiB", {3000, 1}},
                    {"512 B to 1 KiB", {600, 1}},
                    {"8 KiB to 16 KiB", {8192, 1}}}),
            summary.by_size);
  EXPECT_EQ((groups{{"(no stack)", {600, 1}},
                    {"grow at cache.cpp:9", {8192, 1}},
                    {"load at model.cpp:7", {3000, 1}}}),
            summary.by_site);
  EXPECT_EQ(4u, summary.allocations);
  EXPECT_EQ(11'892u, summary.allocated_bytes);
  EXPECT_EQ(1u, summary.out_of_memory);
  EXPECT_EQ(0u, summary.reserved_peak);
}

TEST(summary, of_two_is_compared_figure_by_figure) {
  std::string text;
  for (const compared_figure& each : compare(summarize(tagged(8192)), summarize(tagged(100)))) {
    text += std::string{each.title} + " (" + std::string{each.key} +
            "): " + std::to_string(each.before) + (each.is_size ? " B, " : ", ") +
            std::to_string(each.after) + "\n";
  }
  EXPECT_EQ(text,
            "bytes at the peak (requested_peak): 11792 B, 3700\n"
            "blocks at the peak (blocks_at_peak): 3, 3\n"
            "reserved at most (reserved_peak): 0 B, 0\n"
            "allocations (allocs): 4, 4\n"
            "bytes allocated (allocated_bytes): 11892 B, 3800\n"
            "out of memory (ooms): 1, 1\n");
}

TEST(summary, is_of_the_first_of_equal_peaks) {
  trace_event first = allocate(1, 100, 1000);
  first.tag = 1;
  trace_event second = allocate(3, 200, 1000);
  second.tag = 2;
  recording twice = recording_of({first, event_at(2, trace_kind::deallocate, 100), second,
                                  event_at(4, trace_kind::marker, 0)});
  twice.tags = {"", "first", "second"};
  const peak_summary summary = summarize(twice);
  EXPECT_EQ(1u, summary.time);
  EXPECT_EQ((groups{{"first", {1000, 1}}}), summary.by_tag);
}

TEST(summary, adds_up_what_is_of_one_kind) {
  const peak_summary summary =
      summarize(recording_of({allocate(1, 1, 1024), allocate(2, 2, 2047), allocate(3, 3, 2048)}));
  EXPECT_EQ((holding{5119, 3}), summary.live);
  EXPECT_EQ((groups{{"1 KiB to 2 KiB", {3071, 2}}, {"2 KiB to 4 KiB", {2048, 1}}}),
            summary.by_size);
  EXPECT_EQ((groups{{"(no tag)", {5119, 3}}}), summary.by_tag);
}

TEST(summary, has_classes_for_all_sizes) {
  const std::uint64_t large = std::uint64_t{1} << 62;
  const auto class_of = [](std::uint64_t size) {
    recording recorded_run = recording_of({allocate(1, 100, size)});
    // Where nothing is held there is no peak.
    if (size == 0) recorded_run.events.push_back(allocate(2, 200, 3));
    return summarize(recorded_run).by_size.begin()->first;
  };
  EXPECT_EQ("0 B", class_of(0));
  EXPECT_EQ("1 B to 2 B", class_of(1));
  EXPECT_EQ("4 EiB to 8 EiB", class_of(large));
  EXPECT_EQ("from 8 EiB", class_of(2 * large));
}

TEST(summary, knows_no_tag_and_no_stack_where_tables_lack_them) {
  trace_event stranger = allocate(1, 100, 10);
  stranger.tag = 1;
  stranger.other = 3;
  trace_event empty = allocate(2, 200, 20);
  empty.other = 1;
  trace_event frameless = allocate(3, 300, 30);
  frameless.other = 2;
  recording recorded_run = recording_of({stranger, empty, frameless});
  recorded_run.tags = {""};
  recorded_run.frames = {"main"};
  recorded_run.stacks = {{}, {1}};
  const peak_summary summary = summarize(recorded_run);
  EXPECT_EQ((groups{{"(no tag)", {60, 3}}}), summary.by_tag);
  EXPECT_EQ((groups{{"(no stack)", {60, 3}}}), summary.by_site);
}

TEST(summary, takes_an_address_that_comes_again_for_another_block) {
  const peak_summary summary =
      summarize(recording_of({allocate(1, 100, 10), allocate(2, 100, 30), allocate(3, 200, 5),
                              event_at(4, trace_kind::deallocate, 300), allocate(5, 300, 1)}));
  EXPECT_EQ((holding{36, 3}), summary.live);
  EXPECT_EQ(5u, summary.time);
  EXPECT_EQ(46u, summary.allocated_bytes);
}

TEST(summary, takes_only_what_ends_a_block_for_its_end) {
  // The allocator's own memory has the address of its first block.
  for (const trace_kind kind :
       {trace_kind::reusable, trace_kind::record_stream, trace_kind::reserve, trace_kind::release,
        trace_kind::out_of_memory, trace_kind::marker}) {
    const peak_summary summary = summarize(recording_of(
        {allocate(1, 100, 10), event_at(2, kind, 100), allocate(3, 200, 5),
         event_at(4, trace_kind::deallocate, 100), event_at(5, trace_kind::deallocate, 200)}));
    EXPECT_EQ((holding{15, 2}), summary.live) << static_cast<int>(kind);
    EXPECT_EQ(3u, summary.time);
    EXPECT_EQ(2u, summary.allocations);
    EXPECT_EQ(kind == trace_kind::out_of_memory ? 1u : 0u, summary.out_of_memory);
  }
}

TEST(summary, of_nothing_is_nothing) {
  const peak_summary summary = summarize(recording{});
  EXPECT_EQ(0u, summary.live.bytes);
  EXPECT_EQ(0u, summary.live.blocks);
  EXPECT_EQ(0u, summary.time);
  EXPECT_TRUE(summary.by_tag.empty());
  EXPECT_TRUE(summary.by_size.empty());
  EXPECT_TRUE(summary.by_site.empty());
  EXPECT_EQ(0u, summary.allocations);
  EXPECT_EQ(0u, summary.allocated_bytes);
  EXPECT_EQ(0u, summary.reserved_peak);
  EXPECT_EQ(0u, summary.out_of_memory);
}

TEST(summary, of_what_holds_no_bytes_has_no_moment) {
  const peak_summary summary =
      summarize(recording_of({event_at(5, trace_kind::marker, 0), allocate(6, 100, 0),
                              event_at(7, trace_kind::deallocate, 200)}));
  EXPECT_EQ((holding{0, 0}), summary.live);
  EXPECT_EQ(0u, summary.time);
  EXPECT_TRUE(summary.by_size.empty());
  EXPECT_EQ(1u, summary.allocations);
}

TEST(summary, takes_what_was_reserved_from_the_recording) {
  trace_event more = event_at(1, trace_kind::reserve, 1);
  more.size = 100;
  trace_event less = event_at(2, trace_kind::release, 1);
  less.size = 60;
  EXPECT_EQ(140u, summarize(recording_of({more, less, more, less})).reserved_peak);
  EXPECT_EQ(100u, summarize(recording_of({less, more, less, less})).reserved_peak);
  // Or from its allocator's own counters, where it has no such events.
  recording counted = recording_of({allocate(1, 100, 10)});
  counted.peaks = {{"torch-default", bytes{10}, bytes{20}}, {"balanced", bytes{10}, bytes{11}}};
  EXPECT_EQ(20u, summarize(counted).reserved_peak);
  counted.events.push_back(more);
  EXPECT_EQ(100u, summarize(counted).reserved_peak);
}

/// "name: before -> after".
std::vector<std::string> texts(const std::vector<changed_group>& changed) {
  const auto text = [](const holding& held) {
    return std::to_string(held.bytes) + "/" + std::to_string(held.blocks);
  };
  std::vector<std::string> all;
  for (const changed_group& each : changed)
    all.push_back(each.name + ": " + text(each.before) + " -> " + text(each.after));
  return all;
}

TEST(changes, begin_with_what_grew_most) {
  const groups before{{"a", {10, 1}}, {"b", {20, 2}}, {"c", {30, 3}}, {"e", {5, 5}}, {"g", {7, 7}}};
  const groups after{{"a", {10, 1}}, {"b", {25, 2}}, {"c", {10, 3}},
                     {"d", {9, 1}},  {"e", {5, 6}},  {"f", {9, 2}}};
  const auto changed = changes(before, after);
  EXPECT_EQ((std::vector<std::string>{"d: 0/0 -> 9/1", "f: 0/0 -> 9/2", "b: 20/2 -> 25/2",
                                      "e: 5/5 -> 5/6", "g: 7/7 -> 0/0", "c: 30/3 -> 10/3"}),
            texts(changed));
  EXPECT_EQ(9, changed.front().growth());
  EXPECT_EQ(-20, changed.back().growth());
}

TEST(changes, are_found_between_two_runs) {
  const peak_summary before = summarize(tagged(8192));
  const peak_summary after = summarize(tagged(16'384));
  EXPECT_EQ((std::vector<std::string>{"kv cache: 8192/1 -> 16384/1"}),
            texts(changes(before.by_tag, after.by_tag)));
  EXPECT_EQ((std::vector<std::string>{"16 KiB to 32 KiB: 0/0 -> 16384/1",
                                      "8 KiB to 16 KiB: 8192/1 -> 0/0"}),
            texts(changes(before.by_size, after.by_size)));
}

TEST(changes, between_equals_are_none) {
  const peak_summary summary = summarize(recorded("gpt2_two_steps"));
  EXPECT_TRUE(changes(summary.by_size, summary.by_size).empty());
  EXPECT_EQ(13'594'206'920u, summary.live.bytes);
}

TEST(diff, a_tag_called_as_untagged_memory_is_another_group) {
  recording recorded = recording_of({allocate(1, 100, 64), allocate(2, 200, 32)});
  recorded.tags = {"", "(no tag)"};
  recorded.events[1].tag = 1;
  EXPECT_EQ((std::map<std::string, holding>{{"(no tag)", {32, 1}}, {"((no tag))", {64, 1}}}),
            summarize(recorded).by_tag);
}

}  // namespace
}  // namespace weir::replay

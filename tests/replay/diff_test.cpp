// Two recordings compared.
#include "replay/diff.hpp"

#include <gtest/gtest.h>

#include "replay/traces.hpp"

namespace weir::replay {
namespace {

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
  EXPECT_EQ((holding{8192, 1}), summary.by_tag.at("kv cache"));
  EXPECT_EQ((holding{600, 1}), summary.by_tag.at("(no tag)"));
  EXPECT_EQ((holding{3000, 1}), summary.by_size.at("2 KiB to 4 KiB"));
  EXPECT_EQ((holding{8192, 1}), summary.by_site.at("grow at cache.cpp:9"));
  EXPECT_EQ((holding{600, 1}), summary.by_site.at("(no stack)"));
  EXPECT_EQ(4u, summary.allocations);
  EXPECT_EQ(11'892u, summary.allocated_bytes);
  EXPECT_EQ(1u, summary.out_of_memory);
  EXPECT_EQ(0u, summary.reserved_peak);
}

TEST(summary, of_nothing_is_nothing) {
  const peak_summary summary = summarize(recording{});
  EXPECT_EQ(holding{}, summary.live);
  EXPECT_TRUE(summary.by_tag.empty());
}

TEST(summary, takes_what_was_reserved_from_the_recording) {
  trace_event more = event_at(1, trace_kind::reserve, 1);
  more.size = 100;
  trace_event less = event_at(2, trace_kind::release, 1);
  less.size = 60;
  EXPECT_EQ(140u, summarize(recording_of({more, less, more, less})).reserved_peak);
}

TEST(changes, begin_with_what_grew_most) {
  const peak_summary before = summarize(tagged(8192));
  const peak_summary after = summarize(tagged(16'384));
  const auto tags = changes(before.by_tag, after.by_tag);
  ASSERT_EQ(1u, tags.size());
  EXPECT_EQ("kv cache", tags[0].name);
  EXPECT_EQ(8192, tags[0].growth());
  const auto sizes = changes(before.by_size, after.by_size);
  ASSERT_EQ(2u, sizes.size());
  EXPECT_EQ("16 KiB to 32 KiB", sizes[0].name);
  EXPECT_EQ("8 KiB to 16 KiB", sizes[1].name);
  EXPECT_EQ(-8192, sizes[1].growth());
}

TEST(changes, between_equals_are_none) {
  const peak_summary summary = summarize(recorded("gpt2_two_steps"));
  EXPECT_TRUE(changes(summary.by_size, summary.by_size).empty());
  EXPECT_EQ(13'594'206'920u, summary.live.bytes);
}

}  // namespace
}  // namespace weir::replay

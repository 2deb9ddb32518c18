// SPDX-License-Identifier: Apache-2.0
// Stacks: the frames of the caller, by name, each stack once.
#include "trace/stacks.hpp"

#include <dlfcn.h>
#include <execinfo.h>

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/scratch.hpp"
#include "weir/trace/recorder.hpp"
#include "weir/trace/trace_file.hpp"

namespace {

using return_addresses = std::vector<void*>;

/// The caller's own stack without the frame of this function.
[[gnu::noinline]] return_addresses walk() {
  return_addresses frames(64);
  frames.resize(static_cast<std::size_t>(backtrace(frames.data(), 64)));
  const auto own = std::find(frames.begin(), frames.end(), __builtin_return_address(0));
  return {own, frames.end()};
}

}  // namespace

// By names that a program's table of symbols has.

#ifdef __clang__
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"  // C never calls them
#endif

extern "C" [[gnu::noinline, gnu::visibility("default")]] return_addresses weir_test_send(
    weir::event_sink& sink, const weir::memory_event& event) {
  sink.on_event(event);
  return walk();
}

extern "C" [[gnu::noinline, gnu::visibility("default")]] std::size_t weir_test_descend(
    weir::event_sink& sink, const weir::memory_event& event, int levels) {
  if (levels == 0) return weir_test_send(sink, event).size();
  return weir_test_descend(sink, event, levels - 1) + 1;
}

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using trace::describe_address;
using trace::describe_frame;
using namespace weir::literals;

class stacks_test : public ::testing::Test {
 protected:
  recording stop_and_read() {
    EXPECT_TRUE(recorder_->close());
    return read_trace(path_).value();
  }
  /// The frames of a stack by its number plus one, as an event has it.
  static std::vector<std::string> frames_of(const recording& read, std::uint32_t stack) {
    std::vector<std::string> frames;
    for (const std::uint32_t each : read.stacks.at(stack - 1)) frames.push_back(read.frames[each]);
    return frames;
  }

  scratch_folder folder_;
  std::string path_ = folder_.path("run.weirtrace");
  std::unique_ptr<weir::recorder> recorder_ =
      weir::recorder::start(path_, {.stacks = true}).value();
};

constexpr memory_event allocation{
    .kind = memory_event_kind::allocate, .address = 512, .size = 64, .rounded = 512};
constexpr memory_event deallocation{
    .kind = memory_event_kind::deallocate, .address = 512, .size = 64, .rounded = 512};

TEST_F(stacks_test, begin_with_who_sent_the_event_and_go_on_to_the_programs_start) {
  const return_addresses callers = weir_test_send(*recorder_, allocation);
  const auto read = stop_and_read();
  ASSERT_EQ(read.stacks.size(), 1u);
  const auto frames = frames_of(read, 1);
  ASSERT_EQ(frames.size(), callers.size());
  EXPECT_THAT(frames[0], MatchesRegex("weir_test_send\\+0x[0-9a-f]+ at .+"));
  // The next is this very function; from there on both walks went the same way.
  for (std::size_t i = 1; i < callers.size(); ++i)
    EXPECT_EQ(frames[i], describe_frame(callers[i])) << i;
}

TEST_F(stacks_test, are_kept_once_and_carried_by_allocations_and_frees_alone) {
  for (int i = 0; i < 3; ++i) {
    weir_test_send(*recorder_, allocation);
    weir_test_send(*recorder_, deallocation);
    ASSERT_TRUE(recorder_->flush());
  }
  recorder_->on_event({.kind = memory_event_kind::reserve, .address = 1 << 20, .size = 64});
  recorder_->on_event(
      {.kind = memory_event_kind::wait, .stream = stream_id{3}, .other = stream_id{9}});
  const auto read = stop_and_read();
  std::vector<std::uint32_t> stacks;
  for (const trace_event& each : read.events) stacks.push_back(each.other);
  EXPECT_EQ(stacks, (std::vector<std::uint32_t>{1, 2, 1, 2, 1, 2, 0, 2}));
  EXPECT_EQ(read.streams.at(2), 9u);  // the wait's
  // Both were sent from one place, called from two: one frame differs.
  ASSERT_EQ(read.stacks.size(), 2u);
  const auto first = frames_of(read, 1);
  const auto second = frames_of(read, 2);
  ASSERT_EQ(first.size(), second.size());
  EXPECT_NE(first[1], second[1]);
  EXPECT_EQ(read.frames.size(), first.size() + 1);
  EXPECT_EQ(first[0], second[0]);
  for (std::size_t i = 2; i < first.size(); ++i) EXPECT_EQ(first[i], second[i]) << i;
}

TEST_F(stacks_test, that_are_deep_keep_their_innermost_frames) {
  weir_test_descend(*recorder_, allocation, 100);
  const auto frames = frames_of(stop_and_read(), 1);
  EXPECT_GE(frames.size(), 40u);
  EXPECT_LE(frames.size(), 48u);
  EXPECT_THAT(frames.front(), MatchesRegex("weir_test_send\\+.*"));
  EXPECT_THAT(frames[1], MatchesRegex("weir_test_descend\\+.*"));
  EXPECT_EQ(frames[2], frames.back());
}

TEST(recorded_stacks, are_none_where_nobody_asked) {
  const scratch_folder folder;
  auto recorder = weir::recorder::start(folder.path("run.weirtrace")).value();
  weir_test_send(*recorder, allocation);
  ASSERT_TRUE(recorder->close());
  const auto read = read_trace(folder.path("run.weirtrace")).value();
  EXPECT_TRUE(read.stacks.empty());
  EXPECT_TRUE(read.frames.empty());
  ASSERT_EQ(read.events.size(), 1u);
  EXPECT_EQ(read.events[0].other, 0u);
}

[[gnu::noinline]] std::uint32_t capture_here(trace::stack_table& table) {
  const std::uint32_t number = table.capture(__builtin_return_address(0));
  return number;
}

TEST(stack_table, numbers_stacks_from_one_and_gives_those_since) {
  trace::stack_table table;
  table.prepare();
  EXPECT_TRUE(table.since(0).empty()) << "preparing keeps nothing";
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < 2; ++i) {
    numbers.push_back(capture_here(table));
    numbers.push_back(capture_here(table));
  }
  EXPECT_THAT(numbers, ElementsAre(1, 2, 1, 2));
  const auto all = table.since(0);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_NE(all[0][0], all[1][0]);
  EXPECT_EQ(return_addresses(all[0].begin() + 1, all[0].end()),
            return_addresses(all[1].begin() + 1, all[1].end()));
  EXPECT_THAT(table.since(1), ElementsAre(all[1]));
  EXPECT_TRUE(table.since(2).empty());
}

TEST(stack_table, a_caller_that_is_not_in_the_stack_leaves_it_whole) {
  trace::stack_table table;
  table.prepare();
  ASSERT_EQ(capture_here(table), 1u);
  ASSERT_EQ(table.capture(nullptr), 2u);
  const auto all = table.since(0);
  // Both end where the program begins; the second has weir's own frame and this one's before that.
  EXPECT_GT(all[1].size(), all[0].size());
  EXPECT_EQ(all[1].back(), all[0].back());
}

[[gnu::noinline]] void without_a_symbol() { asm volatile(""); }

TEST(describe_address, tells_the_function_and_where_it_is) {
  const auto place_of = [](auto* function, std::uint64_t offset) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uint64_t>(function) + offset);
  };
  Dl_info program{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&weir_test_send), &program), 0);
  const std::string file = program.dli_fname;
  EXPECT_EQ(describe_address(place_of(&weir_test_send, 0)), "weir_test_send+0x0 at " + file);
  EXPECT_EQ(describe_address(place_of(&weir_test_send, 17)), "weir_test_send+0x11 at " + file);
  // Names of C++ are made readable.
  void* const terminate = dlsym(RTLD_DEFAULT, "_ZSt9terminatev");
  EXPECT_THAT(describe_address(place_of(terminate, 1)),
              MatchesRegex("std::terminate\\(\\)\\+0x1 at .*libstdc.*"));
  // What has no name has its place in the file, and what is in no file its address.
  const auto offset = reinterpret_cast<std::uint64_t>(&without_a_symbol) -
                      reinterpret_cast<std::uint64_t>(program.dli_fbase);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "+0x%llx", static_cast<unsigned long long>(offset));
  EXPECT_EQ(describe_address(place_of(&without_a_symbol, 0)), file + text.data());
  EXPECT_EQ(describe_address(reinterpret_cast<void*>(0xabc)), "0xabc");
}

}  // namespace
}  // namespace weir::testing_support

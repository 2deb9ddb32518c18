// SPDX-License-Identifier: Apache-2.0
// tracking_resource: who is live, from where, and which frees are wrong.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/hexadecimal.hpp"
#include "resources/resources_fixture.hpp"
#include "support/sanitizers.hpp"
#include "weir/resource/tracking_resource.hpp"

namespace weir::testing_support {

// Not in the anonymous namespace: the name must be found in the stack.
[[gnu::noinline]] void* a_place_to_find(tracking_resource& memory, const stream_ref& stream,
                                        bytes size) {
  void* const pointer = memory.try_allocate(size, stream).value();
  EXPECT_NE(pointer, nullptr);  // keeps the call from being the last thing here
  return pointer;
}

namespace {

using tracking_test = resources_test;
using ::testing::HasSubstr;

TEST_F(tracking_test, tells_what_is_live_with_its_stack) {
  auto tracked = tracking_resource::create(ledger).value();
  void* const p = a_place_to_find(tracked, stream, 3_KiB);
  void* const q = tracked.try_allocate(1_KiB, stream).value();
  const live_report now = tracked.live();
  ASSERT_EQ(now.allocations.size(), 2U);
  EXPECT_EQ(now.size, 4_KiB);
  const live_allocation& first = now.allocations.front();
  EXPECT_EQ(first.pointer, p);
  EXPECT_EQ(first.size, 3_KiB);
  EXPECT_EQ(first.stream, stream.handle());
  EXPECT_EQ(first.number, 1U);
  EXPECT_EQ(now.allocations.back().number, 2U);
  EXPECT_EQ(first.thread, static_cast<std::uint64_t>(::gettid()));
  EXPECT_FALSE(first.stack.empty());
  // Who asked for it comes first, behind one frame of weir's where a sanitizer walks the stack.
  const std::vector<std::string> symbols = first.symbols();
  const bool is_behind_one =
      symbols.front().find("tracking_resource::try_allocate") != std::string::npos;
  EXPECT_EQ(is_behind_one, testing_support::is_sanitized);
  EXPECT_THAT(symbols.at(is_behind_one ? 1 : 0), HasSubstr("a_place_to_find"));
  const std::string text = to_string(now);
  EXPECT_THAT(text, HasSubstr("2 live allocations, 4 KiB"));
  EXPECT_LT(text.find("3 KiB, first #1"), text.find("1 KiB, first #2")) << text;
  EXPECT_TRUE(tracked.try_deallocate(p, 3_KiB, stream));
  EXPECT_TRUE(tracked.try_deallocate(q, 1_KiB, stream));
  EXPECT_TRUE(tracked.live().allocations.empty());
}

TEST_F(tracking_test, what_comes_from_one_place_is_told_together) {
  auto tracked = tracking_resource::create(ledger).value();
  std::vector<void*> live;
  for (int i = 0; i < 5; ++i) live.push_back(a_place_to_find(tracked, stream, 1_KiB));
  EXPECT_THAT(to_string(tracked.live()), HasSubstr("\n5 of them, 5 KiB, first #1"));
  for (void* const each : live) EXPECT_TRUE(tracked.try_deallocate(each, 1_KiB, stream));
}

TEST_F(tracking_test, texts_without_stacks_are_exact) {
  const live_allocation small{.pointer = reinterpret_cast<void*>(0x7f00),
                              .size = 4_KiB,
                              .number = 7,
                              .thread = 4711,
                              .stack = {}};
  EXPECT_EQ(to_string(small), "#7 4 KiB at 0x7f00 by thread 4711");
  EXPECT_EQ(to_string(live_report{{small, small}, 8_KiB}),
            "2 live allocations, 8 KiB\n2 of them, 8 KiB, first #7 by thread 4711\n");
  EXPECT_EQ(to_string(live_report{}), "0 live allocations, 0 B\n");
}

TEST_F(tracking_test, what_is_not_said_of_an_allocation_is_nothing) {
  const live_allocation none;
  EXPECT_EQ(none.pointer, nullptr);
  EXPECT_EQ(none.stream, nullptr);
  EXPECT_EQ(none.time, std::chrono::system_clock::time_point{});
  EXPECT_TRUE(none.symbols().empty());
  EXPECT_EQ(to_string(none), "#0 0 B at (nil) by thread 0");
}

/// An allocation of one call site; nothing lies at addresses that small.
live_allocation made_at(std::uintptr_t address, bytes size, std::uint64_t number) {
  return {.pointer = nullptr,
          .size = size,
          .number = number,
          .thread = 4711,
          .stack = {reinterpret_cast<void*>(address)}};
}

TEST_F(tracking_test, the_largest_call_site_comes_first_and_equal_ones_by_address) {
  const live_report report{
      {made_at(0x30, 2_KiB, 1), made_at(0x20, 1_KiB, 2), made_at(0x40, 5_KiB, 3),
       made_at(0x20, 1_KiB, 4), made_at(0x10, 2_KiB, 5)},
      11_KiB};
  EXPECT_EQ(to_string(report),
            "5 live allocations, 11 KiB\n"
            "1 of them, 5 KiB, first #3 by thread 4711\n    0x40\n"
            "1 of them, 2 KiB, first #5 by thread 4711\n    0x10\n"
            "2 of them, 2 KiB, first #2 by thread 4711\n    0x20\n"
            "1 of them, 2 KiB, first #1 by thread 4711\n    0x30\n");
}

TEST_F(tracking_test, a_frame_is_told_with_its_function_and_file) {
  static char without_a_name[2];
  // Behind the call, as return addresses are.
  auto* const in_function = reinterpret_cast<char*>(&a_place_to_find) + 1;
  auto* const in_data = &without_a_name[1];
  Dl_info program{};
  ASSERT_NE(::dladdr(in_function, &program), 0);
  ASSERT_NE(program.dli_fname, nullptr);
  const std::string file = std::string{" in "} + program.dli_fname;
  const auto text_of = [](void* address) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", address);
    return std::string{text};
  };
  const live_allocation allocation{.stack = {in_function, in_data}};
  const auto lines = allocation.symbols();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_THAT(lines[0], ::testing::StartsWith(text_of(in_function) +
                                              " weir::testing_support::a_place_to_find("));
  EXPECT_THAT(lines[0], ::testing::EndsWith(")" + file));
  EXPECT_EQ(lines[1], text_of(in_data) + " ?" + file);
}

TEST_F(tracking_test, stacks_can_be_left_out_or_cut) {
  auto bare = tracking_resource::create(ledger, {.stacks = false}).value();
  void* const p = bare.try_allocate(1_KiB, stream).value();
  EXPECT_TRUE(bare.live().allocations.front().stack.empty());
  EXPECT_TRUE(bare.try_deallocate(p, 1_KiB, stream));
  auto flat = tracking_resource::create(ledger, {.stacks = true, .depth = 1}).value();
  void* const q = flat.try_allocate(1_KiB, stream).value();
  EXPECT_EQ(flat.live().allocations.front().stack.size(), 1U);
  EXPECT_TRUE(flat.try_deallocate(q, 1_KiB, stream));
  for (const std::size_t depth : {std::size_t{0}, std::size_t{65}})
    EXPECT_EQ(code_of(tracking_resource::create(ledger, {.stacks = true, .depth = depth})),
              errc::invalid_argument);
}

/// Requests below so many frames of its own.
[[gnu::noinline]] void* deep_below(int frames, tracking_resource& memory,
                                   const stream_ref& stream) {
  void* const pointer = frames == 0 ? memory.try_allocate(1_KiB, stream).value()
                                    : deep_below(frames - 1, memory, stream);
  EXPECT_NE(pointer, nullptr);  // keeps the call from being the last thing here
  return pointer;
}

TEST_F(tracking_test, stacks_have_24_frames_unless_told_otherwise) {
  EXPECT_TRUE(tracking_options{}.stacks);
  EXPECT_EQ(tracking_options{}.depth, 24U);
  const auto frames_of = [&](tracking_options settings) {
    auto tracked = tracking_resource::create(ledger, settings).value();
    void* const p = deep_below(80, tracked, stream);
    const std::size_t frames = tracked.live().allocations.front().stack.size();
    EXPECT_TRUE(tracked.try_deallocate(p, 1_KiB, stream));
    return frames;
  };
  EXPECT_EQ(frames_of({}), 24U);
  EXPECT_EQ(frames_of({.stacks = true, .depth = 64}), 64U);
}

TEST_F(tracking_test, wrong_frees_are_told) {
  auto tracked = tracking_resource::create(ledger).value();
  void* const p = tracked.try_allocate(1_KiB, stream).value();
  void* const theirs = ledger.try_allocate(1_KiB, stream, 256_B).value();
  EXPECT_EQ(code_of(tracked.try_deallocate(theirs, 1_KiB, stream)), errc::foreign_pointer)
      << "memory of the upstream's own users is not the adaptor's to free";
  EXPECT_EQ(code_of(tracked.try_deallocate(static_cast<char*>(p) + 1, 1_KiB, stream)),
            errc::foreign_pointer);
  EXPECT_EQ(code_of(tracked.try_deallocate(p, 2_KiB, stream)), errc::invalid_argument);
  EXPECT_EQ(code_of(tracked.try_deallocate(p, 1_KiB, stream)), errc::double_free);
  EXPECT_TRUE(ledger.try_deallocate(theirs, 1_KiB, stream));
}

TEST_F(tracking_test, what_is_left_at_the_end_is_reported) {
  void* p = nullptr;
  {
    auto tracked = tracking_resource::create(ledger).value();
    p = tracked.try_allocate(7_KiB, stream).value();
  }
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code(), errc::still_live);
  EXPECT_EQ(reported.front().detail(),
            "a tracking resource was destroyed with 1 live blocks of 7 KiB\n  " +
                detail::hexadecimal(reinterpret_cast<std::uintptr_t>(p)) + ", 7 KiB, stream " +
                std::to_string(stream.id().number()));
  EXPECT_EQ(reported.front().requested(), 7_KiB);
  EXPECT_EQ(ledger.live(), 1U) << "it stays with the upstream";
  EXPECT_TRUE(ledger.try_deallocate(p, 7_KiB, stream));
}

TEST_F(tracking_test, threads_and_reports_go_together) {
  auto tracked = tracking_resource::create(ledger, {.stacks = true, .depth = 4}).value();
  std::vector<std::thread> crowd;
  for (int t = 0; t < 3; ++t) {
    crowd.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        void* const p = tracked.try_allocate(16_B, stream).value();
        EXPECT_TRUE(tracked.try_deallocate(p, 16_B, stream));
      }
    });
  }
  for (int i = 0; i < 50; ++i) EXPECT_LE(tracked.live().allocations.size(), 3U);
  for (std::thread& each : crowd) each.join();
  EXPECT_TRUE(tracked.live().allocations.empty());
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Stacks from the caller outwards, and the names of addresses.
#include "base/call_stack.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/function_names.hpp"

// By a name that the program's table of symbols has.
namespace call_stack_test {
[[gnu::noinline, gnu::visibility("default")]] void landmark() { asm volatile(""); }
namespace {
[[gnu::noinline, gnu::used]] void unexported() { asm volatile(""); }
}  // namespace
}  // namespace call_stack_test

namespace weir { inline namespace v0 { namespace detail { namespace {

struct walk {
  void* caller;
  std::vector<void*> frames;
};

[[gnu::noinline]] walk walk_from_caller() {
  void* const caller = __builtin_return_address(0);
  return {caller, call_stack(caller)};
}

TEST(call_stack, begins_with_the_caller) {
  const walk taken = walk_from_caller();
  ASSERT_FALSE(taken.frames.empty());
  EXPECT_EQ(taken.frames.front(), taken.caller);
}

TEST(call_stack, is_whole_where_the_caller_is_not_in_it) {
  const std::vector<void*> from_caller = walk_from_caller().frames;
  const std::vector<void*> whole = call_stack(nullptr);
  // Both end where the program begins.
  ASSERT_GE(whole.size(), from_caller.size());
  EXPECT_EQ(whole.back(), from_caller.back());
  EXPECT_EQ(std::count(whole.begin(), whole.end(), nullptr), 0);
}

TEST(describe_address, counts_from_the_beginning_of_the_function) {
  const auto begin = reinterpret_cast<std::uint64_t>(&call_stack_test::landmark);
  Dl_info program{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(begin), &program), 0);
  const std::string file = program.dli_fname;
  EXPECT_EQ(describe_address(reinterpret_cast<void*>(begin)),
            "call_stack_test::landmark()+0x0 at " + file);
  EXPECT_EQ(describe_address(reinterpret_cast<void*>(begin + 1)),
            "call_stack_test::landmark()+0x1 at " + file);
}

/// As a return address: behind the first instruction.
void* inside(void (*function)()) {
  return reinterpret_cast<char*>(reinterpret_cast<std::uint64_t>(function)) + 4;
}

[[gnu::noinline]] void own_function() { asm volatile(""); }

TEST(function_in_file, knows_functions_that_are_not_exported) {
  auto* const code = inside(&call_stack_test::unexported);
  Dl_info program{};
  ASSERT_NE(dladdr(code, &program), 0);
  EXPECT_EQ(program.dli_sname, nullptr);
  const auto in_file =
      static_cast<std::uint64_t>(static_cast<char*>(code) - static_cast<char*>(program.dli_fbase));
  const auto found = function_in_file("/proc/self/exe", in_file);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->symbol, "_ZN15call_stack_test12_GLOBAL__N_110unexportedEv");
  EXPECT_EQ(found->offset, 4u);
  EXPECT_FALSE(function_in_file("/proc/self/exe", 1));
  EXPECT_FALSE(function_in_file("/nonexistent", in_file));
  EXPECT_FALSE(function_in_file("/proc/self/maps", in_file));
  EXPECT_FALSE(function_in_file("/dev/null", in_file));
}

TEST(describe_calls, begins_with_the_innermost_call_that_is_not_of_weir) {
  void* const own = inside(&own_function);
  void* const user = inside(&call_stack_test::unexported);
  const auto texts = describe_calls({own, own, user, own, inside(&call_stack_test::landmark)});
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_THAT(texts[0], ::testing::MatchesRegex(
                            "call_stack_test::\\(anonymous namespace\\)::unexported\\(\\)\\+0x4 at "
                            "/.*base_test\\+0x[0-9a-f]+( \\(build [0-9a-f]{12}\\))?"));
  EXPECT_THAT(texts[1], ::testing::HasSubstr("own_function()+0x4 at /"));
  EXPECT_THAT(texts[2], ::testing::StartsWith("call_stack_test::landmark()+0x4 at /"));
  EXPECT_EQ(describe_calls({reinterpret_cast<void*>(0xabc)}), std::vector<std::string>{"0xabc"});
}

}  // namespace
}}}  // namespace weir::v0::detail

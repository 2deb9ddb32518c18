// SPDX-License-Identifier: Apache-2.0
// Stacks from the caller outwards, and the names of addresses.
#include "base/call_stack.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

// By a name that the program's table of symbols has.
namespace call_stack_test {
[[gnu::noinline, gnu::visibility("default")]] void landmark() { asm volatile(""); }
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

}  // namespace
}}}  // namespace weir::v0::detail

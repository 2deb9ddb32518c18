// SPDX-License-Identifier: Apache-2.0
// The lives of blocks: which block an address is of, and whether that was freed.
#include "observe/block_history.hpp"

#include <gtest/gtest.h>

namespace weir { inline namespace v0 { namespace observe { namespace {

constexpr memory_event allocation{
    .kind = memory_event_kind::allocate, .address = 4096, .size = 1000, .rounded = 1024};
constexpr memory_event deallocation{
    .kind = memory_event_kind::deallocate, .address = 4096, .size = 1000, .rounded = 1024};

void expect_range(const block_history::range& seen, const block_history::range& expected) {
  EXPECT_EQ(seen.address, expected.address);
  EXPECT_EQ(seen.size, expected.size);
  EXPECT_EQ(seen.is_freed, expected.is_freed);
}

TEST(block_history, knows_the_block_that_an_address_is_of) {
  block_history lives;
  expect_range(lives.block_over(4096), {0, 0, false});
  lives.on_event(allocation);
  expect_range(lives.block_over(4095), {0, 0, false});
  expect_range(lives.block_over(4096), {4096, 1000, false});
  expect_range(lives.block_over(4096 + 999), {4096, 1000, false});
  expect_range(lives.block_over(4096 + 1000), {0, 0, false});
  lives.on_event(deallocation);
  expect_range(lives.block_over(4096 + 999), {4096, 1000, true});
  expect_range(lives.block_over(4096 + 1000), {0, 0, false});
  lives.on_event(allocation);
  expect_range(lives.block_over(4096), {4096, 1000, false});
}

}  // namespace
}}}  // namespace weir::v0::observe

// SPDX-License-Identifier: Apache-2.0
// Ids of different kinds do not mix; ids of one kind compare and hash by number.
#include "weir/base/ids.hpp"

#include <gtest/gtest.h>

#include <concepts>
#include <unordered_set>

namespace weir { namespace {

template <class A, class B>
concept comparable = requires(A a, B b) {
  a == b;
};

static_assert(comparable<device_id, device_id>);
static_assert(!comparable<device_id, stream_id>);
static_assert(!comparable<stream_id, capture_id>, "equal numbers, different kinds");
static_assert(!std::is_convertible_v<int, device_id> && !std::is_convertible_v<device_id, int>);
static_assert(!std::is_convertible_v<stream_id, capture_id>);
static_assert(sizeof(stream_id) == sizeof(std::uint64_t));

TEST(ids, compare_by_number) {
  EXPECT_EQ(device_id{3}.number(), 3);
  EXPECT_EQ(device_id{}, device_id{0});
  EXPECT_LT(stream_id{1}, stream_id{2});
  EXPECT_NE(stream_id{1}, stream_id{2});
}

TEST(ids, are_keys) {
  std::unordered_set<stream_id> seen;
  EXPECT_TRUE(seen.insert(stream_id{7}).second);
  EXPECT_FALSE(seen.insert(stream_id{7}).second);
  EXPECT_TRUE(seen.insert(stream_id{8}).second);
}

}  // namespace
}  // namespace weir

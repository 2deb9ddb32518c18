// SPDX-License-Identifier: Apache-2.0
// Checked arithmetic refuses to wrap, at the very edge.
#include "weir/base/checked.hpp"

#include <gtest/gtest.h>

namespace weir { namespace {

using namespace weir::literals;

constexpr std::uint64_t most = ~std::uint64_t{0};

TEST(checked, sums_stop_at_the_edge) {
  EXPECT_EQ(checked_add<std::uint64_t>(most - 1, 1), most);
  EXPECT_FALSE(checked_add<std::uint64_t>(most, 1));
  EXPECT_FALSE(checked_add<std::uint64_t>(most, most));
  EXPECT_EQ(checked_add<std::uint8_t>(200, 55), 255);
  EXPECT_FALSE(checked_add<std::uint8_t>(200, 56));  // the type's own edge, not int's
  EXPECT_EQ(checked_add(1_KiB, 1_B), 1025_B);
  EXPECT_FALSE(checked_add(bytes::max(), 1_B));
}

TEST(checked, differences_stop_at_zero) {
  EXPECT_EQ(checked_subtract<std::uint64_t>(5, 5), 0u);
  EXPECT_FALSE(checked_subtract<std::uint64_t>(5, 6));
  EXPECT_EQ(checked_subtract(1_KiB, 1_B), 1023_B);
  EXPECT_FALSE(checked_subtract(1_B, 2_B));
}

TEST(checked, products_stop_at_the_edge) {
  EXPECT_EQ(checked_multiply<std::uint64_t>(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1),
            0xffffffff00000000u);
  EXPECT_FALSE(checked_multiply<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 32));
  EXPECT_EQ(checked_multiply<std::uint64_t>(0, most), 0u);
  EXPECT_EQ(checked_multiply(8_B, 1000), 8000_B);
  EXPECT_FALSE(checked_multiply(8_B, most / 8 + 1));
}

TEST(checked, rounding_up_stops_at_the_edge) {
  EXPECT_EQ(checked_round_up(std::uint64_t{0}, 512), 0u);
  EXPECT_EQ(checked_round_up(std::uint64_t{1}, 512), 512u);
  EXPECT_EQ(checked_round_up(std::uint64_t{512}, 512), 512u);
  EXPECT_EQ(checked_round_up(std::uint64_t{10}, 3), 12u);  // any step, not only powers of two
  EXPECT_EQ(checked_round_up(most - 511, 512), most - 511);
  EXPECT_FALSE(checked_round_up(most - 510, 512));
  EXPECT_FALSE(checked_round_up(std::uint64_t{1}, 0));
  EXPECT_EQ(checked_round_up(3_MiB, 2_MiB), 4_MiB);
  EXPECT_FALSE(checked_round_up(bytes::max(), 2_MiB));
}

TEST(checked, zero_is_no_power_of_two) {
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_TRUE(is_power_of_two(1));
  EXPECT_TRUE(is_power_of_two(std::uint64_t{1} << 63));
  EXPECT_FALSE(is_power_of_two(3));
  EXPECT_FALSE(is_power_of_two(most));
}

static_assert(checked_add<std::uint64_t>(1, 2) == 3u, "usable in constant expressions");

}  // namespace
}  // namespace weir

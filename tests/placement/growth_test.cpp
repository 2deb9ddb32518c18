// SPDX-License-Identifier: Apache-2.0
// The rules of growth by themselves.
#include "placement/growth.hpp"

#include <gtest/gtest.h>

#include "placement/fit_index.hpp"
#include "support/sizes.hpp"

namespace weir::placement { namespace {

using testing_support::mib;
constexpr std::uint64_t slot = 2 * mib;
constexpr std::uint64_t plenty = 100'000 * mib;  // reserved

TEST(growth, small_requests_get_handles_of_one_slot) {
  const auto rules = growth_rules::of(placement_policy::balanced);
  EXPECT_EQ(slot, rules.handle_for(512, plenty, slot, 1));
  EXPECT_EQ(slot, rules.handle_for(8 * mib, plenty, slot, 1));
}

TEST(growth, handles_grow_with_the_square_of_the_request_up_to_the_largest) {
  const auto rules = growth_rules::of(placement_policy::balanced);
  EXPECT_EQ(4 * mib, rules.handle_for(32 * mib, plenty, slot, 1));
  EXPECT_EQ(16 * mib, rules.handle_for(64 * mib, plenty, slot, 1));
  EXPECT_EQ(16 * mib, rules.handle_for(100 * mib, plenty, slot, 1));
  EXPECT_EQ(16 * mib, rules.handle_for(1024 * mib, plenty, slot, 1));
}

TEST(growth, a_request_whose_square_does_not_fit_gets_the_largest) {
  const auto rules = growth_rules::of(placement_policy::balanced);
  EXPECT_EQ(16 * mib, rules.handle_for(std::uint64_t{1} << 40, plenty, slot, 1));
}

TEST(growth, where_little_is_reserved_handles_are_small) {
  const auto rules = growth_rules::of(placement_policy::balanced);
  EXPECT_EQ(8 * mib, rules.handle_for(240 * mib, 1000 * mib, slot, 1));
  EXPECT_EQ(4 * mib, rules.handle_for(64 * mib, 600 * mib, slot, 1));
}

TEST(growth, where_nothing_is_reserved_a_handle_is_at_most_a_36th_of_the_request) {
  for (const auto policy : {placement_policy::balanced, placement_policy::compact}) {
    const auto rules = growth_rules::of(policy);
    EXPECT_EQ(4 * mib, rules.handle_for(144 * mib, 0, slot, 1));
    EXPECT_EQ(2 * mib, rules.handle_for(144 * mib - 36, 0, slot, 1));
  }
}

TEST(growth, where_streams_are_many_handles_are_smaller) {
  const auto rules = growth_rules::of(placement_policy::balanced);
  EXPECT_EQ(8 * mib, rules.handle_for(64 * mib, 1200 * mib, slot, 1));
  EXPECT_EQ(4 * mib, rules.handle_for(64 * mib, 1200 * mib, slot, 4));
  EXPECT_EQ(4 * mib, rules.handle_for(64 * mib, 1200 * mib, slot, 100));
}

TEST(growth, more_than_four_streams_count_as_four) {
  const auto rules = growth_rules::of(placement_policy::balanced);
  for (const std::uint64_t streams : {4u, 5u, 100u})
    EXPECT_EQ(8 * mib, rules.handle_for(64 * mib, 1856 * mib, slot, streams)) << streams;
}

TEST(growth, the_unit_follows_what_is_reserved) {
  const auto rules = growth_rules::of(placement_policy::balanced);
  EXPECT_EQ(slot, rules.unit_at(0, slot));
  EXPECT_EQ(4 * mib, rules.unit_at(1024 * mib, slot));
  EXPECT_EQ(16 * mib, rules.unit_at(1024 * 1024 * mib, slot));
}

TEST(growth, compact_rounds_to_a_slot) {
  const auto rules = growth_rules::of(placement_policy::compact);
  EXPECT_EQ(slot, rules.unit_at(1024 * 1024 * mib, slot));
}

TEST(growth, a_slot_larger_than_the_largest_handle_is_the_handle) {
  const auto rules = growth_rules::of(placement_policy::compact);
  EXPECT_EQ(64 * mib, rules.handle_for(1024 * mib, plenty, 64 * mib, 1));
  EXPECT_EQ(64 * mib, rules.unit_at(1024 * mib, 64 * mib));
}

TEST(growth, what_goes_low_is_what_the_index_can_find_so) {
  for (const auto policy : {placement_policy::balanced, placement_policy::throughput,
                            placement_policy::compact, placement_policy::never_move}) {
    const auto rules = growth_rules::of(policy);
    EXPECT_GE(rules.lowest_up_to, fit_index::large * unit) << "the rest must be in the tree";
    EXPECT_LE(rules.lowest_up_to, fit_index::most_low * unit);
  }
}

TEST(growth, only_never_move_never_moves) {
  EXPECT_FALSE(growth_rules::of(placement_policy::never_move).moves);
  EXPECT_TRUE(growth_rules::of(placement_policy::balanced).moves);
  EXPECT_TRUE(growth_rules::of(placement_policy::compact).moves);
  EXPECT_TRUE(growth_rules::of(placement_policy::throughput).moves);
}

}  // namespace
}  // namespace weir::placement

// SPDX-License-Identifier: Apache-2.0
// demand: how much is pinned ahead in rest and in growth.
#include "host/demand.hpp"

#include <gtest/gtest.h>

namespace weir::host_test { namespace {

using host::demand;
using std::chrono::milliseconds;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t gib = std::uint64_t{1} << 30;

TEST(Demand, in_rest_a_64th_of_what_is_in_use_is_kept) {
  const demand policy{gib};
  EXPECT_EQ(policy.ahead(0, {}), 0u);
  EXPECT_EQ(policy.ahead(100 * mib, {}), 0u) << "less than a step";
  EXPECT_EQ(policy.ahead(1 * gib, {}), 16 * mib);
  EXPECT_EQ(policy.ahead(1 * gib + 63 * mib, {}), 16 * mib) << "whole steps";
  EXPECT_EQ(policy.ahead(100 * gib, {}), gib) << "never more than allowed";
}

TEST(Demand, growth_of_the_last_second_counts_an_eighth) {
  demand policy{gib};
  policy.add_miss(64 * mib, milliseconds{0});
  policy.add_miss(64 * mib, milliseconds{900});
  EXPECT_EQ(policy.ahead(128 * mib, milliseconds{900}), 16 * mib);
  EXPECT_EQ(policy.ahead(128 * mib, milliseconds{1900}), 16 * mib);
  EXPECT_EQ(policy.ahead(128 * mib, milliseconds{1901}), 2 * mib) << "growth has ended";
  policy.add_miss(32 * mib, milliseconds{5000});
  EXPECT_EQ(policy.ahead(160 * mib, milliseconds{5000}), 4 * mib) << "counted anew";
}

TEST(Demand, nothing_is_pinned_ahead_where_that_is_off) {
  demand policy{0};
  policy.add_miss(gib, milliseconds{0});
  EXPECT_EQ(policy.ahead(64 * gib, milliseconds{0}), 0u);
}

TEST(Demand, a_segment_serves_many_small_requests_without_a_remainder) {
  EXPECT_EQ(demand::segment_for(1024, 0), 2 * mib);
  EXPECT_EQ(demand::segment_for(600'000, 0), 1'800'000u) << "three of them, not three and a half";
  EXPECT_EQ(demand::segment_for(1024, 1 * gib), 16 * mib);
  EXPECT_EQ(demand::segment_for(1024, 64 * gib), 64 * mib);
  EXPECT_EQ(demand::segment_for(3 * mib / 2, 0), 3 * mib / 2) << "a large one gets its own";
  EXPECT_EQ(demand::segment_for(100 * mib, 1 * gib), 100 * mib);
}

}  // namespace
}  // namespace weir::host_test

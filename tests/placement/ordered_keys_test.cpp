// SPDX-License-Identifier: Apache-2.0
// Sorted keys in leaves, against a set.
#include "placement/ordered_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <vector>

namespace weir::placement { namespace {

constexpr std::size_t in_a_leaf = 127;

TEST(ordered_keys_test, none_are_in_a_fresh_one) {
  const ordered_keys keys;
  EXPECT_EQ(keys.at_least(0), ordered_keys::none);
  EXPECT_EQ(keys.last(), ordered_keys::none);
  EXPECT_EQ(keys.footprint(), 0u);
}

TEST(ordered_keys_test, the_first_that_is_not_below_is_found) {
  ordered_keys keys;
  for (const std::uint64_t each : {20, 10, 30}) ASSERT_TRUE(keys.insert(each));
  EXPECT_EQ(keys.at_least(0), 10u);
  EXPECT_EQ(keys.at_least(10), 10u);
  EXPECT_EQ(keys.at_least(11), 20u);
  EXPECT_EQ(keys.at_least(30), 30u);
  EXPECT_EQ(keys.at_least(31), ordered_keys::none);
  EXPECT_EQ(keys.last(), 30u);
}

TEST(ordered_keys_test, one_that_is_lowered_passes_those_between) {
  ordered_keys keys;
  for (const std::uint64_t each : {10, 20, 30, 40}) ASSERT_TRUE(keys.insert(each));
  ASSERT_TRUE(keys.lower(40, 15));
  EXPECT_EQ(keys.at_least(11), 15u);
  EXPECT_EQ(keys.at_least(16), 20u);
  EXPECT_EQ(keys.last(), 30u);
  ASSERT_TRUE(keys.lower(30, 21));
  EXPECT_EQ(keys.at_least(21), 21u);
  EXPECT_EQ(keys.last(), 21u);
}

TEST(ordered_keys_test, one_that_is_lowered_into_another_leaf_is_found_there_alone) {
  ordered_keys keys;
  for (std::uint64_t i = 1; i <= 3 * in_a_leaf; ++i) ASSERT_TRUE(keys.insert(10 * i));
  const std::uint64_t highest = 30 * in_a_leaf;
  ASSERT_TRUE(keys.lower(highest, 15));
  EXPECT_EQ(keys.at_least(11), 15u);
  EXPECT_EQ(keys.at_least(16), 20u);
  EXPECT_EQ(keys.last(), highest - 10);
}

TEST(ordered_keys_test, a_leaf_goes_with_its_last_key_and_the_last_leaf_stays) {
  ordered_keys keys;
  for (std::uint64_t i = 1; i <= in_a_leaf; ++i) ASSERT_TRUE(keys.insert(i));
  const std::size_t one = keys.footprint();
  ASSERT_TRUE(keys.insert(in_a_leaf + 1));
  EXPECT_GE(keys.footprint(), one + 1024) << "a leaf of a kilobyte more";
  for (std::uint64_t i = 1; i <= in_a_leaf; ++i) keys.remove(i);
  EXPECT_EQ(keys.at_least(0), in_a_leaf + 1) << "though the leaf of the lowest is gone";
  ASSERT_TRUE(keys.insert(1));
  EXPECT_EQ(keys.at_least(0), 1u) << "and the other takes what is below its own";
  keys.remove(1);
  keys.remove(in_a_leaf + 1);
  EXPECT_EQ(keys.last(), ordered_keys::none);
  EXPECT_EQ(keys.at_least(0), ordered_keys::none);
  EXPECT_LT(keys.footprint(), one + 1024);
}

TEST(ordered_keys_test, agree_with_a_set) {
  std::mt19937_64 random{11};
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  ordered_keys keys;
  std::set<std::uint64_t> model;
  for (int step = 0; step < 20'000; ++step) {
    // They become thousands, and none.
    const bool grows = step / 4'000 % 2 == 0;
    const std::uint64_t any = below(1'000'000);
    const auto near = model.lower_bound(any);
    const std::uint64_t choice = below(10);
    if (choice < (grows ? 8u : 2u) || near == model.end()) {
      if (!model.insert(any).second) continue;
      ASSERT_TRUE(keys.insert(any));
    } else if (choice == 9) {
      const std::uint64_t from = *near;
      const std::uint64_t to = below(2) == 0 ? below(from + 1) : from - std::min(from, below(50));
      if (model.contains(to)) continue;
      ASSERT_TRUE(keys.lower(from, to));
      model.erase(near);
      model.insert(to);
    } else {
      keys.remove(*near);
      model.erase(near);
    }
    const std::uint64_t asked = below(1'000'000);
    const auto found = model.lower_bound(asked);
    ASSERT_EQ(keys.at_least(asked), found == model.end() ? ordered_keys::none : *found) << step;
    ASSERT_EQ(keys.last(), model.empty() ? ordered_keys::none : *model.rbegin()) << step;
  }
  std::vector<std::uint64_t> seen;
  keys.see_from(500'000, [&](std::uint64_t key) {
    seen.push_back(key);
    return false;
  });
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{model.lower_bound(500'000), model.end()}));
  EXPECT_GT(seen.size(), 300u) << "more than a leaf holds";
  std::size_t count = 0;
  keys.see_from(0, [&](std::uint64_t key) { return ++count == 200 || key > 900'000; });
  EXPECT_EQ(count, 200u);
  keys.see_from(1'000'000, [&](std::uint64_t) { return ++count == 0; });
  EXPECT_EQ(count, 200u) << "none is above";
  ordered_keys{}.see_from(0, [&](std::uint64_t) { return ++count == 0; });
  EXPECT_EQ(count, 200u);

  std::uint64_t above = 0;
  for (const std::uint64_t each : model) {
    ASSERT_EQ(keys.at_least(above), each);
    above = each + 1;
  }
  EXPECT_EQ(keys.at_least(above), ordered_keys::none);
}

}  // namespace
}  // namespace weir::placement

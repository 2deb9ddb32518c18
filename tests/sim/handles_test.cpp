// SPDX-License-Identifier: Apache-2.0
// Tables of handles: which handle stands for what, and which for nothing.
#include "sim/handles.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace weir::sim { namespace {

using ::testing::ElementsAre;

using number_table = handle_table<std::uint64_t, int, 40>;

std::uint64_t put(number_table& to, int value) { return to.insert(std::make_shared<int>(value)); }

std::vector<int> all_of(const number_table& table) {
  std::vector<int> found;
  table.for_each([&](int each) { found.push_back(each); });
  return found;
}

TEST(handle_table, that_is_empty_knows_no_handle) {
  number_table other;
  const std::uint64_t first = put(other, 1);
  number_table empty;
  EXPECT_EQ(empty.find(first), nullptr);
  EXPECT_EQ(empty.share(first), nullptr);
  EXPECT_EQ(empty.erase(first), nullptr);
}

TEST(handle_table, knows_its_own_handles_and_no_number_beside_them) {
  number_table table;
  const std::uint64_t first = put(table, 1);
  const std::uint64_t second = put(table, 2);
  EXPECT_EQ(*table.find(first), 1);
  EXPECT_EQ(*table.find(second), 2);
  EXPECT_EQ(*table.share(second), 2);
  const std::uint64_t distance = second - first;
  for (const std::uint64_t each : {std::uint64_t{0}, first - distance, first - 1, first + 1,
                                   second - 1, second + 1, second + distance, ~std::uint64_t{0}}) {
    EXPECT_EQ(table.find(each), nullptr) << each - first;
    EXPECT_EQ(table.share(each), nullptr) << each - first;
    EXPECT_EQ(table.erase(each), nullptr) << each - first;
  }
}

TEST(handle_table, knows_no_handle_of_another_kind) {
  number_table table;
  handle_table<std::uint64_t, int, 41> other;
  const std::uint64_t own = put(table, 1);
  const std::uint64_t strange = other.insert(std::make_shared<int>(2));
  EXPECT_EQ(table.find(strange), nullptr);
  EXPECT_EQ(other.find(own), nullptr);
}

TEST(handle_table, hands_out_freed_handles_again_and_the_youngest_first) {
  number_table table;
  const std::uint64_t a = put(table, 1);
  const std::uint64_t b = put(table, 2);
  const std::uint64_t c = put(table, 3);
  EXPECT_EQ(*table.erase(a), 1);
  EXPECT_EQ(table.erase(a), nullptr);
  EXPECT_EQ(table.find(a), nullptr);
  EXPECT_EQ(*table.erase(c), 3);
  EXPECT_EQ(put(table, 4), c);
  EXPECT_EQ(put(table, 5), a);
  EXPECT_EQ(*table.find(b), 2);
  EXPECT_THAT(all_of(table), ElementsAre(5, 2, 4));
}

TEST(handle_table, takes_out_what_matches_and_no_more) {
  number_table table;
  const std::uint64_t a = put(table, 1);
  const std::uint64_t b = put(table, 2);
  const std::uint64_t c = put(table, 3);
  table.erase(b);
  std::vector<int> taken;
  const auto take = [&](const std::shared_ptr<int>& each) { taken.push_back(*each); };
  table.erase_if([](int each) { return each != 1; }, take);
  EXPECT_THAT(taken, ElementsAre(3));
  EXPECT_THAT(all_of(table), ElementsAre(1));
  EXPECT_EQ(*table.find(a), 1);
  EXPECT_EQ(put(table, 4), c);
  EXPECT_EQ(put(table, 5), b);
}

}  // namespace
}  // namespace weir::sim

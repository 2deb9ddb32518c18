// SPDX-License-Identifier: Apache-2.0
// Cells by class of length, against a set.
#include "placement/length_classes.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>

namespace weir::placement { namespace {

constexpr std::uint64_t no_cell = length_classes::no_cell;
constexpr std::uint64_t cells_of_gib = 4096;

TEST(length_classes_test,
     short_runs_have_a_class_for_each_length_and_longer_ones_32_each_doubling) {
  EXPECT_EQ(length_classes::class_of(1), 1u);
  EXPECT_EQ(length_classes::class_of(63), 63u);
  EXPECT_EQ(length_classes::class_of(64), 64u);
  EXPECT_EQ(length_classes::class_of(65), 64u);
  EXPECT_EQ(length_classes::class_of(66), 65u);
  EXPECT_EQ(length_classes::class_of(127), 95u);
  EXPECT_EQ(length_classes::class_of(128), 96u);
  EXPECT_EQ(length_classes::class_of(1024), 192u);
  EXPECT_EQ(length_classes::class_of(1055), 192u);
  EXPECT_EQ(length_classes::class_of(1056), 193u);
  EXPECT_EQ(length_classes::class_of(2047), 223u);
  EXPECT_EQ(length_classes::class_of(2048), 224u);
  for (std::uint64_t units = 1; units < length_classes::longest; ++units) {
    const std::size_t own = length_classes::class_of(units);
    const std::size_t next = length_classes::class_of(units + 1);
    ASSERT_TRUE(next == own || next == own + 1) << units;
  }
}

TEST(length_classes_test, the_lowest_cell_of_a_class_is_found_at_any_distance) {
  length_classes classes;
  EXPECT_EQ(classes.first(5, 0), no_cell);
  for (const std::uint64_t cell : {3 * cells_of_gib, std::uint64_t{70}, 100 * cells_of_gib + 1}) {
    ASSERT_TRUE(classes.prepare(cell));
    classes.enter(5, cell);
  }
  EXPECT_EQ(classes.first(5, 0), 70u);
  EXPECT_EQ(classes.first(5, 70), 70u);
  EXPECT_EQ(classes.first(5, 71), 3 * cells_of_gib);
  EXPECT_EQ(classes.first(5, 3 * cells_of_gib + 1), 100 * cells_of_gib + 1) << "in the next 64 GiB";
  EXPECT_EQ(classes.first(5, 100 * cells_of_gib + 2), no_cell);
  EXPECT_EQ(classes.first(5, 1000 * cells_of_gib), no_cell) << "beyond all that is prepared";
  EXPECT_EQ(classes.first(6, 0), no_cell) << "another class";
}

TEST(length_classes_test, the_longest_runs_of_a_class_are_those_before_the_next_class) {
  for (std::uint64_t units = 1; units < length_classes::longest; ++units) {
    const std::size_t own = length_classes::class_of(units);
    const bool is_longest = length_classes::class_of(units + 1) != own;
    ASSERT_EQ(length_classes::longest_of(own) == units, is_longest) << units;
  }
}

TEST(length_classes_test, the_classes_that_have_a_cell_are_found) {
  constexpr std::uint64_t lowest_bit = 1;
  length_classes classes;
  EXPECT_EQ(classes.classes_from(0), 0u);
  ASSERT_TRUE(classes.prepare(1) && classes.prepare(70 * cells_of_gib));
  for (const std::size_t each : {3u, 130u, 224u})
    classes.enter(each, each == 130 ? 1 : 70 * cells_of_gib);
  EXPECT_EQ(classes.classes_from(0), lowest_bit << 3);
  EXPECT_EQ(classes.classes_from(3), lowest_bit);
  EXPECT_EQ(classes.classes_from(4), 0u) << "the next is more than 63 classes further";
  EXPECT_EQ(classes.classes_from(100), lowest_bit << 30);
  EXPECT_EQ(classes.classes_from(64), 0u);
  EXPECT_EQ(classes.classes_from(67), lowest_bit << 63);
  EXPECT_EQ(classes.classes_from(224), lowest_bit);
  classes.forget(130, 1);
  EXPECT_EQ(classes.classes_from(100), 0u);
}

TEST(length_classes_test, a_cell_stays_until_it_is_forgotten) {
  length_classes classes;
  ASSERT_TRUE(classes.prepare(9));
  classes.enter(1, 9);
  classes.enter(1, 9);
  classes.enter(2, 9);
  classes.forget(1, 9);
  EXPECT_EQ(classes.first(1, 0), no_cell);
  EXPECT_EQ(classes.first(2, 0), 9u);
}

TEST(length_classes_test, hold_memory_by_the_cells_that_are_prepared) {
  length_classes classes;
  EXPECT_EQ(classes.footprint(), 0u);
  ASSERT_TRUE(classes.prepare(0));
  const std::size_t one = classes.footprint();
  ASSERT_TRUE(classes.prepare(63));
  EXPECT_EQ(classes.footprint(), one) << "the same 64 cells";
  ASSERT_TRUE(classes.prepare(64));
  EXPECT_EQ(classes.footprint(), one + 225 * sizeof(std::uint64_t));
}

TEST(length_classes_test, agree_with_a_set) {
  length_classes classes;
  std::set<std::uint64_t> known[2];
  std::mt19937_64 random{11};
  const std::uint64_t ranges[] = {64, 5'000, 3 * cells_of_gib, 200 * cells_of_gib};
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t in = random() % 2;
    const std::uint64_t cell = random() % ranges[random() % 4];
    ASSERT_TRUE(classes.prepare(cell));
    if (random() % 2 == 0) {
      classes.enter(in, cell);
      known[in].insert(cell);
    } else {
      classes.forget(in, cell);
      known[in].erase(cell);
    }
    const std::uint64_t from = random() % ranges[random() % 4];
    const auto next = known[in].lower_bound(from);
    ASSERT_EQ(classes.first(in, from), next == known[in].end() ? no_cell : *next) << step;
    ASSERT_EQ(classes.first(in), known[in].empty() ? no_cell : *known[in].begin()) << step;
  }
}

}  // namespace
}  // namespace weir::placement

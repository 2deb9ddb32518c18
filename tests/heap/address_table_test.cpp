// SPDX-License-Identifier: Apache-2.0
// Address → block: against a map, with growth, erasing and readers beside the writer.
#include "heap/address_table.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

namespace weir { inline namespace v0 { namespace heap { namespace {

TEST(address_table_test, agrees_with_a_map) {
  address_table table;
  std::unordered_map<std::uint64_t, block_index> truth;
  std::vector<std::uint64_t> known;
  std::mt19937_64 random{1};
  for (int step = 0; step < 200'000; ++step) {
    const bool add = known.empty() || random() % 100 < (step < 100'000 ? 60 : 40);
    if (add) {
      // Neighbours and far ones, so that clusters form and wrap around.
      const std::uint64_t address =
          (random() % 4 == 0 ? random() % (std::uint64_t{1} << 39) : random() % 50'000) * unit;
      if (address == 0 || truth.contains(address)) continue;
      ASSERT_TRUE(!table.full() || table.grow());
      const auto which = static_cast<block_index>(1 + random() % ((1u << 25) - 1));
      table.insert(address, which);
      truth.emplace(address, which);
      known.push_back(address);
    } else {
      const std::size_t at = random() % known.size();
      table.erase(known[at]);
      truth.erase(known[at]);
      known[at] = known.back();
      known.pop_back();
    }
    if (step % 1000 != 0) continue;
    ASSERT_EQ(table.size(), truth.size());
    for (const auto& [address, which] : truth) ASSERT_EQ(table.find(address), which);
  }
}

TEST(address_table_test, finds_nothing_where_nothing_is) {
  address_table table;
  table.insert(1024, 5);
  EXPECT_EQ(table.find(1024), 5u);
  EXPECT_EQ(table.find(0), no_block);
  EXPECT_EQ(table.find(512), no_block);
  EXPECT_EQ(table.find(1025), no_block) << "inside a block";
  EXPECT_EQ(table.find(~std::uint64_t{0}), no_block);
  EXPECT_EQ(table.find((std::uint64_t{1} << 48) + 1024), no_block);
  table.erase(512);
  table.erase(1024);
  EXPECT_EQ(table.find(1024), no_block);
}

TEST(address_table_test, costs_at_most16_bytes_a_block) {
  address_table table;
  for (block_index i = 1; i < 100'000; ++i) {
    ASSERT_TRUE(!table.full() || table.grow());
    table.insert(std::uint64_t{i} * 4096, i);
    ASSERT_TRUE(i < 2000 || table.footprint() <= std::size_t{i} * 17) << i;
  }
}

TEST(address_table_test, readers_find_what_stays_while_others_come_and_go) {
  address_table table;
  constexpr std::uint64_t steady = 300;
  for (std::uint64_t i = 1; i <= steady; ++i)
    table.insert(i * 4 * unit, static_cast<block_index>(i));
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<std::uint64_t> found{0};
  std::thread reader{[&] {
    std::mt19937_64 random{2};
    while (!over.load()) {
      const std::uint64_t i = 1 + random() % steady;
      const block_index which = table.find(i * 4 * unit);
      // A miss beside an erase is allowed; another block's number is not.
      if (which == i) ++found;
      if (which != no_block && which != i) ++wrong;
    }
  }};
  while (found == 0) std::this_thread::yield();  // it reads from now on
  std::mt19937_64 random{3};
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t address = (1'000'000 + random() % 1000) * unit;
    if (table.find(address) == no_block) {
      if (!table.full()) table.insert(address, 77);
    } else {
      table.erase(address);
    }
  }
  over = true;
  reader.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(address_table_test, is_full_at_five_eighths_and_grows_by_a_quarter) {
  address_table table;
  std::uint64_t address = 0;
  for (const std::size_t capacity : {1024, 1280, 1600}) {
    EXPECT_EQ(table.footprint(), capacity * sizeof(std::uint64_t));
    for (; !table.full(); address += unit) table.insert(address + unit, 1);
    EXPECT_EQ(table.size(), capacity / 8 * 5);
    ASSERT_TRUE(table.grow());
    EXPECT_EQ(table.size(), capacity / 8 * 5);
  }
}

}  // namespace
}}}  // namespace weir::v0::heap

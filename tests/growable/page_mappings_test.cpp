// SPDX-License-Identifier: Apache-2.0
// Mappings of growable memory by address and by handle.
#include "heap/page_mappings.hpp"

#include <gtest/gtest.h>

namespace weir::heap { namespace {

using namespace weir::literals;

constexpr std::uint64_t mapping_base = std::uint64_t{1} << 40;

page_mapping mapping_at(std::uint64_t offset, std::uint64_t handle, bytes size = 2_MiB) {
  return {.address = mapping_base + offset, .memory = {handle, size}};
}

TEST(mappings, are_found_by_address) {
  page_mappings all;
  all.add(mapping_at(0, 1));
  all.add(mapping_at(4 << 20, 2, 4_MiB));
  EXPECT_EQ(all.size(), 2u);
  EXPECT_EQ(all.first_at(mapping_base)->second.memory.handle, 1u);
  EXPECT_EQ(all.first_at(mapping_base + (2 << 20) - 1)->second.memory.handle, 1u);
  EXPECT_EQ(all.first_at(mapping_base + (2 << 20))->second.memory.handle, 2u);
  EXPECT_EQ(all.first_at(mapping_base + (8 << 20) - 1)->second.memory.handle, 2u);
  EXPECT_EQ(all.first_at(mapping_base + (8 << 20)), all.end());
}

TEST(mappings, know_whether_they_cover_a_range) {
  page_mappings all;
  all.add(mapping_at(0, 1));
  all.add(mapping_at(2 << 20, 2));
  all.add(mapping_at(6 << 20, 3));
  EXPECT_TRUE(all.cover(mapping_base, mapping_base + (4 << 20)));
  EXPECT_FALSE(all.cover(mapping_base, mapping_base + (3 << 20)));
  EXPECT_FALSE(all.cover(mapping_base, mapping_base + (8 << 20)));
  EXPECT_FALSE(all.cover(mapping_base + (4 << 20), mapping_base + (8 << 20)));
  EXPECT_TRUE(all.none_in(mapping_base + (4 << 20), mapping_base + (6 << 20)));
  EXPECT_FALSE(all.none_in(mapping_base + (4 << 20), mapping_base + (7 << 20)));
}

TEST(mappings, of_a_handle_are_found_while_they_are_parked) {
  page_mappings all;
  const auto low = all.add(mapping_at(0, 7));
  const auto high = all.add(mapping_at(2 << 20, 7));
  all.add(mapping_at(4 << 20, 8));
  high->second.lent = true;
  EXPECT_EQ(all.find_parked({7, 2_MiB}), low);
  all.erase(low);
  EXPECT_EQ(all.find_parked({7, 2_MiB}), all.end());
  high->second.lent = false;
  EXPECT_EQ(all.find_parked({7, 2_MiB}), high);
  EXPECT_EQ(all.find_parked({9, 2_MiB}), all.end());
  EXPECT_EQ(all.size(), 2u);
}

}}  // namespace weir::heap

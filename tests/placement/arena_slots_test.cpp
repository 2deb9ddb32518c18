// SPDX-License-Identifier: Apache-2.0
// Which handle is where: current places, mappings that were left behind, and numbers.
#include "placement/arena_slots.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "support/sizes.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

/// Addresses for ten slots of 2 MiB, of which the arena has eight.
class slot_records : public ::testing::Test {
 protected:
  using pairs = std::vector<std::pair<std::uint64_t, handle_number>>;

  slot_records() {
    slots.prepare(4, 8);
    slots.resize(8);
  }
  /// A handle of so many slots whose place begins there.
  handle_number put(std::uint32_t count, std::uint32_t at) {
    const handle_number number = slots.add({.handle = 100u + at, .size = bytes{count * 2 * mib}});
    slots.enter(number, at, /*returns=*/false);
    return number;
  }
  [[nodiscard]] std::vector<handle_number> current() const {
    std::vector<handle_number> all;
    for (std::uint64_t i = 0; i < slots.count(); ++i) all.push_back(slots[i].current);
    return all;
  }
  [[nodiscard]] std::vector<handle_number> retained() const {
    std::vector<handle_number> all;
    for (std::uint64_t i = 0; i < slots.count(); ++i) all.push_back(slots[i].retained);
    return all;
  }
  [[nodiscard]] pairs places() const {
    pairs all;
    slots.each_place([&](std::uint64_t at, const handle_record& handle) {
      all.emplace_back(at, handle.memory.handle);
    });
    return all;
  }
  [[nodiscard]] pairs left_behind() const {
    pairs all;
    slots.each_retained(
        [&](std::uint64_t at, handle_number number) { all.emplace_back(at, number); });
    return all;
  }
  using list = std::vector<handle_number>;

  static constexpr std::uint64_t base = std::uint64_t{1} << 40;
  arena_slots slots{base, 20 * mib, 2 * mib};
};

TEST_F(slot_records, addresses_count_from_the_base) {
  EXPECT_EQ(slots.slot_size(), 2 * mib);
  EXPECT_EQ(slots.base(), base);
  EXPECT_EQ(slots.limit(), base + 20 * mib);
  EXPECT_EQ(slots.end_address(), base + 16 * mib);
  EXPECT_EQ(slots.address_of(3), base + 6 * mib);
  EXPECT_EQ(slots.slot_of(base + 6 * mib - 1), 2u);
  EXPECT_EQ(slots.slot_of(base + 6 * mib), 3u);
  EXPECT_EQ(slots.handle_count(), 1u) << "the one that stands for none";
}

TEST_F(slot_records, a_handle_is_current_in_the_slots_of_its_place) {
  const handle_number pair = put(2, 0);
  const handle_number one = put(1, 4);
  EXPECT_EQ(std::pair(pair, one), std::pair(handle_number{1}, handle_number{2}));
  EXPECT_EQ(current(), (list{1, 1, 0, 0, 2, 0, 0, 0}));
  EXPECT_EQ(retained(), (list{0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(slots.handle(pair).slots, 2u);
  EXPECT_EQ(slots.handle(one).slot, 4u);
  EXPECT_EQ(slots.handle_at(1).memory.handle, 100u);
  EXPECT_EQ(slots.handle_at(2).slots, 0u) << "nothing is there";
  EXPECT_EQ(places(), (pairs{{0, 100}, {4, 104}}));
  EXPECT_EQ(left_behind(), pairs{});
}

TEST_F(slot_records, a_handle_that_leaves_stays_mapped_where_it_was) {
  put(2, 0);
  const handle_number moved = put(2, 2);
  slots.leave(moved);
  slots.enter(moved, 5, /*returns=*/false);
  EXPECT_EQ(current(), (list{1, 1, 0, 0, 0, 2, 2, 0}));
  EXPECT_EQ(retained(), (list{0, 0, 2, 2, 0, 0, 0, 0}));
  EXPECT_EQ(slots[2].retained_offset, 0u);
  EXPECT_EQ(slots[3].retained_offset, 1u);
  EXPECT_EQ(slots.handle(moved).retained, 1u);
  EXPECT_EQ(places(), (pairs{{0, 100}, {5, 102}}));
  EXPECT_EQ(left_behind(), (pairs{{2, moved}}));
}

TEST_F(slot_records, a_handle_that_returns_has_one_place_again) {
  const handle_number moved = put(2, 2);
  slots.leave(moved);
  slots.enter(moved, 5, /*returns=*/false);
  slots.leave(moved);
  slots.enter(moved, 2, /*returns=*/true);
  EXPECT_EQ(current(), (list{0, 0, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(retained(), (list{0, 0, 0, 0, 0, 1, 1, 0}));
  EXPECT_EQ(slots[3].retained_offset, 0u);
  EXPECT_EQ(slots.handle(moved).retained, 1u);
  EXPECT_EQ(left_behind(), (pairs{{5, moved}}));
}

TEST_F(slot_records, a_mapping_that_is_taken_away_is_not_counted_any_more) {
  const handle_number moved = put(2, 0);
  for (const std::uint32_t next : {2u, 4u}) {
    slots.leave(moved);
    slots.enter(moved, next, /*returns=*/false);
  }
  EXPECT_EQ(slots.handle(moved).retained, 2u);
  EXPECT_EQ(left_behind(), (pairs{{0, moved}, {2, moved}}));
  slots.drop_retained(0);
  EXPECT_EQ(retained(), (list{0, 0, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(slots[1].retained_offset, 0u);
  EXPECT_EQ(slots.handle(moved).retained, 1u);
}

TEST_F(slot_records, numbers_of_handles_that_are_gone_are_used_again) {
  put(2, 0);
  const handle_number second = put(1, 2);
  put(1, 3);
  slots.leave(second);
  slots.erase(second);
  EXPECT_EQ(current(), (list{1, 1, 0, 3, 0, 0, 0, 0}));
  EXPECT_EQ(retained(), (list{0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(slots.handle(second).slots, 0u);
  EXPECT_EQ(slots.handle(second).retained, 0u);
  EXPECT_EQ(put(2, 5), second);
  EXPECT_EQ(slots.handle_count(), 4u);
}

TEST_F(slot_records, a_handle_without_a_place_is_discarded_alone) {
  put(1, 0);
  const handle_number never_mapped = slots.add({.handle = 7, .size = bytes{4 * mib}});
  EXPECT_EQ(slots.handle(never_mapped).slots, 2u);
  slots.discard(never_mapped);
  EXPECT_EQ(current(), (list{1, 0, 0, 0, 0, 0, 0, 0})) << "slot 0 belongs to another";
  EXPECT_EQ(slots.handle(never_mapped).memory.handle, 0u);
  EXPECT_EQ(slots.add({.handle = 8, .size = bytes{2 * mib}}), never_mapped);
}

TEST_F(slot_records, a_handle_that_is_away_keeps_its_place) {
  const handle_number number = put(2, 1);
  slots.set_memory(number, {}, /*away=*/true);
  EXPECT_EQ(current(), (list{0, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(slots.handle(number).memory.handle, 0u);
  EXPECT_EQ(slots.handle(number).slots, 2u);
  EXPECT_TRUE(slots.handle(number).away);
  slots.set_memory(number, {.handle = 9, .size = bytes{4 * mib}}, /*away=*/false);
  EXPECT_EQ(slots.handle(number).memory.handle, 9u);
  EXPECT_FALSE(slots.handle(number).away);
}

TEST_F(slot_records, room_is_made_for_twice_as_many) {
  arena_slots fresh{base, 20 * mib, 2 * mib};
  EXPECT_EQ(fresh.footprint(), sizeof(handle_record));
  fresh.prepare(1, 1);
  EXPECT_EQ(fresh.footprint(),
            2 * sizeof(handle_record) + 2 * sizeof(handle_number) + sizeof(slot_record));
  fresh.prepare(1, 1);
  EXPECT_EQ(fresh.footprint(),
            2 * sizeof(handle_record) + 2 * sizeof(handle_number) + sizeof(slot_record))
      << "there is room yet";
  fresh.prepare(2, 3);
  EXPECT_EQ(fresh.footprint(),
            4 * sizeof(handle_record) + 4 * sizeof(handle_number) + 3 * sizeof(slot_record))
      << "as many as are needed, if that is more";
}

TEST_F(slot_records, cleared_it_has_neither_slots_nor_handles) {
  put(2, 0);
  slots.clear();
  EXPECT_EQ(slots.count(), 0u);
  EXPECT_EQ(slots.handle_count(), 1u);
  EXPECT_EQ(slots.end_address(), base);
  slots.resize(1);
  EXPECT_EQ(put(1, 0), 1u);
}

}  // namespace
}  // namespace weir::placement

// SPDX-License-Identifier: Apache-2.0
// The index of free runs, against a walk over all of them.
#include "placement/fit_index.hpp"
#include "support/sizes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace weir::placement { namespace {

using testing_support::kib;
using testing_support::mib;
constexpr std::uint64_t base = std::uint64_t{1} << 40;

class fit_indexes : public ::testing::Test {
 protected:
  block_index make(std::uint64_t address, std::uint64_t size) {
    EXPECT_TRUE(blocks.prepare(1));
    const block_index fresh = blocks.make();
    place(fresh, address, size);
    return fresh;
  }
  void place(block_index which, std::uint64_t address, std::uint64_t size) {
    blocks[which].become(block_kind::run);
    blocks[which].address = address;
    blocks[which].units = static_cast<std::uint32_t>(size / unit);
  }
  static std::uint32_t units(std::uint64_t size) { return static_cast<std::uint32_t>(size / unit); }

  block_store blocks;
  fit_index index{blocks, base};
};

TEST_F(fit_indexes, an_empty_one_has_nothing) {
  EXPECT_EQ(index.lowest(1), no_block);
  EXPECT_EQ(index.shortest(fit_index::large + 1), no_block);
  EXPECT_EQ(index.over(base), no_block);
  EXPECT_EQ(index.over(base + 300 * mib), no_block);
  EXPECT_EQ(index.longest(), 0u);
  EXPECT_EQ(index.total(), 0u);
}

TEST_F(fit_indexes, equal_runs_are_found_by_address_whatever_the_order_they_came_in) {
  const block_index high = make(base + 300 * mib, 2 * mib);
  const block_index low = make(base + 4 * mib, 2 * mib);
  const block_index small = make(base + 2 * mib + 64 * kib, 64 * kib);
  const block_index smaller = make(base + 2 * mib, 32 * kib);
  for (const block_index each : {high, low, small, smaller}) index.insert(each);
  EXPECT_EQ(index.shortest(units(2 * mib)), low);
  EXPECT_EQ(index.shortest(units(2 * mib) + 1), no_block);
  EXPECT_EQ(index.lowest(units(32 * kib)), smaller);
  EXPECT_EQ(index.lowest(units(32 * kib) + 1), small);
  EXPECT_EQ(index.lowest(units(64 * kib) + 1), low);
  EXPECT_EQ(index.total(), 4 * mib + 96 * kib);
  EXPECT_EQ(index.longest(), units(2 * mib));
  index.remove(low);
  EXPECT_EQ(index.shortest(units(2 * mib)), high);
  EXPECT_EQ(index.lowest(units(64 * kib) + 1), high);
  index.remove(high);
  EXPECT_EQ(index.longest(), units(64 * kib));
  EXPECT_EQ(index.total(), 96 * kib);
}

TEST_F(fit_indexes, a_close_fit_is_of_the_first_class_that_has_one_and_there_in_the_lowest_cell) {
  const block_index eighth = make(base, 100 * unit);
  const block_index near = make(base + 3 * mib, 92 * unit);
  const block_index same = make(base + 9 * mib, 91 * unit);
  const block_index same_and_low = make(base + 7 * mib, 91 * unit);
  for (const block_index each : {eighth, near, same, same_and_low}) index.insert(each);
  EXPECT_EQ(index.close_fit(91), same_and_low);
  index.remove(same_and_low);
  EXPECT_EQ(index.close_fit(91), same);
  EXPECT_EQ(index.close_fit(90), same);
  index.remove(same);
  EXPECT_EQ(index.close_fit(91), near);
  index.remove(near);
  EXPECT_EQ(index.close_fit(91), eighth);
  EXPECT_EQ(index.close_fit(89), eighth);
  EXPECT_EQ(index.close_fit(88), no_block) << "more than an eighth longer";
  EXPECT_EQ(index.close_fit(101), no_block);
}

TEST_F(fit_indexes, a_close_fit_may_be_longer_than_what_has_a_class) {
  const block_index longer = make(base + 5 * mib, mib + 128 * kib);
  const block_index too_long = make(base, mib + 128 * kib + unit);
  for (const block_index each : {too_long, longer}) index.insert(each);
  EXPECT_EQ(index.close_fit(units(mib)), longer);
  EXPECT_EQ(index.close_fit(units(mib) - 8), no_block) << "it is more than an eighth longer";
  index.remove(longer);
  EXPECT_EQ(index.close_fit(units(mib)), no_block);
}

TEST_F(fit_indexes, runs_of_the_own_class_that_are_too_short_do_not_hide_the_next_class) {
  for (std::uint64_t i = 0; i < 20; ++i) index.insert(make(base + i * mib, 512 * unit));
  const block_index own = make(base + 30 * mib, 527 * unit);
  const block_index next = make(base + 40 * mib, 528 * unit);
  index.insert(next);
  EXPECT_EQ(index.close_fit(520), next);
  index.insert(own);
  EXPECT_EQ(index.close_fit(520), next) << "it stands behind eight that are too short";
  EXPECT_EQ(index.close_fit(512 - 20), index.lowest(1));
}

/// What joins with its neighbours leaves first, and its cell is asked when the joined run is in.
TEST_F(fit_indexes, a_run_that_was_detached_is_forgotten_once_it_is_settled) {
  const block_index low = make(base + 64 * kib, 64 * kib);
  const block_index high = make(base + 128 * kib, 96 * kib);
  const block_index next = make(base + 256 * kib, 32 * kib);  // in the next cell
  for (const block_index each : {low, high, next}) index.insert(each);

  const fit_index::detached gone_high = index.detach(high);
  const fit_index::detached gone_low = index.detach(low);
  place(low, base + 64 * kib, 160 * kib);
  index.insert(low);
  index.settle(gone_high);
  index.settle(gone_low);
  EXPECT_EQ(index.total(), 192 * kib);
  EXPECT_EQ(index.longest(), units(160 * kib));
  EXPECT_EQ(index.lowest(units(160 * kib)), low);
  EXPECT_EQ(index.lowest(units(160 * kib) + 1), no_block);

  // Where nothing longer comes into the cell, settling finds what is left.
  const fit_index::detached gone = index.detach(low);
  index.settle(gone);
  EXPECT_EQ(index.longest(), units(32 * kib));
  EXPECT_EQ(index.lowest(1), next);
  index.settle({});  // of a run that had no place in the index
  EXPECT_EQ(index.total(), 32 * kib);
}

TEST_F(fit_indexes, of_a_cell_the_newest_is_seen_first_and_what_reaches_over_its_end_last) {
  const block_index low = make(base, 32 * kib);
  const block_index up_to_the_end = make(base + 192 * kib, 64 * kib);
  const block_index next = make(base + 256 * kib, 32 * kib);  // in the next cell
  const block_index over_the_end = make(base + 448 * kib, 64 * kib + unit);
  for (const block_index each : {low, up_to_the_end, next, over_the_end}) index.insert(each);
  std::vector<block_index> seen;
  const auto see = [&](block_index each) {
    seen.push_back(each);
    return false;
  };
  index.see_lowest(1, 10, see);
  EXPECT_EQ(seen, (std::vector{up_to_the_end, low, next, over_the_end}));
}

TEST_F(fit_indexes, who_has_seen_enough_sees_the_rest_of_the_cell) {
  const block_index low = make(base, 32 * kib);
  const block_index high = make(base + 192 * kib, 32 * kib);
  const block_index next = make(base + 256 * kib, 32 * kib);  // in the next cell
  const block_index far = make(base + 1500 * mib, 32 * kib);  // in another group
  for (const block_index each : {low, high, next, far}) index.insert(each);
  const auto seen_up_to = [&](block_index last) {
    std::vector<block_index> all;
    index.see_lowest(1, 10, [&](block_index each) {
      all.push_back(each);
      return each == last;
    });
    return all;
  };
  EXPECT_EQ(seen_up_to(high), (std::vector{high, low}));
  EXPECT_EQ(seen_up_to(next), (std::vector{high, low, next}));
  EXPECT_EQ(seen_up_to(no_block), (std::vector{high, low, next, far}));
}

TEST_F(fit_indexes, large_runs_are_seen_from_the_shortest_on) {
  const block_index long_one = make(base, 8 * mib);
  const block_index shortest = make(base + 64 * mib, 2 * mib);
  const block_index middle = make(base + 96 * mib, 3 * mib);
  const block_index as_long = make(base + 32 * mib, 3 * mib);
  const block_index small = make(base + 128 * mib, mib);
  for (const block_index each : {long_one, shortest, middle, as_long, small}) index.insert(each);
  const auto seen = [&](std::uint64_t size, std::size_t most, block_index last = no_block) {
    std::vector<block_index> all;
    index.see_shortest(units(size), most, [&](block_index each) {
      all.push_back(each);
      return each == last;
    });
    return all;
  };
  EXPECT_EQ(seen(mib + unit, 10), (std::vector{shortest, as_long, middle, long_one}));
  EXPECT_EQ(seen(2 * mib + unit, 10), (std::vector{as_long, middle, long_one}));
  EXPECT_EQ(seen(2 * mib, 2), (std::vector{shortest, as_long}));
  EXPECT_EQ(seen(2 * mib, 10, as_long), (std::vector{shortest, as_long}));
  EXPECT_EQ(seen(2 * mib, 0), (std::vector<block_index>{}));
  EXPECT_EQ(seen(9 * mib, 10), (std::vector<block_index>{}));
}

TEST_F(fit_indexes, only_runs_that_are_long_enough_are_seen_and_no_more_than_asked_for) {
  const block_index low = make(base, 64 * kib);
  const block_index shorter = make(base + 64 * kib, 64 * kib - unit);
  const block_index high = make(base + 128 * kib, 64 * kib);
  const block_index next = make(base + 256 * kib, 64 * kib);  // in the next cell
  for (const block_index each : {low, shorter, high, next}) index.insert(each);
  const auto seen = [&](std::size_t most) {
    std::vector<block_index> all;
    index.see_lowest(units(64 * kib), most, [&](block_index each) {
      all.push_back(each);
      return false;
    });
    return all;
  };
  EXPECT_EQ(seen(10), (std::vector{high, low, next}));
  EXPECT_EQ(seen(2), (std::vector{high, low}));
  EXPECT_EQ(seen(1), (std::vector{high}));
  EXPECT_EQ(seen(0), (std::vector<block_index>{}));
}

TEST_F(fit_indexes, a_large_run_that_shrinks_keeps_its_place_by_length) {
  const block_index longer = make(base, 40 * mib);
  const block_index shorter = make(base + 64 * mib, 8 * mib);
  for (const block_index each : {longer, shorter}) index.insert(each);
  index.shrink(longer, units(20 * mib));
  EXPECT_EQ(index.shortest(units(2 * mib)), shorter);
  EXPECT_EQ(index.longest(), units(20 * mib));
  index.shrink(longer, units(12 * mib));
  EXPECT_EQ(blocks[longer].address, base + 32 * mib);
  EXPECT_EQ(index.shortest(units(2 * mib)), longer) << "of equals the lower one";
  EXPECT_EQ(index.lowest(1), longer);
  index.shrink(longer, units(7 * mib));
  EXPECT_EQ(index.shortest(units(2 * mib)), shorter) << "the other is no longer large";
  EXPECT_EQ(index.lowest(units(mib)), longer);
  EXPECT_EQ(index.longest(), units(8 * mib));
  EXPECT_EQ(index.total(), 9 * mib);
}

TEST_F(fit_indexes, hold_memory_by_the_cells_that_are_used) {
  EXPECT_EQ(index.footprint(), 0u);
  index.insert(make(base, 64 * kib));
  const std::size_t one = index.footprint();
  index.insert(make(base + 15 * mib, 64 * kib));
  EXPECT_EQ(index.footprint(), one) << "the same 64 cells";
  index.insert(make(base + 16 * mib, 64 * kib));
  const std::size_t chunk = index.footprint() - one;
  EXPECT_EQ(chunk,
            64 * (sizeof(std::uint16_t) + 2 * sizeof(block_index)) + 225 * sizeof(std::uint64_t))
      << "cells and classes";
  index.insert(make(base + 900 * mib, 64 * kib));
  EXPECT_EQ(index.footprint(), one + 2 * chunk);
  const std::size_t top = 225 * sizeof(std::uint64_t);
  const std::size_t group = one - chunk - top;
  EXPECT_EQ(group, 64 * (2 * sizeof(void*) + sizeof(std::uint16_t)) + sizeof(void*) + top)
      << "for as many chunks";
  index.insert(make(base + 1024 * mib, 64 * kib));
  EXPECT_EQ(index.footprint(), top + 2 * group + 4 * chunk);
}

/// Room for a run, apart from all others.
struct room {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};

TEST_F(fit_indexes, agree_with_a_walk) {
  std::vector<room> rooms;
  std::uint64_t at = base;
  // Several in a cell, some over the end of theirs, some over many; more than two groups of 1 GiB.
  for (int i = 0; i < 60; ++i) rooms.push_back({at += 24 * kib, 24 * kib});
  for (int i = 0; i < 60; ++i) rooms.push_back({at += 200 * kib, 200 * kib});
  // More than a leaf of the order by length takes.
  for (int i = 0; i < 400; ++i) rooms.push_back({at += 5 * mib, 5 * mib});
  for (int i = 0; i < 60; ++i) rooms.push_back({at += 40 * mib, 40 * mib});

  std::uint64_t highest = 0;  // beyond all, and the index's last chunk
  for (const room& each : rooms)
    highest = std::max(highest, each.address + each.size - base + 64 * mib);
  std::mt19937 random{7};
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  std::vector<block_index> inside;
  std::vector<std::pair<block_index, room>> outside;
  for (const room& each : rooms) outside.emplace_back(make(each.address, unit), each);
  std::vector<room> home(blocks.in_use() * 2 + 2);
  for (const auto& [which, place_of] : outside) home[which] = place_of;

  for (int step = 0; step < 6'000; ++step) {
    const std::uint64_t choice = below(5);
    if (inside.empty() || (choice < 2 && !outside.empty())) {
      std::swap(outside[below(outside.size())], outside.back());
      const auto [which, free] = outside.back();
      outside.pop_back();
      // Now and then a length that others have, too.
      const std::uint64_t all = free.size / unit;
      const std::uint64_t length = below(3) == 0 ? all : 1 + below(all);
      place(which, free.address + below(all - length + 1) * unit, length * unit);
      index.insert(which);
      inside.push_back(which);
    } else if (choice < 4) {
      std::swap(inside[below(inside.size())], inside.back());
      index.remove(inside.back());
      outside.emplace_back(inside.back(), home[inside.back()]);
      inside.pop_back();
    } else {
      const block_index which = inside[below(inside.size())];
      const std::uint64_t address = blocks[which].address;
      const std::uint64_t length = blocks[which].units;
      if (length > 1) {
        const auto less = static_cast<std::uint32_t>(1 + below(length - 1));
        index.shrink(which, less);
        ASSERT_EQ(blocks[which].address, address + less * unit);
        ASSERT_EQ(blocks[which].units, length - less);
      }
    }

    const auto small = static_cast<std::uint32_t>(1 + below(below(2) == 0 ? 400 : 65'535));
    const auto large = static_cast<std::uint32_t>(fit_index::large + 1 + below(90'000));
    block_index lowest = no_block;
    block_index shortest = no_block;
    std::uint64_t longest = 0;
    std::uint64_t total = 0;
    for (const block_index each : inside) {
      const block& run = blocks[each];
      longest = std::max<std::uint64_t>(longest, run.units);
      total += run.size();
      if (run.units >= small && (lowest == no_block || run.address < blocks[lowest].address))
        lowest = each;
      const auto is_better = [&](const block& than) {
        return run.units != than.units ? run.units < than.units : run.address < than.address;
      };
      if (run.units >= large && (shortest == no_block || is_better(blocks[shortest])))
        shortest = each;
    }
    // An address in a run, beside one, or anywhere up to beyond the last.
    const auto near = [&] {
      if (inside.empty() || below(4) == 0) return base + below(highest / unit) * unit;
      const block& run = blocks[inside[below(inside.size())]];
      const std::uint64_t edges[] = {run.address - unit, run.address, run.end() - unit, run.end(),
                                     run.address + below(run.units) * unit};
      return std::max(edges[below(5)], base);
    }();
    block_index over = no_block;
    for (const block_index each : inside)
      if (blocks[each].units > fit_index::large && blocks[each].address <= near &&
          near < blocks[each].end())
        over = each;
    if (const std::uint64_t wanted = std::min<std::uint64_t>(small, fit_index::large);
        const block_index close = index.close_fit(wanted)) {
      ASSERT_TRUE(std::find(inside.begin(), inside.end(), close) != inside.end()) << step;
      ASSERT_GE(blocks[close].units, wanted) << step;
      ASSERT_LE(blocks[close].units, wanted + wanted / 8) << step;
    } else {
      // Only runs of the first and the last class may be passed over: others there do not fit.
      const auto class_of = [](std::uint64_t length) {
        return length_classes::class_of(std::min<std::uint64_t>(length, fit_index::large));
      };
      for (const block_index each : inside) {
        const std::uint64_t length = blocks[each].units;
        ASSERT_TRUE(length < wanted || length > wanted + wanted / 8 ||
                    class_of(length) == class_of(wanted) ||
                    class_of(length) == class_of(wanted + wanted / 8))
            << step;
      }
    }
    ASSERT_EQ(index.over(near), over) << step;
    ASSERT_EQ(index.lowest(small), lowest) << step;
    ASSERT_EQ(index.shortest(large), shortest) << step;
    ASSERT_EQ(index.longest(), longest) << step;
    ASSERT_EQ(index.total(), total) << step;
  }
}

}  // namespace
}  // namespace weir::placement

// SPDX-License-Identifier: Apache-2.0
// Which of the windows over runs and holes is the best.
#include "placement/window_search.hpp"

#include "placement/arena_records.hpp"
#include "placement/usual_places.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

class window_searches : public arena_records {
 protected:
  /// Over all runs and holes of the arena.
  [[nodiscard]] room_window best_for(const request& wanted) const {
    window_search search{slots, places, wanted};
    for (block_index at = runs.first(); at != no_block; at = runs[at].after) {
      const block_kind kind = runs[at].is();
      if (kind == block_kind::run || kind == block_kind::hole) {
        search.add(at, runs[at], kind == block_kind::hole);
      } else {
        search.end_row();
      }
    }
    return search.finish();
  }
  /// Its begin and gaps; what it begins in is checked.
  void expect_window(const request& wanted, std::uint64_t start, std::uint64_t gap_slots,
                     std::uint64_t left_over) {
    const room_window found = best_for(wanted);
    EXPECT_TRUE(found.exists);
    EXPECT_EQ(found.start, start) << (found.start - base) / mib;
    EXPECT_EQ(found.end, start + wanted.units * unit);
    EXPECT_EQ(found.gap_slots, gap_slots);
    EXPECT_EQ(found.left_over, left_over);
    EXPECT_EQ(found.first, runs.over(start));
  }

  usual_places usual{runs, slots, core.rules};
  const place_chooser& places = usual;
};

TEST_F(window_searches, the_window_with_the_fewest_slots_to_map_is_the_best) {
  run(2 * mib);
  hole(4 * mib);
  live(2 * mib);
  run(4 * mib);
  hole(2 * mib);
  live(2 * mib);
  expect_window(asks(6 * mib), at(8 * mib), 1, 0);
}

TEST_F(window_searches, of_these_the_one_that_leaves_the_least_over) {
  run(8 * mib);
  live(2 * mib);
  run(6 * mib);
  live(2 * mib);
  run(7 * mib);
  live(mib);
  expect_window(asks(6 * mib), at(10 * mib), 0, 0);
  expect_window(asks(7 * mib), at(18 * mib), 0, 0);
  expect_window(asks(5 * mib), at(10 * mib), 0, mib);
}

TEST_F(window_searches, of_these_the_lowest) {
  run(4 * mib);
  live(2 * mib);
  run(4 * mib);
  live(2 * mib);
  expect_window(asks(3 * mib), at(0), 0, mib);
}

TEST_F(window_searches, a_window_may_go_over_several_runs_and_holes) {
  live(2 * mib);
  run(2 * mib, known.now(stream_slots[0]));
  run(2 * mib, known.now(stream_slots[1]));
  hole(2 * mib);
  run(2 * mib);
  live(2 * mib);
  expect_window(asks(8 * mib), at(2 * mib), 1, 0);
  expect_window(asks(4 * mib), at(2 * mib), 0, 0);
}

TEST_F(window_searches, a_window_can_be_laid_against_the_end_of_a_run) {
  hole(6 * mib);
  run(4 * mib);
  live(2 * mib);
  // From the begin of the hole it would have three slots to map.
  expect_window(asks(6 * mib), at(4 * mib), 1, 0);
  expect_window(asks(5 * mib), at(5 * mib), 1, 0);
}

TEST_F(window_searches, what_a_hole_keeps_of_its_last_slot_is_left_over) {
  run(2 * mib);
  hole(4 * mib);
  live(2 * mib);
  expect_window(asks(3 * mib), at(0), 1, mib);
}

TEST_F(window_searches, the_last_row_goes_on_beyond_the_arenas_end) {
  live(2 * mib);
  run(4 * mib);
  expect_window(asks(10 * mib), at(2 * mib), 3, 0);
  expect_window(asks(4 * mib), at(2 * mib), 0, 0);
}

TEST_F(window_searches, behind_a_live_block_the_window_begins_with_the_arenas_end) {
  run(2 * mib);
  live(4 * mib);
  const room_window found = best_for(asks(3 * mib));
  EXPECT_TRUE(found.exists);
  EXPECT_EQ(found.start, at(6 * mib));
  EXPECT_EQ(found.gap_slots, 2u);
  EXPECT_EQ(found.first, no_block);
  request aligned = asks(3 * mib);
  aligned.alignment = static_cast<std::uint32_t>(8 * mib / unit);
  EXPECT_EQ(best_for(aligned).start, at(8 * mib));
  EXPECT_EQ(best_for(aligned).gap_slots, 3u) << "the slot up to there as well";
}

/// There are addresses for 1,000 slots.
TEST_F(window_searches, there_is_no_window_beyond_the_last_address) {
  live(1000 * mib);
  EXPECT_EQ(best_for(asks(1000 * mib)).start, at(1000 * mib));
  EXPECT_FALSE(best_for(asks(1000 * mib + unit)).exists);
  run(500 * mib);
  EXPECT_EQ(best_for(asks(1000 * mib)).start, at(1000 * mib));
  EXPECT_FALSE(best_for(asks(1000 * mib + unit)).exists);
}

TEST_F(window_searches, windows_keep_to_the_limits_of_the_rules) {
  class strict final : public place_chooser {
   public:
    free_place fit(const request& /*wanted*/) override { return {}; }
    [[nodiscard]] window_limits limits_in(block_index index,
                                          const request& /*wanted*/) const noexcept override {
      return limits[index];
    }
    [[nodiscard]] growth_limits growth_for(const request& /*wanted*/) const noexcept override {
      return {};
    }
    [[nodiscard]] bool keeps(std::uint64_t /*address*/) const noexcept override { return false; }
    std::vector<window_limits> limits = std::vector<window_limits>(100);
  };
  strict rules;
  const block_index low = hole(4 * mib);
  const block_index high = run(4 * mib);
  live(2 * mib);
  rules.limits[low] = {.start = at(mib), .end = at(4 * mib), .ends_with_it = false};
  rules.limits[high] = {.start = at(5 * mib), .end = at(7 * mib), .ends_with_it = true};
  const auto best = [&](std::uint64_t size) {
    const request wanted = asks(size);
    window_search search{slots, rules, wanted};
    search.add(low, runs[low], true);
    search.add(high, runs[high], false);
    search.end_row();
    return search.finish();
  };
  EXPECT_EQ(best(6 * mib).start, at(2 * mib)) << "against the end, with one slot to map";
  rules.limits[high].ends_with_it = false;
  EXPECT_EQ(best(2 * mib).start, at(5 * mib));
  EXPECT_EQ(best(6 * mib).start, at(mib)) << "up to 7 MiB";
  EXPECT_EQ(best(6 * mib + unit).start, at(10 * mib)) << "at the arena's end";
}

}  // namespace
}  // namespace weir::placement

// SPDX-License-Identifier: Apache-2.0
// Where blocks go that were planned, and when there is a plan.
#include "placement/planned_places.hpp"

#include <array>
#include <map>

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

/// Plays the round of the example in rounds.hpp, in an arena of 640 MiB. The rule below gives
/// answers of its own.
class planned_rules : public arena_records {
 protected:
  class below final : public place_chooser {
   public:
    free_place fit(const request& /*wanted*/) override { return elsewhere; }
    [[nodiscard]] window_limits limits_in(block_index /*index*/,
                                          const request& /*wanted*/) const noexcept override {
      return {.start = 1, .end = 2, .ends_with_it = false};
    }
    [[nodiscard]] growth_limits growth_for(const request& /*wanted*/) const noexcept override {
      return {.one_slot_handles = true, .exact = true};
    }
    [[nodiscard]] bool keeps(std::uint64_t address) const noexcept override { return address == 5; }
  };
  static constexpr free_place elsewhere{.first = 77, .start = 7};
  static constexpr std::array<std::uint64_t, 8> sizes{20, 6, 2, 2, 10, 4, 2, 2};  // MiB
  static constexpr std::array<std::size_t, 8> lifetimes{8, 4, 2, 2, 8, 4, 2, 2};

  planned_rules() {
    append(64 * mib, block_kind::live);
    low = end;
  }
  /// The next request of the round; blocks that are due are freed before it.
  void play_one() {
    for (auto each = lying.begin(); each != lying.end();) {
      if (each->second.until != time) {
        ++each;
        continue;
      }
      blocks_given.address = each->second.address;
      blocks_given.units = static_cast<std::uint32_t>(each->second.size / unit);
      places.freed(blocks_given);
      each = lying.erase(each);
    }
    const std::size_t i = time % 8;
    const given made{base + (200 + 32 * i) * mib, sizes[i] * mib, time + lifetimes[i]};
    blocks_given.address = made.address;
    blocks_given.units = static_cast<std::uint32_t>(made.size / unit);
    blocks_given.stream = stream_slots[0];
    places.handed_out(blocks_given);
    lying.emplace(time, made);
    ++time;
  }
  void play(int rounds, std::uint64_t slots_moved = 10) {
    for (int i = 0; i < rounds; ++i) {
      for (int j = 0; j < 8; ++j) play_one();
      if (slots_moved != 0) places.moved(slots_moved);
    }
  }
  /// Four rounds, and the plan that is made of them, in a hole at the end.
  void plan() {
    places.moved(1);
    play(4);
    EXPECT_EQ(places.draw_plan(figures), 20u);
    hole(40 * mib);
    places.lay_out(low, figures);
  }

  struct given {
    std::uint64_t address;
    std::uint64_t size;
    std::size_t until;
  };
  below otherwise;
  planned_places places{runs, slots, otherwise};
  arena_figures figures{.reserved = 640 * mib};
  std::map<std::size_t, given> lying;
  std::size_t time = 0;
  block blocks_given;
  std::uint64_t low = 0;  // where plans are laid out
};

TEST_F(planned_rules, without_a_plan_the_rule_below_answers) {
  const block_index free = run(4 * mib);
  EXPECT_EQ(places.draw_plan(figures), 0u);
  EXPECT_EQ(places.fit(asks(20 * mib)), elsewhere);
  EXPECT_FALSE(places.window_for(asks(20 * mib)).exists);
  EXPECT_EQ(places.limits_in(free, asks(mib)),
            (window_limits{.start = 1, .end = 2, .ends_with_it = false}));
  EXPECT_EQ(places.growth_for(asks(mib)), (growth_limits{.one_slot_handles = true, .exact = true}));
  EXPECT_TRUE(places.keeps(5));
  EXPECT_FALSE(places.keeps(low));
  EXPECT_EQ(places.footprint(), 0u);
}

TEST_F(planned_rules, more_than_a_mebibyte_can_be_planned) {
  EXPECT_FALSE(planned_places::can_plan(mib / unit));
  EXPECT_TRUE(planned_places::can_plan(mib / unit + 1));
}

TEST_F(planned_rules, a_plan_is_drawn_once_and_only_if_it_takes_no_memory) {
  places.moved(1);
  play(4);
  figures.handed_out = 616 * mib + unit;  // of that, 16 MiB belong to the round: e, f and h live on
  EXPECT_EQ(places.draw_plan(figures), 0u);
  figures.handed_out = 616 * mib;
  play(4);  // the next plan may be made after four more rounds
  EXPECT_EQ(places.draw_plan(figures), 20u);
  EXPECT_EQ(places.draw_plan(figures), 0u) << "not at once again";
}

/// There are addresses for 1,000 slots.
TEST_F(planned_rules, a_plan_may_lie_in_the_first_half_of_all_addresses) {
  places.moved(1);
  play(4);
  hole(1000 * mib - 40 * mib - 64 * mib);
  EXPECT_EQ(places.draw_plan(figures), 20u);
}

TEST_F(planned_rules, half_of_all_addresses_are_left_for_others) {
  places.moved(1);
  play(4);
  hole(1000 * mib - 40 * mib - 64 * mib + slot);
  EXPECT_EQ(places.draw_plan(figures), 0u);
}

TEST_F(planned_rules, a_planned_block_waits_for_memory_at_its_place) {
  plan();
  EXPECT_EQ(places.fit(asks(20 * mib)), free_place{}) << "nothing is mapped there";
  const room_window room = places.window_for(asks(20 * mib));
  EXPECT_TRUE(room.exists);
  EXPECT_EQ(room.start, low);
  EXPECT_EQ(room.end, low + 20 * mib);
  EXPECT_EQ(room.gap_slots, 10u);
  EXPECT_EQ(runs[room.first].address, low);
  play_one();
  EXPECT_EQ(places.window_for(asks(6 * mib)).start, low + 30 * mib);
  play_one();
  EXPECT_EQ(places.window_for(asks(2 * mib)).start, low + 36 * mib);
}

TEST_F(planned_rules, a_planned_block_gets_its_place_if_all_of_it_is_free_for_its_stream) {
  places.moved(1);
  play(4);
  ASSERT_EQ(places.draw_plan(figures), 20u);
  const block_index first = run(6 * mib);
  run(8 * mib, known.now(stream_slots[0]));
  run(26 * mib);
  places.lay_out(low, figures);
  EXPECT_EQ(places.fit(asks(20 * mib)),
            (free_place{.first = first, .start = low, .over_runs = true}));
  EXPECT_EQ(places.window_for(asks(20 * mib)).gap_slots, 0u);
}

TEST_F(planned_rules, a_place_that_another_stream_may_use_is_missed) {
  places.moved(1);
  play(4);
  ASSERT_EQ(places.draw_plan(figures), 20u);
  run(6 * mib);
  run(34 * mib, known.now(stream_slots[1]));
  places.lay_out(low, figures);
  EXPECT_EQ(places.fit(asks(20 * mib)), elsewhere);
  EXPECT_FALSE(places.window_for(asks(20 * mib)).exists);
}

TEST_F(planned_rules, a_request_out_of_order_goes_where_the_rule_below_says) {
  plan();
  EXPECT_EQ(places.fit(asks(21 * mib)), elsewhere);
  EXPECT_EQ(places.fit(asks(6 * mib)), elsewhere);
  EXPECT_FALSE(places.window_for(asks(6 * mib)).exists);
  request aligned = asks(20 * mib);
  aligned.alignment = static_cast<std::uint32_t>(128 * mib / unit);
  EXPECT_FALSE(places.window_for(aligned).exists) << "the place is not aligned like that";
}

TEST_F(planned_rules, after_four_misses_in_a_row_the_place_is_given_up) {
  plan();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(places.window_for(asks(20 * mib)).start, low) << i;
    places.missed(asks(20 * mib));
    play(1, 0);
  }
  EXPECT_EQ(places.fit(asks(20 * mib)), elsewhere);
}

TEST_F(planned_rules, planned_addresses_are_kept) {
  plan();
  EXPECT_FALSE(places.keeps(low - 1));
  EXPECT_TRUE(places.keeps(low));
  EXPECT_TRUE(places.keeps(low + 40 * mib - 1));
  EXPECT_FALSE(places.keeps(low + 40 * mib));
  EXPECT_TRUE(places.keeps(5)) << "says the rule below";
  places.drop_plan();
  EXPECT_FALSE(places.keeps(low));
  EXPECT_EQ(places.fit(asks(20 * mib)), elsewhere);
}

TEST_F(planned_rules, a_plan_is_outgrown_where_the_arena_is_a_sixty_fourth_larger) {
  EXPECT_FALSE(places.is_outgrown(asks(600 * mib), figures)) << "there is none";
  plan();
  EXPECT_FALSE(places.is_outgrown(asks(10 * mib), figures));
  EXPECT_TRUE(places.is_outgrown(asks(10 * mib + unit), figures));
  figures.reserved += 10 * mib;
  EXPECT_TRUE(places.is_outgrown(asks(unit), figures));
}

TEST_F(planned_rules, small_blocks_are_not_noted) {
  places.moved(1);
  const std::size_t notes = places.footprint();
  EXPECT_GT(notes, 0u);
  blocks_given.address = base + 900 * mib;
  blocks_given.units = static_cast<std::uint32_t>(mib / unit);
  places.handed_out(blocks_given);
  places.freed(blocks_given);
  EXPECT_EQ(places.footprint(), notes);
  blocks_given.units = static_cast<std::uint32_t>(mib / unit + 1);
  places.handed_out(blocks_given);
  EXPECT_EQ(places.footprint(), notes + 901 * sizeof(std::uint64_t)) << "by mebibyte";
  places.forget();
  EXPECT_EQ(places.footprint(), 0u);
}

}  // namespace
}  // namespace weir::placement

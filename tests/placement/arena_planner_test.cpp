// SPDX-License-Identifier: Apache-2.0
// What a plan consists of: windows, and the handles that fill their gaps.
#include "placement/arena_planner.hpp"

#include <tuple>

#include "placement/arena_records.hpp"
#include "placement/usual_places.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

/// The usual rules for places, but for what tests say; figures as tests say.
class plans : public arena_records {
 protected:
  /// Handles follow the request up to 8 MiB; growth comes in 8 MiB; nothing is left for headroom.
  static growth_rules simple_rules() {
    return {.handle_scale = 1,
            .largest_handle = 8 * mib,
            .reserved_share = 1,
            .request_share = 1,
            .unit_share = 1,
            .slack = 0.5,
            .headroom = 0};
  }
  class rules_of_tests final : public place_chooser {
   public:
    explicit rules_of_tests(place_chooser& usual) : usual_{usual} {}
    free_place fit(const request& wanted) override { return usual_.fit(wanted); }
    [[nodiscard]] window_limits limits_in(block_index index,
                                          const request& wanted) const noexcept override {
      ++asked;
      return usual_.limits_in(index, wanted);
    }
    [[nodiscard]] growth_limits growth_for(const request& /*wanted*/) const noexcept override {
      return growth;
    }
    [[nodiscard]] bool keeps(std::uint64_t address) const noexcept override {
      return address == kept;
    }
    mutable int asked = 0;
    growth_limits growth;
    std::uint64_t kept = 0;

   private:
    place_chooser& usual_;
  };
  class figures_of_tests final : public arena_host {
   public:
    [[nodiscard]] arena_figures figures() const noexcept override { return held; }
    void count_created(std::uint64_t /*size*/) noexcept override {}
    void count_released(std::uint64_t /*size*/) noexcept override {}
    void moved(std::uint64_t /*slots*/) noexcept override {}
    void hand_out(block_index /*index*/, const request& /*wanted*/) noexcept override {}
    arena_figures held;
  };

  plans() : arena_records{simple_rules()} {}
  explicit plans(const growth_rules& rules) : arena_records{rules} {}

  /// Where a handle goes, how large it is, where from (0: new), and whether it returns.
  using filling = std::tuple<std::uint32_t, std::uint32_t, handle_number, bool>;
  [[nodiscard]] static std::vector<filling> fillings(const room_plan& plan) {
    std::vector<filling> all;
    for (const gap_filling& each : plan.fillings)
      all.emplace_back(each.slot, each.slots, each.from, each.returns);
    return all;
  }
  [[nodiscard]] room_plan plan(std::uint64_t size, fill_with by = fill_with::free_handles,
                               reach whose = reach::usable) {
    return planner.plan(asks(size), whose, by);
  }

  usual_places usual{runs, slots, core.rules};
  rules_of_tests places{usual};
  figures_of_tests host;
  arena_planner planner{core, places, host};
};

TEST_F(plans, growth_is_preferred_up_to_the_slack_over_the_peak) {
  host.held = {.reserved = 20 * mib, .peak_handed_out = 16 * mib};
  EXPECT_TRUE(planner.prefers_growth(asks(4 * mib)));
  EXPECT_FALSE(planner.prefers_growth(asks(4 * mib + unit)));
}

TEST_F(plans, a_plan_is_worth_a_search_where_there_are_runs_enough_or_headroom) {
  live(2 * mib);
  run(4 * mib, known.now(stream_slots[0]));
  live(2 * mib);
  run(2 * mib, known.now(stream_slots[1]));
  host.held = {.reserved = 10 * mib, .peak_handed_out = 10 * mib};
  EXPECT_TRUE(planner.is_worth_a_plan(asks(4 * mib), reach::usable));
  EXPECT_FALSE(planner.is_worth_a_plan(asks(4 * mib + unit), reach::usable));
  EXPECT_FALSE(planner.is_worth_a_plan(asks(4 * mib, 1), reach::usable));
  EXPECT_TRUE(planner.is_worth_a_plan(asks(6 * mib), reach::behind_wait));
  EXPECT_FALSE(planner.is_worth_a_plan(asks(6 * mib + unit), reach::behind_wait));
  host.held.peak_handed_out = 12 * mib;
  EXPECT_TRUE(planner.is_worth_a_plan(asks(100 * mib), reach::usable)) << "for one slot";
}

TEST_F(plans, a_free_handle_moves_to_the_gap_behind_a_run) {
  live(2 * mib);
  const block_index low = run(2 * mib);
  live(2 * mib);
  run(2 * mib);
  const room_plan room = plan(4 * mib);
  EXPECT_TRUE(room.complete);
  EXPECT_EQ(room.window.start, at(6 * mib));
  EXPECT_EQ(room.window.end, at(10 * mib));
  EXPECT_EQ(room.new_slots, 0u);
  EXPECT_EQ(fillings(room), (std::vector<filling>{{4, 1, 2, false}}));
  EXPECT_EQ(room.fillings[0].source, low);
  EXPECT_EQ(room.fillings[0].hole, no_block);
  EXPECT_FALSE(plan(4 * mib + unit).complete) << "one slot more than there is";
}

TEST_F(plans, a_handle_that_left_a_mapping_behind_returns) {
  run(2 * mib);
  const block_index gap = hole(2 * mib);
  run(2 * mib);
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  const handle_number away = slots[4].current;
  slots.leave(away);  // to slot 1, as if it had come from there, and back
  slots.enter(away, 1, /*returns=*/false);
  slots.leave(away);
  slots.enter(away, 4, /*returns=*/true);
  ASSERT_EQ(slots[1].retained, away);
  const room_plan room = plan(6 * mib);
  EXPECT_TRUE(room.complete);
  EXPECT_EQ(room.window.start, at(0));
  EXPECT_EQ(fillings(room), (std::vector<filling>{{1, 1, away, true}}));
  EXPECT_EQ(room.fillings[0].hole, gap);
}

TEST_F(plans, the_largest_handles_are_taken_first_then_those_of_short_stretches) {
  run(4 * mib);  // two handles in a stretch of 4 MiB
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  handle_slots = 2;
  run(4 * mib);
  live(4 * mib);
  EXPECT_EQ(fillings(plan(4 * mib, fill_with::both)), (std::vector<filling>{}));
  // Slots 0 and 1, 3, and 5 with 6; the arena ends with slot 8.
  const room_plan room = plan(10 * mib);
  EXPECT_EQ(room.window.start, at(18 * mib));
  EXPECT_EQ(fillings(room), (std::vector<filling>{{9, 2, slots[5].current, false},
                                                  {11, 1, slots[3].current, false},
                                                  {12, 1, slots[0].current, false},
                                                  {13, 1, slots[1].current, false}}));
  EXPECT_TRUE(room.complete);
}

TEST_F(plans, handles_that_are_where_they_should_be_are_taken_last) {
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  places.kept = at(2 * mib);
  EXPECT_EQ(fillings(plan(4 * mib)), (std::vector<filling>{{5, 1, slots[3].current, false},
                                                           {6, 1, slots[1].current, false}}));
}

TEST_F(plans, at_the_arenas_end_the_smallest_handle_that_covers_the_rest_may_stick_out) {
  handle_slots = 4;
  run(8 * mib);
  live(8 * mib);
  handle_slots = 2;
  run(4 * mib);
  live(4 * mib);
  const room_plan room = plan(10 * mib);  // five slots: four, and two that cover the last
  EXPECT_TRUE(room.complete);
  EXPECT_EQ(fillings(room), (std::vector<filling>{{12, 4, slots[0].current, false},
                                                  {16, 2, slots[8].current, false}}));
}

TEST_F(plans, new_handles_get_smaller_towards_the_end_of_a_gap_and_so_does_the_surplus) {
  live(2 * mib);
  host.held.reserved = 64 * mib;
  const room_plan room = plan(14 * mib, fill_with::new_handles);
  EXPECT_TRUE(room.complete);
  // 14 MiB, and 2 MiB up to a multiple of 8.
  EXPECT_EQ(fillings(room),
            (std::vector<filling>{
                {1, 4, 0, false}, {5, 2, 0, false}, {7, 1, 0, false}, {8, 1, 0, false}}));
  EXPECT_EQ(room.new_slots, 8u);
}

TEST_F(plans, new_memory_keeps_to_the_limits_of_the_rules) {
  live(2 * mib);
  host.held.reserved = 64 * mib;
  places.growth = {.one_slot_handles = true, .exact = true};
  EXPECT_EQ(fillings(plan(6 * mib, fill_with::new_handles)),
            (std::vector<filling>{{1, 1, 0, false}, {2, 1, 0, false}, {3, 1, 0, false}}));
  places.growth = {.one_slot_handles = false, .exact = true};
  EXPECT_EQ(fillings(plan(6 * mib, fill_with::new_handles)),
            (std::vector<filling>{{1, 2, 0, false}, {3, 1, 0, false}}));
}

TEST_F(plans, there_is_no_surplus_over_the_limit) {
  live(2 * mib);
  host.held.reserved = 64 * mib;
  shared.reserved_limit = 7 * mib;
  EXPECT_EQ(plan(6 * mib, fill_with::new_handles).new_slots, 3u);
}

TEST_F(plans, free_handles_serve_as_far_as_they_go) {
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  const room_plan room = plan(6 * mib, fill_with::both);
  EXPECT_TRUE(room.complete);
  EXPECT_EQ(fillings(room),
            (std::vector<filling>{{3, 1, slots[1].current, false}, {4, 2, 0, false}}));
  EXPECT_EQ(room.new_slots, 2u);
  const room_plan moving = plan(6 * mib);
  EXPECT_FALSE(moving.complete);
  EXPECT_EQ(moving.new_slots, 0u);
}

/// Three handles of one slot, for which two new ones would do.
TEST_F(plans, where_there_is_headroom_new_memory_replaces_many_small_handles) {
  for (int i = 0; i < 3; ++i) {
    live(2 * mib);
    run(2 * mib);
  }
  live(2 * mib);
  host.held = {.reserved = 14 * mib, .peak_handed_out = 20 * mib - unit};
  EXPECT_EQ(plan(6 * mib).new_slots, 0u);
  EXPECT_EQ(plan(6 * mib).fillings.size(), 3u);
  host.held.peak_handed_out = 20 * mib;
  EXPECT_EQ(fillings(plan(6 * mib)),
            (std::vector<filling>{{7, 2, 0, false}, {9, 1, 0, false}, {10, 1, 0, false}}));
  places.growth.exact = true;
  EXPECT_EQ(plan(6 * mib).new_slots, 0u);
}

TEST_F(plans, memory_of_others_is_planned_with_behind_waits_only) {
  live(2 * mib);
  run(2 * mib, known.now(stream_slots[1]));
  keep_busy(1);
  EXPECT_TRUE(known.close(stream_slots[1], bound));
  live(2 * mib);
  EXPECT_FALSE(plan(2 * mib + unit).complete);
  EXPECT_TRUE(plan(2 * mib, fill_with::free_handles, reach::behind_wait).window.exists);
  EXPECT_EQ(planner.plan(asks(2 * mib), reach::behind_wait, fill_with::free_handles).window.start,
            at(6 * mib))
      << "for one slot no window is better than the end";
  EXPECT_EQ(plan(4 * mib, fill_with::both, reach::behind_wait).fillings[0].from, slots[1].current);
}

TEST_F(plans, what_has_to_be_unmapped_at_once_must_not_be_in_use) {
  shared.unmap_at_once = true;
  live(2 * mib);
  run(2 * mib, known.now(stream_slots[0]));
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  const room_plan room = plan(4 * mib);
  EXPECT_FALSE(room.complete);
  EXPECT_EQ(fillings(room), (std::vector<filling>{{5, 1, slots[3].current, false}}));
}

TEST_F(plans, a_request_of_up_to_a_slot_grows_at_the_arenas_end) {
  hole(2 * mib);
  live(2 * mib);
  const block_index last = run(mib);
  room_plan room = plan(2 * mib, fill_with::new_handles);
  EXPECT_EQ(room.window.start, at(4 * mib));
  EXPECT_EQ(room.window.first, last);
  EXPECT_EQ(room.window.end, at(6 * mib));
  live(mib);
  runs.note_change();
  room = plan(2 * mib, fill_with::new_handles);
  EXPECT_EQ(room.window.start, at(6 * mib));
  EXPECT_EQ(room.window.first, no_block);
}

TEST_F(plans, a_chosen_window_is_filled_with_what_the_stream_may_use) {
  live(2 * mib);
  run(2 * mib, known.now(stream_slots[0]));
  live(2 * mib);
  run(2 * mib, known.now(stream_slots[1]));
  live(2 * mib);
  const block_index gap = hole(4 * mib);
  const room_window chosen{
      .start = at(10 * mib), .end = at(12 * mib), .gap_slots = 1, .first = gap, .exists = true};
  const room_plan room = planner.plan_in(chosen, asks(2 * mib));
  EXPECT_TRUE(room.complete);
  EXPECT_EQ(room.window.start, at(10 * mib));
  EXPECT_EQ(fillings(room), (std::vector<filling>{{5, 1, slots[1].current, false}}));
  EXPECT_FALSE(planner.plan_in({}, asks(2 * mib)).complete);
}

TEST_F(plans, the_search_is_repeated_only_if_something_changed) {
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  run(2 * mib);
  const auto searched = [&](std::uint64_t size, reach whose = reach::usable) {
    places.asked = 0;
    static_cast<void>(plan(size, fill_with::both, whose));
    return places.asked != 0;
  };
  EXPECT_TRUE(searched(4 * mib));
  EXPECT_FALSE(searched(4 * mib));
  EXPECT_TRUE(searched(4 * mib, reach::behind_wait));
  EXPECT_TRUE(searched(4 * mib)) << "the last one alone is kept";
  EXPECT_TRUE(searched(6 * mib));
  runs.note_change();
  EXPECT_TRUE(searched(6 * mib));
  EXPECT_FALSE(searched(6 * mib));
}

/// The same for rules that never move.
class plans_without_moves : public plans {
 protected:
  static growth_rules unmoving() {
    growth_rules rules = simple_rules();
    rules.moves = false;
    return rules;
  }
  plans_without_moves() : plans{unmoving()} {}
};

TEST_F(plans_without_moves, growth_is_always_preferred_and_shares_handles_with_its_surplus) {
  live(2 * mib);
  run(2 * mib);
  live(2 * mib);
  EXPECT_TRUE(planner.prefers_growth(asks(800 * mib)));
  host.held.reserved = 64 * mib;
  EXPECT_EQ(fillings(plan(6 * mib, fill_with::both)), (std::vector<filling>{{3, 4, 0, false}}));
}

}  // namespace
}  // namespace weir::placement

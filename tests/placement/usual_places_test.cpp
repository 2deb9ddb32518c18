// SPDX-License-Identifier: Apache-2.0
// Where blocks go while there is plenty of memory.
#include "placement/usual_places.hpp"

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using testing_support::kib;
using testing_support::mib;

class usual_rules : public arena_records {
 protected:
  usual_rules() : arena_records{growth_rules::of(placement_policy::balanced)} {}

  usual_places places{runs, slots, core.rules};
  const growth_rules nothing_moves = growth_rules::of(placement_policy::never_move);
};

TEST_F(usual_rules, small_requests_go_to_a_run_that_is_hardly_longer) {
  const block_index long_one = run(128 * kib);
  live(mib);
  const block_index low = run(72 * kib + unit);
  live(mib);
  run(72 * kib);
  live(mib);
  const block_index close = run(64 * kib + unit);
  EXPECT_EQ(places.fit(asks(64 * kib)).first, close) << "the lower ones are an eighth longer";
  EXPECT_EQ(places.fit(asks(64 * kib + unit)).first, close);
  EXPECT_EQ(places.fit(asks(68 * kib)).first, low) << "two are of one class";
  EXPECT_EQ(places.fit(asks(60 * kib)).first, close);
  EXPECT_EQ(places.fit(asks(56 * kib)).first, long_one) << "nothing is close: the lowest";
}

TEST_F(usual_rules, where_nothing_moves_all_small_requests_go_to_the_lowest_run) {
  const block_index low = run(128 * kib);
  live(mib);
  run(64 * kib);
  usual_places without{runs, slots, nothing_moves};
  EXPECT_EQ(without.fit(asks(64 * kib)).first, low);
}

TEST_F(usual_rules, a_close_fit_of_another_owner_goes_before_the_lowest) {
  run(4 * mib);
  live(3 * mib);
  const block_index own = run(64 * kib, known.now(stream_slots[0]));
  EXPECT_EQ(places.fit(asks(60 * kib)).first, own);
  EXPECT_EQ(places.fit(asks(60 * kib, 1)).start, at(0)) << "it is not its stream's";
  EXPECT_EQ(places.fit(asks(32 * kib)).start, at(0)) << "neither is close";
}

// --- Where blocks pin least ----------------------------------------------------------------------

TEST_F(usual_rules, a_tiny_block_goes_beside_a_small_one_before_it_pins_another_slot) {
  live(3 * mib);
  const block_index between_large = run(mib);
  live(5 * mib - 4 * kib);
  live(4 * kib);
  const block_index above_small = run(mib);
  live(3 * mib);
  EXPECT_EQ(places.fit(asks(64 * kib)), (free_place{.first = above_small, .start = at(9 * mib)}));
  EXPECT_EQ(places.fit(asks(64 * kib + unit)).first, between_large) << "it is not tiny";
  usual_places without{runs, slots, nothing_moves};
  EXPECT_EQ(without.fit(asks(64 * kib)).first, between_large);
}

TEST_F(usual_rules, a_tiny_block_below_a_small_one_ends_where_that_begins) {
  live(3 * mib);
  run(3 * mib - 64 * kib);
  live(4 * kib);
  live(3 * mib);
  EXPECT_EQ(places.fit(asks(64 * kib)).start, at(6 * mib - 128 * kib));
  request aligned = asks(16 * kib);
  aligned.alignment = static_cast<std::uint32_t>(32 * kib / unit);
  EXPECT_EQ(places.fit(aligned).start, at(6 * mib - 96 * kib));
}

TEST_F(usual_rules, a_small_block_behind_the_border_of_its_slot_pins_nothing_of_the_run) {
  live(3 * mib);
  const block_index low = run(3 * mib);
  live(4 * kib);
  live(3 * mib);
  EXPECT_EQ(places.fit(asks(64 * kib)), (free_place{.first = low, .start = at(3 * mib)}))
      << "the lowest run, at its low end";
}

TEST_F(usual_rules, a_run_that_fits_closely_goes_before_one_beside_a_small_block) {
  live(2 * mib + 4 * kib);
  live(4 * kib);
  run(mib);
  live(3 * mib);
  const block_index close = run(66 * kib);
  live(3 * mib);
  EXPECT_EQ(places.fit(asks(64 * kib)).first, close);
}

TEST_F(usual_rules, of_two_owners_runs_beside_small_blocks_the_lower_serves) {
  live(4 * kib);
  run(mib);
  live(2 * mib);
  live(4 * kib);
  run(mib, known.now(stream_slots[0]));
  live(3 * mib);
  EXPECT_EQ(places.fit(asks(32 * kib)).start, at(4 * kib)) << "everybody's is the lower one";
  EXPECT_EQ(places.fit(asks(32 * kib, 1)).start, at(4 * kib));
}

TEST_F(usual_rules, a_block_of_one_to_two_slots_goes_where_it_pins_the_fewest) {
  live(4 * mib);
  const block_index two_slots = run(4 * mib);
  live(mib);
  const block_index one_slot = run(4 * mib + 256 * kib);
  live(2 * mib);
  EXPECT_EQ(places.fit(asks(3 * mib)), (free_place{.first = one_slot, .start = at(9 * mib)}));
  EXPECT_EQ(places.fit(asks(4 * mib)), (free_place{.first = one_slot, .start = at(9 * mib)}));
  EXPECT_EQ(places.fit(asks(2 * mib)).first, two_slots) << "it may pin one slot anywhere";
  EXPECT_EQ(places.fit(asks(4 * mib + unit)).first, one_slot) << "the only one that is long enough";
  const growth_rules large_handles = growth_rules::of(placement_policy::throughput);
  usual_places shortest{runs, slots, large_handles};
  EXPECT_EQ(shortest.fit(asks(3 * mib)).first, two_slots);
  request aligned = asks(3 * mib);
  aligned.alignment = 2;
  EXPECT_EQ(places.fit(aligned).first, two_slots) << "the shortest";
  usual_places without{runs, slots, nothing_moves};
  EXPECT_EQ(without.fit(asks(3 * mib)).first, two_slots);
}

TEST_F(usual_rules, of_runs_in_which_it_pins_the_same_it_takes_the_shortest) {
  live(mib);
  run(3 * mib + 256 * kib);
  live(2 * mib - 256 * kib);
  live(mib);
  const block_index shortest = run(3 * mib + 128 * kib, known.now(stream_slots[0]));
  live(2 * mib);
  EXPECT_EQ(places.fit(asks(3 * mib)), (free_place{.first = shortest, .start = at(7 * mib)}));
  EXPECT_EQ(places.fit(asks(3 * mib, 1)).start, at(mib)) << "it is not its stream's";
}

TEST_F(usual_rules, beside_a_block_of_its_length_it_takes_the_high_end_where_it_pins_fewer) {
  live(4 * mib);
  run(5 * mib);
  live(3 * mib);
  live(4 * mib);
  EXPECT_EQ(places.fit(asks(3 * mib)).start, at(6 * mib)) << "slot 3 instead of 2 and 3";
  EXPECT_EQ(places.fit(asks(3 * mib - unit)).start, at(4 * mib)) << "the next has another length";
}

TEST_F(usual_rules, small_requests_go_to_the_lowest_run_and_large_ones_to_the_shortest) {
  const block_index long_one = run(8 * mib);
  live(mib);
  const block_index short_one = run(3 * mib);
  EXPECT_EQ(places.fit(asks(mib)), (free_place{.first = long_one, .start = at(0)}));
  EXPECT_EQ(places.fit(asks(mib + unit)), (free_place{.first = short_one, .start = at(9 * mib)}));
  EXPECT_EQ(places.fit(asks(3 * mib + unit)), (free_place{.first = long_one, .start = at(0)}));
  EXPECT_EQ(places.fit(asks(8 * mib + unit)), free_place{});
  EXPECT_TRUE(places.is_small(mib / unit));
  EXPECT_FALSE(places.is_small(mib / unit + 1));
}

TEST_F(usual_rules, runs_of_the_stream_and_everybodys_serve_alike) {
  const block_index everybodys = run(4 * mib);
  live(mib);
  const block_index own = run(2 * mib, known.now(stream_slots[0]));
  live(mib);
  run(3 * mib, known.now(stream_slots[1]));
  EXPECT_EQ(places.fit(asks(mib)).first, everybodys) << "it is lower";
  EXPECT_EQ(places.fit(asks(2 * mib)).first, own) << "it is shorter";
  EXPECT_EQ(places.fit(asks(2 * mib, 1)).start, at(8 * mib));
  EXPECT_EQ(places.fit(asks(4 * mib, 1)).first, everybodys);
  EXPECT_EQ(places.best_run(stream_slots[1], 4 * mib / unit), no_block);
}

TEST_F(usual_rules, an_aligned_block_begins_as_low_as_its_run_allows) {
  live(mib);
  const block_index low = run(7 * mib);
  live(mib);
  run(5 * mib);
  request wanted = asks(2 * mib);
  wanted.alignment = static_cast<std::uint32_t>(4 * mib / unit);
  EXPECT_EQ(places.fit(wanted), (free_place{.first = low, .start = at(4 * mib)}))
      << "as long as it fits wherever the run begins";
  EXPECT_EQ(places.limits_in(low, wanted),
            (window_limits{.start = at(4 * mib), .end = at(8 * mib), .ends_with_it = true}));
}

TEST_F(usual_rules, windows_and_new_memory_are_not_limited) {
  live(mib);
  const block_index free = run(4 * mib);
  live(mib);
  EXPECT_EQ(places.limits_in(free, asks(mib)),
            (window_limits{.start = at(mib), .end = at(5 * mib), .ends_with_it = true}));
  EXPECT_EQ(places.growth_for(asks(mib)), growth_limits{});
  EXPECT_FALSE(places.keeps(at(mib)));
}

TEST_F(usual_rules, a_stream_that_fits_somewhere_is_prepared) {
  run(4 * mib);
  const stream third = stream::create(gpu).value();
  request wanted = asks(mib);
  wanted.stream = known.slot_of(third, bound).value();
  EXPECT_EQ(runs.owners(), wanted.stream);
  EXPECT_NE(places.fit(wanted).first, no_block);
  EXPECT_EQ(runs.owners(), wanted.stream + 1u);
}

}  // namespace
}  // namespace weir::placement

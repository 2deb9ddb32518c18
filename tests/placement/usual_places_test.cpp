// Where blocks go while there is plenty of memory.
#include "placement/usual_places.hpp"

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using testing_support::kib;
using testing_support::mib;

class usual_rules : public arena_records {
 protected:
  usual_places places{runs, mib, true};
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
  usual_places without{runs, 4 * mib, false};
  EXPECT_EQ(without.fit(asks(64 * kib)).first, low);
}

TEST_F(usual_rules, a_close_fit_of_another_owner_goes_before_the_lowest) {
  run(4 * mib);
  live(mib);
  const block_index own = run(64 * kib, known.now(stream_slots[0]));
  EXPECT_EQ(places.fit(asks(60 * kib)).first, own);
  EXPECT_EQ(places.fit(asks(60 * kib, 1)).start, at(0)) << "it is not its stream's";
  EXPECT_EQ(places.fit(asks(32 * kib)).start, at(0)) << "neither is close";
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

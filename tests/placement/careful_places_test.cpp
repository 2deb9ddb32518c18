// SPDX-License-Identifier: Apache-2.0
// Where blocks go where memory is short.
#include "placement/careful_places.hpp"

#include "placement/arena_records.hpp"
#include "placement/usual_places.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

/// Memory is short unless a test says otherwise. The rule below gives answers of its own.
class careful_rules : public arena_records {
 protected:
  class below final : public place_chooser {
   public:
    free_place fit(const request& /*wanted*/) override { return {.first = 77, .start = 7}; }
    [[nodiscard]] window_limits limits_in(block_index /*index*/,
                                          const request& /*wanted*/) const noexcept override {
      return {.start = 1, .end = 2, .ends_with_it = true};
    }
    [[nodiscard]] growth_limits growth_for(const request& /*wanted*/) const noexcept override {
      return {.one_slot_handles = true, .exact = false};
    }
    [[nodiscard]] bool keeps(std::uint64_t address) const noexcept override { return address == 5; }
  };

  careful_rules() { shared.reserved_limit = 0; }
  [[nodiscard]] request asks(std::uint64_t size, care freedom = care::full) const {
    request wanted = arena_records::asks(size);
    wanted.care = freedom;
    return wanted;
  }

  below otherwise;
  careful_places places{shared, runs, slots, otherwise};
};

TEST_F(careful_rules, while_there_is_plenty_the_rule_below_answers) {
  const block_index free = run(4 * mib);
  EXPECT_TRUE(places.applies());
  EXPECT_TRUE(places.spares_handles(asks(mib)));
  shared.reserved_limit = std::uint64_t{1} << 60;
  EXPECT_FALSE(places.applies());
  EXPECT_FALSE(places.spares_handles(asks(mib)));
  EXPECT_EQ(places.fit(asks(mib)).first, 77u);
  EXPECT_EQ(places.limits_in(free, asks(mib)).start, 1u);
  EXPECT_EQ(places.growth_for(asks(mib)), (growth_limits{.one_slot_handles = true}));
  EXPECT_TRUE(places.keeps(5));
  shared.reserved_limit = 0;
  EXPECT_TRUE(places.keeps(5)) << "of that it has no opinion";
  EXPECT_FALSE(places.keeps(6));
}

TEST_F(careful_rules, a_mebibyte_is_small) {
  EXPECT_TRUE(careful_places::is_small(mib / unit));
  EXPECT_FALSE(careful_places::is_small(mib / unit + 1));
  EXPECT_FALSE(places.spares_handles(asks(mib + unit)));
}

TEST_F(careful_rules, no_more_is_taken_than_is_missing_and_large_handles_for_huge_requests_only) {
  EXPECT_EQ(places.growth_for(asks(unit)),
            (growth_limits{.one_slot_handles = true, .exact = true}));
  EXPECT_EQ(places.growth_for(asks(256 * mib - unit)),
            (growth_limits{.one_slot_handles = true, .exact = true}));
  EXPECT_EQ(places.growth_for(asks(256 * mib)),
            (growth_limits{.one_slot_handles = false, .exact = true}));
}

/// Slots of 2 MiB: small in 0, free from 1 to 9 MiB, large from 9 on.
TEST_F(careful_rules, blocks_share_slots_with_their_kind_alone) {
  live(mib);
  const block_index free = run(8 * mib);
  live(3 * mib);
  EXPECT_EQ(places.limits_in(free, asks(mib / 2)),
            (window_limits{.start = at(mib), .end = at(8 * mib), .ends_with_it = false}));
  EXPECT_EQ(places.limits_in(free, asks(3 * mib)),
            (window_limits{.start = at(2 * mib), .end = at(9 * mib), .ends_with_it = false}));
  EXPECT_EQ(places.limits_in(free, asks(3 * mib, care::may_pin)).start, at(2 * mib));
  EXPECT_EQ(places.limits_in(free, asks(3 * mib, care::may_mix)),
            (window_limits{.start = at(mib), .end = at(9 * mib), .ends_with_it = false}));
  EXPECT_EQ(places.limits_in(free, asks(mib / 2, care::may_mix)).end, at(9 * mib));
}

TEST_F(careful_rules, a_window_is_laid_against_the_end_of_a_slot_alone) {
  live(2 * mib);
  const block_index whole = run(4 * mib);
  live(2 * mib);
  EXPECT_TRUE(places.limits_in(whole, asks(3 * mib)).ends_with_it);
  const block_index part = run(3 * mib);
  live(mib);
  EXPECT_FALSE(places.limits_in(part, asks(3 * mib)).ends_with_it);
  EXPECT_FALSE(places.limits_in(part, asks(3 * mib, care::may_mix)).ends_with_it);
}

/// Free and bounded by large blocks: from 3 MiB on.
TEST_F(careful_rules, what_fills_its_slots_but_for_an_eighth_begins_with_one) {
  live(3 * mib);
  const block_index free = run(9 * mib);
  live(4 * mib);
  constexpr std::uint64_t eighth = slot / 8;
  for (const std::uint64_t size : {2 * mib, 4 * mib - eighth, 4 * mib})
    EXPECT_EQ(places.limits_in(free, asks(size)).start, at(4 * mib)) << size;
  for (const std::uint64_t size : {2 * mib - unit, 4 * mib - eighth - unit, 4 * mib + unit})
    EXPECT_EQ(places.limits_in(free, asks(size)).start, at(3 * mib)) << size;
  EXPECT_EQ(places.limits_in(free, asks(4 * mib, care::may_mix)).start, at(3 * mib));
  request aligned = asks(4 * mib);
  aligned.alignment = static_cast<std::uint32_t>(8 * mib / unit);
  EXPECT_EQ(places.limits_in(free, aligned).start, at(8 * mib));
}

/// The run covers the slot from 2 to 4 MiB whole, and parts of those beside it.
TEST_F(careful_rules, a_small_block_goes_where_it_pins_no_free_handle) {
  live(mib);
  const block_index low = run(4 * mib);
  live(mib);
  EXPECT_EQ(places.fit(asks(mib)), (free_place{.first = low, .start = at(mib)}));
  EXPECT_EQ(places.fit(asks(mib + unit)), (free_place{.first = low, .start = at(2 * mib)}))
      << "large: the slot that is free as a whole";
  // The low end would pin that slot, the high end would not.
  static_cast<void>(runs.carve(low, at(mib), static_cast<std::uint32_t>(mib / unit)));
  EXPECT_EQ(places.fit(asks(mib)), (free_place{.first = low, .start = at(4 * mib)}));
}

TEST_F(careful_rules, a_small_block_pins_a_free_handle_only_if_it_may) {
  live(2 * mib);
  const block_index free = run(2 * mib);
  live(2 * mib);
  EXPECT_EQ(places.fit(asks(mib)), free_place{});
  EXPECT_EQ(places.fit(asks(mib, care::may_pin)),
            (free_place{.first = free, .start = at(2 * mib)}));
  EXPECT_EQ(places.fit(asks(mib, care::may_mix)),
            (free_place{.first = free, .start = at(2 * mib)}));
  EXPECT_EQ(places.fit(asks(2 * mib)), (free_place{.first = free, .start = at(2 * mib)}))
      << "a large one has it as it is";
}

TEST_F(careful_rules, where_nothing_is_pinned_the_shortest_run_is_taken) {
  live(mib / 2);
  run(mib + mib / 2);  // a slot that small blocks share
  live(mib / 2);
  const block_index shorter = run(mib);
  live(mib / 2);
  EXPECT_EQ(places.fit(asks(mib / 2)), (free_place{.first = shorter, .start = at(5 * mib / 2)}));
}

TEST_F(careful_rules, other_streams_runs_are_left_alone) {
  live(mib);
  run(mib, known.now(stream_slots[1]));
  EXPECT_EQ(places.fit(asks(mib)), free_place{});
  live(mib);
  const block_index own = run(mib, known.now(stream_slots[0]));
  EXPECT_EQ(places.fit(asks(mib)), (free_place{.first = own, .start = at(3 * mib)}));
  request everybodys = asks(mib);
  everybodys.stream = no_stream;
  EXPECT_EQ(places.fit(everybodys), free_place{});
}

}  // namespace
}  // namespace weir::placement

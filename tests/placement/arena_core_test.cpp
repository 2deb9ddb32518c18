// SPDX-License-Identifier: Apache-2.0
// Changes of an arena's records that concern blocks and slots at once.
#include "placement/arena_core.hpp"

#include <tuple>

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

class arena_cores : public arena_records {
 protected:
  using piece = std::tuple<std::uint64_t, block_kind, stream_slot>;  // mebibytes
  [[nodiscard]] std::vector<piece> pieces() const {
    std::vector<piece> all;
    for (block_index at = runs.first(); at != no_block; at = runs[at].after)
      all.emplace_back(runs[at].size() / mib, runs[at].is(), runs[at].stream);
    return all;
  }
  [[nodiscard]] std::vector<handle_number> current() const {
    std::vector<handle_number> all;
    for (std::uint64_t i = 0; i < slots.count(); ++i) all.push_back(slots[i].current);
    return all;
  }
  using list = std::vector<handle_number>;
  static constexpr auto is_run = block_kind::run;
  static constexpr auto is_live = block_kind::live;
  static constexpr auto is_hole = block_kind::hole;
};

TEST_F(arena_cores, a_hole_is_appended_and_goes_again) {
  live(2 * mib);
  core.append_hole(5);
  EXPECT_EQ(slots.count(), 5u);
  EXPECT_EQ(pieces(), (std::vector<piece>{{2, is_live, stream_slots[0]}, {8, is_hole, no_stream}}));
  EXPECT_EQ(runs[runs.last()].end(), slots.end_address());
  core.append_hole(5);
  EXPECT_EQ(runs.holes(), 1u) << "it is that long already";
  core.drop_trailing_holes();
  EXPECT_EQ(slots.count(), 1u);
  EXPECT_EQ(runs.holes(), 0u);
}

TEST_F(arena_cores, holes_in_use_stay_at_the_end) {
  const block_index free = run(2 * mib);
  keep_busy(0);
  hole(2 * mib, known.now(stream_slots[0]));
  EXPECT_TRUE(known.close(stream_slots[0], bound));
  hole(2 * mib);
  core.drop_trailing_holes();
  EXPECT_EQ(slots.count(), 2u);
  machine->run_until_idle();
  EXPECT_TRUE(known.poll(bound));
  core.drop_trailing_holes();
  EXPECT_EQ(slots.count(), 1u);
  EXPECT_EQ(runs.last(), free);
}

TEST_F(arena_cores, a_hole_with_an_old_mapping_stays_at_the_end) {
  live(2 * mib);
  const block_index left = run(2 * mib);
  core.leave_hole(2, left, {});
  core.drop_trailing_holes();
  EXPECT_EQ(slots.count(), 2u);
  slots.drop_retained(1);
  core.drop_trailing_holes();
  EXPECT_EQ(slots.count(), 1u);
}

TEST_F(arena_cores, the_place_that_a_handle_leaves_is_cut_out_of_its_runs) {
  live(mib);
  const block_index low = run(2 * mib, known.now(stream_slots[0]));
  run(4 * mib);
  const stamp used = known.now(stream_slots[1]);
  core.leave_hole(2, low, used);  // slot 1: from 2 to 4 MiB
  EXPECT_EQ(pieces(), (std::vector<piece>{{1, is_live, stream_slots[0]},
                                          {1, is_run, stream_slots[0]},
                                          {2, is_hole, stream_slots[1]},
                                          {3, is_run, no_stream}}));
  const block& hole = runs[runs.over(at(2 * mib))];
  EXPECT_EQ(hole.in.freed, used.epoch);
  EXPECT_EQ(current(), (list{1, 0, 3, 4}));
  EXPECT_EQ(slots[1].retained, 2u);
  EXPECT_EQ(slots.handle(2).retained, 1u);
}

TEST_F(arena_cores, filled_slots_of_a_hole_become_a_run) {
  live(2 * mib);
  const block_index empty = hole(8 * mib);
  live(2 * mib);
  const stamp ready = known.now(stream_slots[0]);
  core.fill_hole({.slot = 2, .slots = 2, .hole = empty}, ready);
  EXPECT_EQ(pieces(), (std::vector<piece>{{2, is_live, stream_slots[0]},
                                          {2, is_hole, no_stream},
                                          {4, is_run, stream_slots[0]},
                                          {2, is_hole, no_stream},
                                          {2, is_live, stream_slots[0]}}));
  EXPECT_EQ(runs[runs.over(at(4 * mib))].in.freed, ready.epoch);
  EXPECT_EQ(runs.of(stream_slots[0]).total(), 4 * mib);
  // A later filling names the hole by its lowest part.
  core.fill_hole({.slot = 4, .slots = 1, .hole = empty}, {});
  EXPECT_EQ(runs.holes(), 1u);
  EXPECT_EQ(runs.of(no_stream).total(), 2 * mib);
}

TEST_F(arena_cores, a_handle_that_is_dropped_leaves_nothing) {
  live(2 * mib);
  handle_slots = 2;
  const block_index gone = run(4 * mib);
  live(2 * mib);
  core.drop_handle(2, gone);
  EXPECT_EQ(pieces(), (std::vector<piece>{{2, is_live, stream_slots[0]},
                                          {4, is_hole, no_stream},
                                          {2, is_live, stream_slots[0]}}));
  EXPECT_EQ(current(), (list{1, 0, 0, 3, 3}));
  EXPECT_EQ(slots[1].retained, 0u);
  EXPECT_EQ(slots.handle(2).slots, 0u);
}

}  // namespace
}  // namespace weir::placement

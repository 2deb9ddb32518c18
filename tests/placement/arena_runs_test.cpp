// SPDX-License-Identifier: Apache-2.0
// The blocks of an arena by themselves: cutting, joining, queues by epoch, and holes.
#include "placement/arena_runs.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "placement/arena_records.hpp"
#include "support/sizes.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

/// The arena's records, seen through its list of blocks.
class run_lists : public arena_records {
 protected:
  /// Where a block begins and ends, in mebibytes from the base, what it is and whose.
  using seen = std::tuple<std::uint64_t, std::uint64_t, block_kind, stream_slot>;

  /// All blocks by address; the links in both directions agree.
  [[nodiscard]] std::vector<seen> all() const {
    std::vector<seen> list;
    block_index before = no_block;
    for (block_index at = runs.first(); at != no_block; before = at, at = blocks[at].after) {
      EXPECT_EQ(blocks[at].before, before);
      list.emplace_back((blocks[at].address - base) / mib, (blocks[at].end() - base) / mib,
                        blocks[at].is(), blocks[at].stream);
    }
    EXPECT_EQ(runs.last(), before);
    return list;
  }
  /// The stream's queue from the oldest run on, by their begins.
  [[nodiscard]] std::vector<std::uint64_t> queue(stream_slot owner) const {
    std::vector<std::uint64_t> list;
    block_index last = no_block;
    for (block_index at = runs.oldest(owner); at != no_block; at = blocks[at].in.newer) {
      EXPECT_EQ(blocks[at].in.older, last);
      last = at;
      list.push_back((blocks[at].address - base) / mib);
    }
    EXPECT_EQ(runs.newest(owner), last);
    return list;
  }

  static constexpr auto is_run = block_kind::run;
  static constexpr auto is_live = block_kind::live;
  static constexpr auto is_hole = block_kind::hole;
};

TEST_F(run_lists, a_block_is_found_over_its_addresses) {
  const block_index low = live(4 * mib);
  const block_index high = run(2 * mib);
  EXPECT_EQ(runs.over(at(0)), low);
  EXPECT_EQ(runs.over(at(4 * mib) - 1), low);
  EXPECT_EQ(runs.over(at(4 * mib)), high);
  EXPECT_EQ(runs.over(at(6 * mib)), no_block);
  EXPECT_EQ(runs[high].address, at(4 * mib));
}

TEST_F(run_lists, a_split_run_is_two_of_the_same_owner_and_epoch) {
  const stamp freed = known.now(stream_slots[0]);
  const block_index low = run(6 * mib, freed);
  const block_index high = runs.split(low, at(4 * mib));
  EXPECT_EQ(all(),
            (std::vector<seen>{{0, 4, is_run, stream_slots[0]}, {4, 6, is_run, stream_slots[0]}}));
  EXPECT_EQ(blocks[high].in.freed, freed.epoch);
  EXPECT_EQ(queue(stream_slots[0]), (std::vector<std::uint64_t>{0, 4}));
  EXPECT_EQ(runs.of(stream_slots[0]).total(), 6 * mib);
  EXPECT_EQ(runs.of(stream_slots[0]).shortest(3 * mib / unit), low);
}

TEST_F(run_lists, a_split_hole_is_two_holes) {
  const block_index low = hole(6 * mib, known.now(stream_slots[1]));
  runs.split(low, at(2 * mib));
  EXPECT_EQ(all(), (std::vector<seen>{{0, 2, is_hole, stream_slots[1]},
                                      {2, 6, is_hole, stream_slots[1]}}));
  EXPECT_EQ(runs.holes(), 2u);
  EXPECT_EQ(runs.of(no_stream).total(), 0u);
}

TEST_F(run_lists, a_cut_takes_parts_of_several_runs) {
  const block_index low = run(4 * mib, known.now(stream_slots[0]));
  run(2 * mib);
  run(6 * mib, known.now(stream_slots[1]));
  const block_index taken = runs.cut(low, at(3 * mib), at(8 * mib));
  EXPECT_EQ(blocks[taken].address, at(3 * mib));
  EXPECT_EQ(blocks[taken].size(), 5 * mib);
  blocks[taken].become(is_live);
  EXPECT_EQ(all(), (std::vector<seen>{{0, 3, is_run, stream_slots[0]},
                                      {3, 8, is_live, stream_slots[0]},
                                      {8, 12, is_run, stream_slots[1]}}));
  EXPECT_EQ(runs.of(stream_slots[0]).total(), 3 * mib);
  EXPECT_EQ(runs.of(no_stream).total(), 0u);
  EXPECT_EQ(runs.of(stream_slots[1]).total(), 4 * mib);
  EXPECT_EQ(queue(stream_slots[0]), (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(queue(stream_slots[1]), (std::vector<std::uint64_t>{8}));
}

TEST_F(run_lists, a_cut_searches_upward_from_its_hint) {
  const block_index low = run(2 * mib);
  live(2 * mib);
  run(4 * mib);
  const block_index taken = runs.cut(low, at(4 * mib), at(8 * mib));
  EXPECT_EQ(blocks[taken].address, at(4 * mib));
  EXPECT_EQ(blocks[taken].size(), 4 * mib);
  EXPECT_EQ(runs.of(no_stream).total(), 2 * mib) << "what was taken is in no index";
}

TEST_F(run_lists, what_carving_leaves_keeps_its_record_and_its_place_in_the_queue) {
  const block_index old = run(6 * mib, known.now(stream_slots[0]));
  live(mib);
  run(4 * mib, known.now(stream_slots[0]));
  const block_index taken = runs.carve(old, at(0), static_cast<std::uint32_t>(2 * mib / unit));
  EXPECT_NE(taken, old);
  blocks[taken].become(is_live);
  EXPECT_EQ(blocks[taken].address, at(0));
  EXPECT_EQ(blocks[taken].size(), 2 * mib);
  EXPECT_EQ(blocks[old].address, at(2 * mib));
  EXPECT_EQ(blocks[old].size(), 4 * mib);
  EXPECT_EQ(queue(stream_slots[0]), (std::vector<std::uint64_t>{2, 7}));
  EXPECT_EQ(runs.of(stream_slots[0]).total(), 8 * mib);
}

TEST_F(run_lists, carving_may_begin_inside_a_run_and_may_take_the_rest_of_it) {
  const block_index low = run(6 * mib);
  const block_index taken =
      runs.carve(low, at(4 * mib), static_cast<std::uint32_t>(2 * mib / unit));
  EXPECT_EQ(blocks[taken].address, at(4 * mib));
  EXPECT_EQ(blocks[low].end(), at(4 * mib));
  EXPECT_EQ(runs.of(no_stream).total(), 4 * mib);
  EXPECT_EQ(runs.carve(low, at(0), static_cast<std::uint32_t>(4 * mib / unit)), low);
  EXPECT_EQ(runs.of(no_stream).total(), 0u);
}

TEST_F(run_lists, a_free_joins_runs_of_its_stream_and_short_quiescent_ones) {
  run(16 * mib);
  const block_index middle = live(2 * mib);
  run(3 * mib, known.now(stream_slots[0]));
  runs.free(middle, known.now(stream_slots[0]));
  EXPECT_EQ(all(), (std::vector<seen>{{0, 21, is_run, stream_slots[0]}}));
  EXPECT_EQ(runs.of(no_stream).total(), 0u);
  EXPECT_EQ(queue(stream_slots[0]), (std::vector<std::uint64_t>{0}));
}

TEST_F(run_lists, a_free_leaves_long_quiescent_runs_and_those_of_other_streams_alone) {
  run(17 * mib);
  const block_index middle = live(2 * mib);
  run(3 * mib, known.now(stream_slots[1]));
  runs.free(middle, known.now(stream_slots[0]));
  EXPECT_EQ(all(), (std::vector<seen>{{0, 17, is_run, no_stream},
                                      {17, 19, is_run, stream_slots[0]},
                                      {19, 22, is_run, stream_slots[1]}}));
}

TEST_F(run_lists, joined_runs_have_the_newer_epoch_of_their_stream) {
  const stamp older = known.now(stream_slots[0]);
  const block_index late = live(2 * mib);
  keep_busy(0);
  EXPECT_TRUE(known.close(stream_slots[0], bound));
  const stamp newer = known.now(stream_slots[0]);
  ASSERT_TRUE(is_after(newer.epoch, older.epoch));
  run(2 * mib, newer);
  runs.free(late, older);
  EXPECT_EQ(all(), (std::vector<seen>{{0, 4, is_run, stream_slots[0]}}));
  EXPECT_EQ(blocks[runs.first()].in.freed, newer.epoch);
}

TEST_F(run_lists, a_free_whose_epoch_is_completed_is_everybodys_at_once) {
  const block_index freed = live(2 * mib);
  const stamp done = known.now(stream_slots[0]);
  complete(0);
  runs.free(freed, done);
  EXPECT_EQ(all(), (std::vector<seen>{{0, 2, is_run, no_stream}}));
  EXPECT_EQ(queue(stream_slots[0]), std::vector<std::uint64_t>{});
}

TEST_F(run_lists, the_queue_is_in_the_order_of_epochs) {
  const stamp first = known.now(stream_slots[0]);
  const block_index late = live(2 * mib);
  live(mib);
  keep_busy(0);
  EXPECT_TRUE(known.close(stream_slots[0], bound));
  const stamp second = known.now(stream_slots[0]);
  run(2 * mib, second);
  live(mib);
  runs.free(late, first);
  EXPECT_EQ(queue(stream_slots[0]), (std::vector<std::uint64_t>{0, 3}))
      << "freed later, stamped earlier";
}

TEST_F(run_lists, what_is_completed_retires_and_joins_what_is_quiescent) {
  run(20 * mib);
  run(2 * mib, known.now(stream_slots[0]));
  run(4 * mib);
  keep_busy(0);
  EXPECT_TRUE(known.close(stream_slots[0], bound));
  live(mib);
  const stamp open = known.now(stream_slots[0]);
  run(2 * mib, open);
  runs.retire(stream_slots[0]);
  EXPECT_EQ(queue(stream_slots[0]), (std::vector<std::uint64_t>{20, 27})) << "the stream is busy";
  machine->run_until_idle();
  EXPECT_TRUE(known.poll(bound));
  runs.retire(stream_slots[0]);
  EXPECT_EQ(all(), (std::vector<seen>{{0, 26, is_run, no_stream},
                                      {26, 27, is_live, stream_slots[0]},
                                      {27, 29, is_run, stream_slots[0]}}));
  EXPECT_EQ(queue(stream_slots[0]), (std::vector<std::uint64_t>{27})) << "its epoch is open";
  runs.retire(stream_slot{17});  // nobody
}

TEST_F(run_lists, a_request_may_have_runs_of_its_stream_of_everybody_and_behind_waits_of_others) {
  const block_index everybodys = run(2 * mib);
  live(mib);
  const block_index others = run(2 * mib, known.now(stream_slots[1]));
  const block_index used = live(mib);
  EXPECT_FALSE(runs.usable(blocks[others], stream_slots[0], reach::behind_wait))
      << "its epoch is open";
  keep_busy(1);
  EXPECT_TRUE(known.close(stream_slots[1], bound));
  EXPECT_TRUE(runs.usable(blocks[everybodys], stream_slots[0], reach::usable));
  EXPECT_TRUE(runs.usable(blocks[others], stream_slots[1], reach::usable));
  EXPECT_FALSE(runs.usable(blocks[others], stream_slots[0], reach::usable));
  EXPECT_TRUE(runs.usable(blocks[others], stream_slots[0], reach::behind_wait));
  EXPECT_FALSE(runs.usable(blocks[used], stream_slots[0], reach::behind_wait));
  EXPECT_TRUE(runs.others_have_runs(stream_slots[0]));
  EXPECT_FALSE(runs.others_have_runs(stream_slots[1]));
}

TEST_F(run_lists, figures_are_those_of_what_a_stream_may_use) {
  run(4 * mib);
  live(mib);
  run(2 * mib, known.now(stream_slots[0]));
  live(mib);
  run(6 * mib, known.now(stream_slots[0]));
  EXPECT_EQ(runs.bound_to(stream_slots[0]), 8 * mib);
  EXPECT_EQ(runs.bound_to(stream_slots[1]), 0u);
  EXPECT_EQ(runs.bound_to(no_stream), 0u) << "nobody is bound";
  EXPECT_EQ(runs.bound_to(stream_slot{17}), 0u);
  EXPECT_EQ(runs.longest_fit(stream_slots[0]), 6 * mib);
  EXPECT_EQ(runs.longest_fit(stream_slots[1]), 4 * mib);
  EXPECT_EQ(runs.longest_fit(stream_slot{17}), 4 * mib);
}

TEST_F(run_lists, the_highest_owner_is_remembered) {
  EXPECT_EQ(runs.last_owner(), no_stream);
  run(2 * mib);
  EXPECT_EQ(runs.last_owner(), no_stream);
  EXPECT_EQ(runs.owners(), 3u);
  const block_index others = run(2 * mib, known.now(stream_slots[1]));
  EXPECT_EQ(runs.last_owner(), stream_slots[1]);
  runs.remove_run(others);
  EXPECT_EQ(runs.last_owner(), stream_slots[1]);
  EXPECT_EQ(runs.of(stream_slots[1]).total(), 0u);
  runs.add_run(others);
}

TEST_F(run_lists, holes_that_can_be_filled_become_one) {
  hole(2 * mib);
  hole(4 * mib);
  const stamp used = known.now(stream_slots[0]);
  keep_busy(0);
  EXPECT_TRUE(known.close(stream_slots[0], bound));
  hole(2 * mib, used);
  hole(2 * mib);
  live(2 * mib);
  runs.join_holes();
  EXPECT_EQ(all(), (std::vector<seen>{{0, 6, is_hole, no_stream},
                                      {6, 8, is_hole, stream_slots[0]},
                                      {8, 10, is_hole, no_stream},
                                      {10, 12, is_live, stream_slots[0]}}));
  EXPECT_EQ(runs.holes(), 3u);
  EXPECT_FALSE(runs.fillable(blocks[runs.over(at(6 * mib))]));
  machine->run_until_idle();
  EXPECT_TRUE(known.poll(bound));
  EXPECT_TRUE(runs.fillable(blocks[runs.over(at(6 * mib))]));
  EXPECT_FALSE(runs.fillable(blocks[runs.over(at(10 * mib))]));
  runs.join_holes();
  EXPECT_EQ(all(),
            (std::vector<seen>{{0, 10, is_hole, no_stream}, {10, 12, is_live, stream_slots[0]}}));
  EXPECT_EQ(runs.holes(), 1u);
  EXPECT_EQ(runs.any_hole(), runs.first());
}

TEST_F(run_lists, what_is_stuck_is_no_hole_until_it_is_unblocked) {
  const block_index stuck = hole(2 * mib, known.now(stream_slots[0]));
  hole(2 * mib);
  runs.block_off(stuck);
  EXPECT_EQ(blocks[stuck].is(), block_kind::stuck);
  EXPECT_EQ(runs.stuck(), 1u);
  EXPECT_EQ(runs.holes(), 1u);
  EXPECT_NE(runs.any_hole(), stuck);
  EXPECT_FALSE(runs.fillable(blocks[stuck]));
  runs.unblock(stuck);
  EXPECT_EQ(runs.stuck(), 0u);
  EXPECT_EQ(runs.holes(), 2u);
  EXPECT_TRUE(runs.fillable(blocks[stuck])) << "nothing uses the mapping that was taken away";
}

TEST_F(run_lists, the_hole_at_the_end_can_be_dropped) {
  const block_index kept = live(2 * mib);
  hole(2 * mib);
  const std::size_t records = blocks.in_use();
  runs.drop_last_hole();
  EXPECT_EQ(runs.last(), kept);
  EXPECT_EQ(blocks[kept].after, no_block);
  EXPECT_EQ(runs.holes(), 0u);
  EXPECT_EQ(runs.any_hole(), no_block);
  EXPECT_EQ(blocks.in_use(), records - 1);
}

TEST_F(run_lists, every_change_of_runs_and_holes_is_counted) {
  std::uint64_t before = runs.changes();
  const auto changed = [&] {
    const std::uint64_t last = std::exchange(before, runs.changes());
    return last != before;
  };
  const block_index first = run(4 * mib);
  EXPECT_TRUE(changed());
  const block_index freed = live(2 * mib);
  EXPECT_FALSE(changed());
  runs.free(freed, known.now(stream_slots[0]));
  EXPECT_TRUE(changed());
  static_cast<void>(runs.carve(runs.over(at(0)), at(0), 8u));
  EXPECT_TRUE(changed());
  const block_index empty = hole(2 * mib);
  EXPECT_TRUE(changed());
  runs.block_off(empty);
  EXPECT_TRUE(changed());
  runs.unblock(empty);
  EXPECT_TRUE(changed());
  runs.note_change();
  EXPECT_TRUE(changed());
  static_cast<void>(runs.over(at(0)));
  runs.retire(stream_slots[1]);
  EXPECT_FALSE(changed());
  EXPECT_NE(first, no_block);
}

TEST_F(run_lists, cleared_it_has_given_all_records_back) {
  const std::size_t fresh = arena_runs{blocks, known, base}.footprint();
  const std::size_t records = blocks.in_use();
  run(4 * mib, known.now(stream_slots[1]));
  live(2 * mib);
  runs.block_off(hole(2 * mib));
  hole(2 * mib);
  runs.clear();
  EXPECT_EQ(blocks.in_use(), records);
  EXPECT_EQ(all(), std::vector<seen>{});
  EXPECT_EQ(runs.holes() + runs.stuck(), 0u);
  EXPECT_EQ(runs.owners(), 1u);
  EXPECT_EQ(runs.last_owner(), no_stream);
  EXPECT_EQ(runs.of(no_stream).total(), 0u);
  EXPECT_EQ(runs.footprint(), fresh);
}

}  // namespace
}  // namespace weir::placement

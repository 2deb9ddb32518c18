// SPDX-License-Identifier: Apache-2.0
// Which handles serve a request for a whole one, and where new ones go.
#include "placement/whole_handles.hpp"

#include "placement/arena_records.hpp"

namespace weir::placement { namespace {

using testing_support::mib;

class handles_for_themselves : public arena_records {
 protected:
  [[nodiscard]] request whole(std::uint64_t size, std::size_t stream = 0) const {
    request wanted = asks(size, stream);
    wanted.whole_handle = true;
    return wanted;
  }
  /// Memory under handles of so many slots.
  block_index run_under(std::uint32_t slots_of_each, std::uint64_t size, stamp freed = {}) {
    handle_slots = slots_of_each;
    return run(size, freed);
  }
  const whole_handles handles{core};
};

TEST_F(handles_for_themselves, have_exactly_the_size_of_the_request) {
  run_under(1, 8 * mib);
  const block_index large = run_under(2, 8 * mib);
  EXPECT_EQ(handles.find(whole(4 * mib), reach::usable).place.first, large);
  EXPECT_EQ(handles.find(whole(4 * mib), reach::usable).place.start, at(8 * mib));
  EXPECT_EQ(handles.find(whole(32 * mib), reach::usable).place.first, no_block);
  EXPECT_EQ(handles.find(whole(2 * mib), reach::usable).place.start, at(0));
}

TEST_F(handles_for_themselves, are_smaller_where_others_make_up_the_rest) {
  run_under(1, 4 * mib);
  run_under(2, 4 * mib);
  const handle_place part = handles.find(whole(8 * mib), reach::usable);
  EXPECT_EQ(part.place.start, at(4 * mib));  // the largest of the three
  EXPECT_EQ(part.units * unit, 4 * mib);
  EXPECT_EQ(handles.find(whole(10 * mib), reach::usable).place.first, no_block);
  const handle_place rest = handles.find(whole(6 * mib), reach::usable);
  EXPECT_EQ(rest.units * unit, 4 * mib);
  const handle_place exact = handles.find(whole(2 * mib), reach::usable);
  EXPECT_EQ(exact.units * unit, 2 * mib);
}

TEST_F(handles_for_themselves, lie_in_a_free_run_as_a_whole) {
  handle_slots = 2;
  live(1 * mib);                          // pins the first handle
  const block_index rest = run(7 * mib);  // its rest, and the second handle
  const free_place found = handles.find(whole(4 * mib), reach::usable).place;
  EXPECT_EQ(found.first, rest);
  EXPECT_EQ(found.start, at(4 * mib));
}

TEST_F(handles_for_themselves, of_other_streams_need_a_wait) {
  keep_busy(1);
  const stamp freed = known.now(stream_slots[1]);
  const block_index theirs = run_under(2, 4 * mib, freed);
  EXPECT_TRUE(known.close(stream_slots[1], bound));  // a mark to wait for
  EXPECT_EQ(handles.find(whole(4 * mib), reach::usable).place.first, no_block);
  EXPECT_EQ(handles.find(whole(4 * mib), reach::behind_wait).place.first, theirs);
  EXPECT_EQ(handles.find(whole(4 * mib, 1), reach::usable).place.first, theirs);
  EXPECT_TRUE(machine->step());
}

TEST_F(handles_for_themselves, are_found_again_by_their_address) {
  run_under(2, 12 * mib);
  EXPECT_EQ(handles.find_at(at(4 * mib), whole(4 * mib)).start, at(4 * mib));
  EXPECT_EQ(handles.find_at(at(2 * mib), whole(4 * mib)).first, no_block);  // inside a handle
  EXPECT_EQ(handles.find_at(at(4 * mib), whole(2 * mib)).first, no_block);
  EXPECT_EQ(handles.find_at(at(12 * mib), whole(4 * mib)).first, no_block);  // behind the end
  handle_slots = 2;
  live(4 * mib);
  EXPECT_EQ(handles.find_at(at(12 * mib), whole(4 * mib)).first, no_block);
}

TEST_F(handles_for_themselves, that_are_new_go_to_a_hole_or_to_the_end) {
  live(2 * mib);
  room_plan plan = handles.plan_new(whole(4 * mib));
  ASSERT_TRUE(plan.complete);
  EXPECT_EQ(plan.window.start, at(2 * mib));
  EXPECT_EQ(plan.window.first, no_block);
  EXPECT_EQ(plan.new_slots, 2u);
  ASSERT_EQ(plan.fillings.size(), 1u);
  EXPECT_EQ(plan.fillings.front().slots, 2u);

  hole(2 * mib);
  const block_index wide = hole(6 * mib);
  live(2 * mib);
  plan = handles.plan_new(whole(4 * mib));
  ASSERT_TRUE(plan.complete);
  EXPECT_EQ(plan.window.first, wide);
  EXPECT_EQ(plan.window.start, at(4 * mib));
  EXPECT_EQ(plan.fillings.front().hole, wide);

  EXPECT_FALSE(handles.plan_new(whole(2000 * mib)).complete);  // 1,000 slots are all there are
}

}}  // namespace weir::placement

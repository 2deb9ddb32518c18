// SPDX-License-Identifier: Apache-2.0
// stream_order by itself: when marks are worth it, which are made, and what a driver in trouble
// does to them.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "order/all_work_wait.hpp"
#include "order/stream_order_fixture.hpp"
#include "support/order_waits.hpp"
#include "weir/device/stream_watch.hpp"

namespace weir::order_test { namespace {

using driver::call;
using testing_support::complete_all_work;
using testing_support::wait_for_marks;
using testing_support::wait_for_oldest_mark;

class StreamOrderMarks : public StreamOrder {
 protected:
  /// Events recorded since the last call.
  std::uint64_t new_marks(const stream_order& order) {
    const std::uint64_t before = std::exchange(marks_seen, order.events_recorded());
    return order.events_recorded() - before;
  }

  stream one = make_stream();
  stream two = make_stream();
  std::uint64_t marks_seen = 0;
};

TEST_F(StreamOrderMarks, slots_know_their_streams) {
  stream_order order{gpu};
  EXPECT_EQ(order.count(), 0u);
  const stream_slot first = order.slot_of(one, bound).value();
  const stream_slot second = order.slot_of(two, bound).value();
  EXPECT_EQ(first, 1u);
  EXPECT_EQ(second, 2u);
  EXPECT_EQ(order.count(), 2u);
  EXPECT_EQ(order.slot_of(one, bound).value(), first);
  EXPECT_EQ(order.id(second), two.id());
  EXPECT_EQ(order.ref(second).handle(), two.handle());
  EXPECT_EQ(order.known(two.id()), second);
  EXPECT_EQ(order.known(stream_id{4711}), order::no_stream);
  EXPECT_FALSE(order.gone(second));
  order.lose(second);
  EXPECT_TRUE(order.gone(second));
  EXPECT_FALSE(order.gone(first));
  EXPECT_FALSE(order.gone(order::no_stream)) << "nobody never came";
}

/// By its id alone it might be taken for one of ours.
TEST_F(StreamOrderMarks, a_stream_of_another_device_is_refused) {
  stream_order order{gpu};
  const auto elsewhere = runtime::open_simulated(make_machine()).value();
  const stream foreign = stream::create(elsewhere->device(device_id{0}).value()).value();
  const auto refused = order.slot_of(foreign, bound);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::bad_stream);
  EXPECT_EQ(order.count(), 0u);
}

TEST_F(StreamOrderMarks, a_stamp_is_nobodys_unless_told) {
  EXPECT_EQ(stamp{}.stream, order::no_stream);
  EXPECT_EQ(stamp{}.epoch, 0u) << "all stamps of nobody that nobody wrote are the same";
  EXPECT_EQ(stamp{}, (stamp{order::no_stream, 0}));
  EXPECT_NE((stamp{1, 2}), (stamp{1, 3}));
  EXPECT_NE((stamp{1, 2}), (stamp{2, 2}));
  EXPECT_TRUE(stream_order{gpu}.completed({}));
}

// --- What is worth marks -------------------------------------------------------------------------

TEST_F(StreamOrderMarks, some_memory_in_many_frees_is_worth_marks) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  static_cast<void>(order.slot_of(two, bound).value());
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 31; ++i) EXPECT_FALSE(order.add_freed(slot, 200, 3200, 10'000)) << i;
    EXPECT_TRUE(order.add_freed(slot, 0, 3200, 10'000)) << "the 32nd: 16 for each stream";
    EXPECT_TRUE(order.add_freed(slot, 0, 3200, 10'000)) << "until they are made";
    static_cast<void>(order.now(slot));
    ASSERT_TRUE(order.close(slot, bound));
  }
  for (int i = 0; i < 31; ++i) EXPECT_FALSE(order.add_freed(slot, 100, 3200, 10'000)) << i;
  EXPECT_FALSE(order.add_freed(slot, 99, 3200, 10'000)) << "a byte less";
  EXPECT_TRUE(order.add_freed(slot, 1, 3200, 10'000)) << "as much as is worth it";
}

TEST_F(StreamOrderMarks, much_memory_is_worth_marks_in_a_few_frees_or_one) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(order.add_freed(slot, 4'000, 1600, 12'000)) << i;
  EXPECT_TRUE(order.add_freed(slot, 0, 1600, 12'000)) << "the sixth: 3 for each stream";
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(order.add_freed(other, 1'999, 1600, 12'000)) << i;
  EXPECT_FALSE(order.add_freed(other, 5, 1600, 12'000)) << "each is counted by itself";
  EXPECT_TRUE(order.add_freed(other, 1, 1600, 12'000));
  static_cast<void>(order.now(other));
  ASSERT_TRUE(order.close(other, bound));
  EXPECT_FALSE(order.add_freed(other, 24 * 12'000 - 1, 1600, 12'000));
  EXPECT_TRUE(order.add_freed(other, 1, 1600, 12'000)) << "24 times as much in any number";
  EXPECT_FALSE(order.add_freed(order::no_stream, 1 << 20, 1600, 10'000)) << "nobody's";
}

TEST_F(StreamOrderMarks, the_more_streams_there_are_the_more_frees_are_worth_marks) {
  const stream three = make_stream();
  const auto frees_until_due = [&](stream_order& order, stream_slot slot) {
    int frees = 1;
    while (!order.add_freed(slot, 10'000, 1600, 10'000) && frees < 100) ++frees;
    static_cast<void>(order.now(slot));
    EXPECT_TRUE(order.close(slot, bound));
    return frees;
  };
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  static_cast<void>(order.slot_of(two, bound).value());
  EXPECT_EQ(frees_until_due(order, slot), 6);
  const stream_slot third = order.slot_of(three, bound).value();
  EXPECT_EQ(frees_until_due(order, slot), 9);
  ASSERT_TRUE(order.end_stream(third, bound));
  EXPECT_EQ(frees_until_due(order, slot), 6) << "one that ended has no further marks";
  stream_order declared{gpu, {.crossing = crossing_rule::declared_uses}};
  const stream_slot own = declared.slot_of(one, bound).value();
  static_cast<void>(declared.slot_of(two, bound).value());
  static_cast<void>(declared.slot_of(three, bound).value());
  EXPECT_EQ(frees_until_due(declared, own), 3) << "one is marked, however many there are";
}

TEST_F(StreamOrderMarks, a_stream_that_nobody_named_holds_up_an_epoch_however_that_ends) {
  enum class way { close_for, event_behind, end_stream };
  for (const way how : {way::close_for, way::event_behind, way::end_stream}) {
    stream_order order{gpu};
    const stream third = make_stream();
    const stream_slot slot = order.slot_of(one, bound).value();
    const stream_slot other = order.slot_of(two, bound).value();
    const stream_slot ending = order.slot_of(third, bound).value();
    ASSERT_TRUE(order.mark_streams(bound)) << "who is there is met";
    const stream late = make_stream();
    give_work(late.handle());
    const std::vector<stamp> all{order.now(slot), order.now(other), order.now(ending)};
    if (how == way::event_behind) {
      ASSERT_TRUE(order.event_behind(slot, bound));
    } else if (how == way::end_stream) {
      ASSERT_TRUE(order.end_stream(ending, bound));
    }
    ASSERT_TRUE(order.close_for(all, bound));
    static_cast<void>(order.poll(bound).value());
    EXPECT_FALSE(order.completed(all[0]));
    ASSERT_TRUE(order.close_others(order::no_stream, bound));
    static_cast<void>(order.poll(bound).value());
    EXPECT_FALSE(order.completed(all[0]));
    machine->run_until_idle();
    static_cast<void>(order.poll(bound).value());
    EXPECT_TRUE(order.completed(all[0])) << static_cast<int>(how);
  }
}

TEST_F(StreamOrderMarks, nothing_is_worth_marks_while_there_is_nobody_else) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  EXPECT_TRUE(order.alone(slot));
  EXPECT_FALSE(order.add_freed(slot, 240'000, 1600, 10'000));
  const stream_slot other = order.slot_of(two, bound).value();
  EXPECT_FALSE(order.alone(slot));
  // What was freed before is forgotten, bytes and frees.
  for (int i = 0; i < 30; ++i) EXPECT_FALSE(order.add_freed(slot, 100, 3200, 10'000)) << i;
  EXPECT_FALSE(order.add_freed(slot, 200, 3200, 10'000)) << "in 31 frees";
  EXPECT_TRUE(order.add_freed(slot, 0, 3200, 10'000));

  order.lose(other);
  EXPECT_TRUE(order.alone(slot)) << "it gets no memory any more";
  EXPECT_FALSE(order.add_freed(slot, 0, 3200, 10'000));
  ASSERT_EQ(order.slot_of(two, bound).value(), other);
  for (int i = 0; i < 31; ++i) EXPECT_FALSE(order.add_freed(slot, 100, 3200, 10'000)) << i;
  EXPECT_FALSE(order.add_freed(slot, 99, 3200, 10'000));
  EXPECT_TRUE(order.add_freed(slot, 1, 3200, 10'000));
}

TEST_F(StreamOrderMarks, nothing_is_worth_marks_while_nobody_else_asks_for_long) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  const auto is_worth_marks = [&] {
    const bool worth = order.add_freed(slot, 240'000, 1600, 10'000);
    static_cast<void>(order.now(slot));
    if (worth) {
      EXPECT_TRUE(order.close(slot, bound));
    }
    return worth;
  };
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 256; ++i) {
      order.add_request(slot);  // its own do not count
      ASSERT_TRUE(is_worth_marks()) << i;
    }
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_worth_marks()) << i;
    order.add_request(other);
    EXPECT_TRUE(is_worth_marks()) << "somebody may profit";
    order.add_request(other);
    EXPECT_TRUE(is_worth_marks());
  }
}

TEST_F(StreamOrderMarks, nothing_is_worth_marks_that_cannot_be_made_now) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  static_cast<void>(order.slot_of(two, bound).value());
  order.pause();
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(order.add_freed(slot, 80'000, 1600, 10'000)) << i;
  order.resume();
  EXPECT_TRUE(order.add_freed(slot, 0, 1600, 10'000)) << "it was not forgotten";
}

// --- Which marks are made ------------------------------------------------------------------------

TEST_F(StreamOrderMarks, what_the_spared_stream_freed_needs_no_mark) {
  for (const auto rule : {crossing_rule::all_work, crossing_rule::declared_uses}) {
    stream_order order{gpu, {.crossing = rule}};
    marks_seen = 0;
    const stream_slot spared = order.slot_of(one, bound).value();
    const stream_slot other = order.slot_of(two, bound).value();
    const stamp own = order.now(spared);
    ASSERT_TRUE(order.close_others(spared, bound));
    EXPECT_EQ(new_marks(order), 0u);
    const stamp theirs = order.now(other);
    EXPECT_EQ(theirs.epoch, own.epoch) << "the epoch is still open";
    ASSERT_TRUE(order.close_others(spared, bound));
    EXPECT_EQ(new_marks(order), rule == crossing_rule::all_work ? 2u : 1u);
    EXPECT_TRUE(order.poll(bound).value());
    EXPECT_TRUE(order.completed(theirs));
    EXPECT_FALSE(order.completed(own));
    ASSERT_TRUE(order.close_others(spared, bound));
    EXPECT_EQ(new_marks(order), 0u) << "once is enough";
    EXPECT_TRUE(completes(order, own));
  }
}

/// What the spared stream freed waits for a mark that the other could not be given in time.
TEST_F(StreamOrderMarks, a_mark_that_is_owed_is_made_whoever_is_spared) {
  stream_order order{gpu};
  const stream_slot spared = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  const stamp freed = order.now(spared);
  order.expect_capture(other, true);
  EXPECT_FALSE(completes(order, freed));
  EXPECT_EQ(new_marks(order), 1u) << "of the spared stream";
  ASSERT_TRUE(order.close_others(spared, bound));
  EXPECT_EQ(new_marks(order), 0u) << "it may not be asked yet";
  order.expect_capture(other, false);
  ASSERT_TRUE(order.close_others(spared, bound));
  EXPECT_EQ(new_marks(order), 1u) << "of the other";
  EXPECT_EQ(order.now(other).epoch, freed.epoch + 1) << "no epoch had to end for it";
  EXPECT_TRUE(order.poll(bound).value());
  EXPECT_TRUE(order.completed(freed));
  EXPECT_TRUE(order.stream_completed({other, freed.epoch}));
}

TEST_F(StreamOrderMarks, the_epochs_of_a_stream_that_rests_move_on) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot resting = order.slot_of(two, bound).value();
  for (int i = 0; i < 3; ++i) {
    const stamp freed = order.now(slot);
    EXPECT_TRUE(completes(order, freed));
    EXPECT_EQ(order.completed_epoch(slot), freed.epoch);
    EXPECT_EQ(order.completed_epoch(resting), freed.epoch);
    EXPECT_EQ(order.completed_epoch(order::no_stream), freed.epoch);
    EXPECT_FALSE(order.behind(resting));
  }
}

/// What it was given before may use what was freed since, but nothing that was completed.
TEST_F(StreamOrderMarks, a_stream_met_late_holds_up_nothing_that_is_completed) {
  for (const auto rule : {crossing_rule::all_work, crossing_rule::declared_uses}) {
    stream_order order{gpu, {.crossing = rule}};
    const stream_slot slot = order.slot_of(one, bound).value();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(completes(order, order.now(slot)));
    const stamp done = order.now(slot);
    ASSERT_TRUE(completes(order, done));
    const stamp open = order.now(slot);
    const driver::CUstream handle = make_driver_stream();
    const stream_slot late = order.slot_of({gpu, handle}, bound).value();
    EXPECT_EQ(order.completed_epoch(late), order.completed_epoch(slot));
    EXPECT_TRUE(order.completed({late, done.epoch}));
    EXPECT_TRUE(order.stream_completed({late, done.epoch}));
    EXPECT_TRUE(order.can_wait_for({late, done.epoch}));
    EXPECT_FALSE(order.behind(late));
    EXPECT_TRUE(order.completed(done));
    EXPECT_FALSE(order.completed({late, open.epoch}));
    EXPECT_FALSE(order.stream_completed({late, open.epoch}));
    ASSERT_TRUE(order.end_stream(late, bound));
    destroy(handle);
  }
}

TEST_F(StreamOrderMarks, the_devices_rest_completes_the_open_epoch_too) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stamp marked = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  const stamp open = order.now(slot);
  EXPECT_EQ(open.epoch, marked.epoch + 1);
  complete_all_work(order);
  EXPECT_TRUE(order.completed(marked));
  EXPECT_TRUE(order.completed(open));
  EXPECT_TRUE(order.stream_completed(open));
  EXPECT_FALSE(order.any_behind());
  EXPECT_FALSE(wait_for_marks(order, bound)) << "no mark is left";
  const stamp next = order.now(slot);
  EXPECT_EQ(next.epoch, open.epoch + 1);
  EXPECT_FALSE(order.completed(next));
}

TEST_F(StreamOrderMarks, any_stream_may_be_behind_the_first_as_the_last) {
  for (const auto rule : {crossing_rule::all_work, crossing_rule::declared_uses}) {
    stream_order order{gpu, {.crossing = rule}};
    const stream_slot first = order.slot_of(one, bound).value();
    const stream_slot last = order.slot_of(two, bound).value();
    EXPECT_FALSE(order.any_behind());
    for (const stream_slot slot : {first, last}) {
      const stamp freed = order.now(slot);
      EXPECT_EQ(order.behind(first), slot == first);
      EXPECT_EQ(order.behind(last), slot == last);
      EXPECT_TRUE(order.any_behind()) << slot;
      EXPECT_TRUE(completes(order, freed));
      EXPECT_FALSE(order.any_behind()) << slot;
    }
    EXPECT_EQ(order.count(), last);
  }
}

TEST_F(StreamOrderMarks, while_captures_are_under_way_nothing_is_marked_or_awaited) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  const stamp marked = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(new_marks(order), 2u);
  order.pause();
  order.pause();
  EXPECT_TRUE(order.paused());
  const std::uint64_t before = machine->calls();
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  ASSERT_TRUE(order.close_others(other, bound));
  ASSERT_TRUE(order.close_for({freed}, bound));
  EXPECT_FALSE(order.poll(bound).value());
  EXPECT_FALSE(order.wait(other, freed, bound).value());
  EXPECT_FALSE(order.wait_for_stream(other, marked, bound).value());
  EXPECT_TRUE(order.wait(slot, freed, bound).value()) << "its own needs no wait";
  EXPECT_EQ(machine->calls(), before);
  order.resume();
  EXPECT_TRUE(order.paused()) << "of the other one";
  order.resume();
  EXPECT_FALSE(order.paused());
  order.resume();
  EXPECT_FALSE(order.paused()) << "once too often";
  EXPECT_TRUE(completes(order, freed));
  order.pause();
  order.pause();
  order.end_pauses();
  EXPECT_FALSE(order.paused()) << "of all";
}

TEST_F(StreamOrderMarks, the_oldest_mark_is_awaited_first) {
  stream_order order{gpu};
  const stream_slot first = order.slot_of(one, bound).value();
  const stream_slot second = order.slot_of(two, bound).value();
  EXPECT_FALSE(wait_for_oldest_mark(order, bound)) << "there is none";
  EXPECT_FALSE(wait_for_marks(order, bound));
  give_work(one.handle());
  give_work(two.handle());
  const stamp old = order.now(second);
  ASSERT_TRUE(order.close_for({old}, bound));
  const stamp young = order.now(first);
  ASSERT_TRUE(order.close_for({young}, bound));
  EXPECT_EQ(new_marks(order), 2u) << "of those streams alone";
  EXPECT_TRUE(wait_for_oldest_mark(order, bound));
  EXPECT_TRUE(order.stream_completed(old));
  EXPECT_FALSE(order.stream_completed(young));
  EXPECT_TRUE(wait_for_oldest_mark(order, bound));
  EXPECT_TRUE(order.stream_completed(young));
  EXPECT_FALSE(wait_for_oldest_mark(order, bound));
}

/// Its last mark is behind all it will ever do: it is no reason to look for streams to mark.
TEST_F(StreamOrderMarks, a_stream_that_ended_owes_no_mark) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(two, bound).value();
  give_work(two.handle());
  ASSERT_TRUE(order.end_stream(ending, bound));
  EXPECT_EQ(new_marks(order), 1u);
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(new_marks(order), 1u) << "of the other stream";
  EXPECT_TRUE(order.can_wait_for(freed));
  const stream unmet = make_stream();
  const std::uint64_t before = machine->calls();
  ASSERT_TRUE(order.close_others(order::no_stream, bound));
  EXPECT_EQ(machine->calls(), before);
  EXPECT_EQ(new_marks(order), 0u);
  EXPECT_EQ(order.count(), 2u) << "nobody was looked for";
  EXPECT_TRUE(order.any_behind());
  ASSERT_TRUE(two.synchronize());
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.completed(freed));
}

TEST_F(StreamOrderMarks, streams_and_marks_are_counted) {
  stream_order order{gpu};
  const std::size_t bare = order.footprint();
  EXPECT_GT(bare, 0u);
  const stream_slot slot = order.slot_of(one, bound).value();
  EXPECT_EQ(order.footprint(), 2 * bare) << "there is an entry for nobody";
  give_work(one.handle());
  static_cast<void>(order.now(slot));
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(order.count(), 2u) << "stream two became known";
  const std::size_t marked = order.footprint();
  ASSERT_GT(marked, 3 * bare);
  static_cast<void>(order.now(slot));
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(order.footprint() - marked, marked - 3 * bare) << "as many marks again";
  ASSERT_TRUE(wait_for_marks(order, bound));
  EXPECT_EQ(order.footprint(), 3 * bare) << "all are reached";
}

// --- Waits ---------------------------------------------------------------------------------------

TEST_F(StreamOrderMarks, a_wait_for_one_stream_makes_the_mark_it_needs) {
  stream_order order{gpu};
  const stream three = make_stream();
  const stream_slot owner = order.slot_of(one, bound).value();
  const stream_slot waiter = order.slot_of(two, bound).value();
  const stream_slot late = order.slot_of(three, bound).value();
  give_work(one.handle());
  const stamp used = order.now(owner);
  EXPECT_TRUE(order.wait_for_stream(waiter, used, bound).value());
  EXPECT_EQ(new_marks(order), 1u);
  EXPECT_EQ(order.waits_queued(), 2u) << "of all streams but its own";
  const stamp newer = order.now(owner);
  EXPECT_EQ(newer.epoch, used.epoch + 1);
  ASSERT_TRUE(order.close_for({newer}, bound));
  EXPECT_EQ(new_marks(order), 1u);
  static_cast<void>(order.now(owner));
  EXPECT_TRUE(order.wait_for_stream(late, used, bound).value());
  EXPECT_EQ(new_marks(order), 0u) << "there is one that will do";
  EXPECT_EQ(order.waits_queued(), 2u);
  EXPECT_TRUE(order.wait_for_stream(waiter, used, bound).value());
  EXPECT_EQ(order.waits_queued(), 2u) << "once is enough";
  EXPECT_TRUE(order.wait_for_stream(waiter, newer, bound).value());
  EXPECT_EQ(order.waits_queued(), 4u);
  EXPECT_TRUE(order.wait_for_stream(owner, newer, bound).value()) << "it is behind itself anyway";
  EXPECT_EQ(order.waits_queued(), 4u);
  machine->run_until_idle();
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.wait_for_stream(late, newer, bound).value());
  EXPECT_EQ(order.waits_queued(), 4u) << "it is done";
}

/// Its last mark does for every epoch, and needs none of them to end.
TEST_F(StreamOrderMarks, a_wait_for_a_stream_that_ended_is_for_its_last_mark) {
  stream_order order{gpu};
  const stream_slot waiter = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(two, bound).value();
  give_work(two.handle());
  static_cast<void>(order.now(ending));
  ASSERT_TRUE(order.end_stream(ending, bound));
  EXPECT_EQ(new_marks(order), 1u);
  const stamp late{ending, order.now(waiter).epoch};
  EXPECT_TRUE(order.wait_for_stream(waiter, late, bound).value());
  EXPECT_EQ(order.waits_queued(), 1u);
  EXPECT_EQ(new_marks(order), 0u);
  EXPECT_EQ(order.now(waiter).epoch, late.epoch) << "the epoch is still open";
  EXPECT_TRUE(order.wait_for_stream(waiter, late, bound).value());
  EXPECT_EQ(order.waits_queued(), 1u) << "once is enough";
}

TEST_F(StreamOrderMarks, what_is_completed_can_be_waited_for_without_a_mark) {
  stream_order order{gpu, {.crossing = crossing_rule::declared_uses}};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot waiter = order.slot_of(two, bound).value();
  EXPECT_TRUE(order.can_wait_for({order::no_stream, 7})) << "nobody's";
  EXPECT_TRUE(order.completed({order::no_stream, 7}));
  EXPECT_TRUE(order.stream_completed({order::no_stream, 7}));
  EXPECT_TRUE(order.wait(waiter, {order::no_stream, 7}, bound).value());
  EXPECT_TRUE(order.wait_for_stream(waiter, {order::no_stream, 7}, bound).value());
  EXPECT_EQ(order.events_recorded(), 0u);
  const stamp open = order.now(slot);
  EXPECT_FALSE(order.can_wait_for(open));
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_TRUE(order.can_wait_for(open));
  order.lose(slot);
  complete_all_work(order);
  const stamp after = order.now(slot);
  EXPECT_TRUE(order.completed(after)) << "a lost stream has nothing more to do";
  EXPECT_TRUE(order.can_wait_for(after));
  EXPECT_TRUE(order.wait(waiter, after, bound).value());
  EXPECT_EQ(order.waits_queued(), 0u);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(order.now(waiter).epoch, after.epoch) << "no epoch had to end for it";
}

/// It would be behind some of the streams, and not behind the one that could not be marked.
TEST_F(StreamOrderMarks, a_wait_queues_nothing_where_a_stream_cannot_be_marked) {
  for (const bool is_the_waiter : {true, false}) {
    stream_order order{gpu};
    const stream three = make_stream();
    const stream_slot owner = order.slot_of(one, bound).value();
    const stream_slot waiter = order.slot_of(two, bound).value();
    const stream_slot third = order.slot_of(three, bound).value();
    const stream_slot captured = is_the_waiter ? waiter : third;
    give_work(one.handle());
    const stamp freed = order.now(owner);
    order.expect_capture(captured, true);
    EXPECT_FALSE(order.wait(waiter, freed, bound).value());
    EXPECT_EQ(order.waits_queued(), 0u);
    order.expect_capture(captured, false);
    EXPECT_TRUE(order.wait(waiter, freed, bound).value());
    EXPECT_EQ(order.waits_queued(), 4u) << "two of the waiter, one of each of the others";
    machine->run_until_idle();
  }
}

/// Who waits without the lock says afterwards how far the stream came.
TEST_F(StreamOrderMarks, what_is_before_an_awaited_event_is_completed) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  give_work(one.handle());
  const stamp used = order.now(slot);
  auto given_up = order.event_behind(slot, bound).value();
  ASSERT_TRUE(given_up);
  EXPECT_EQ(order.now(slot).epoch, used.epoch + 1) << "the epoch has ended";
  order.done_waiting(std::move(given_up), std::nullopt);
  EXPECT_FALSE(order.stream_completed(used));
  auto awaited = order.event_behind(slot, bound).value();
  ASSERT_TRUE(awaited);
  ASSERT_TRUE(awaited->synchronize());
  EXPECT_FALSE(order.stream_completed(used)) << "nobody said so yet";
  order.done_waiting(std::move(awaited), used);
  EXPECT_TRUE(order.stream_completed(used));
  EXPECT_FALSE(order.stream_completed({slot, used.epoch + 1}));
}

TEST_F(StreamOrderMarks, a_stream_that_ended_is_asked_no_more_though_its_work_goes_on) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  give_work(one.handle());
  ASSERT_TRUE(order.end_stream(slot, bound));
  const auto asked = machine->calls(driver::call::stream_get_capture_info);
  EXPECT_EQ(order.event_behind(slot, bound).value(), nullptr);
  EXPECT_EQ(machine->calls(driver::call::stream_get_capture_info), asked);
}

/// The registry still has it, for others who were not told yet.
TEST_F(StreamOrderMarks, a_stream_whose_end_was_told_is_not_met_again_with_the_next_one) {
  stream_order order{gpu};
  const stream_slot first = order.slot_of(one, bound).value();
  const stream_slot second = order.slot_of(two, bound).value();
  for (const stream_slot ending : {first, second}) {
    ASSERT_TRUE(order.end_stream(ending, bound));
    const stream next = make_stream();
    const stream_slot asking = order.slot_of(next, bound).value();
    static_cast<void>(order.now(asking));
    ASSERT_TRUE(order.close(asking, bound));
    EXPECT_TRUE(order.gone(ending));
    ASSERT_TRUE(order.end_stream(asking, bound));
  }
}

// --- Captures and failures -----------------------------------------------------------------------

TEST_F(StreamOrderMarks, a_stranger_is_asked_whether_it_is_captured_only_when_it_is_named) {
  stream_order order{gpu, {.allow_unreleased_streams = true}};
  const driver::CUstream foreign = make_driver_stream();
  const stream_slot stranger = order.slot_of({gpu, foreign}, bound).value();
  begin_capture(foreign);
  const std::uint64_t before = machine->calls();
  EXPECT_FALSE(order.any_capturing(bound).value()) << "it may be destroyed by now";
  EXPECT_EQ(machine->calls(), before + 2) << "the two default streams are asked";
  {
    const order::named_stream named{order, stranger};
    EXPECT_TRUE(order.any_capturing(bound).value());
  }
  EXPECT_FALSE(order.any_capturing(bound).value());
  end_capture(foreign);
  {
    const order::named_stream named{order, stranger};
    EXPECT_FALSE(order.any_capturing(bound).value());
  }
  ASSERT_TRUE(order.end_stream(stranger, bound));
  destroy(foreign);
}

TEST_F(StreamOrderMarks, a_captured_stream_is_not_taken_for_one_that_ended_with_its_handle) {
  stream_order order{gpu};
  const driver::CUstream foreign = make_driver_stream();
  const stream_slot slot = order.slot_of({gpu, foreign}, bound).value();
  begin_capture(foreign);
  EXPECT_EQ(order.slot_of({gpu, foreign}, bound).value(), slot);
  end_capture(foreign);
  ASSERT_TRUE(order.end_stream(slot, bound));
  begin_capture(foreign);
  const auto refused = order.slot_of({gpu, foreign}, bound);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::capture_forbidden);
  end_capture(foreign);
  destroy(foreign);
}

TEST_F(StreamOrderMarks, a_stream_that_is_gone_is_not_asked_whether_it_is_captured) {
  stream_order order{gpu};
  static_cast<void>(order.slot_of(one, bound).value());
  const stream_slot slot = order.slot_of(two, bound).value();
  EXPECT_FALSE(order.any_capturing(bound).value());
  begin_capture(two.handle());
  EXPECT_TRUE(order.any_capturing(bound).value());
  order.lose(slot);
  EXPECT_FALSE(order.any_capturing(bound).value());
  end_capture(two.handle());
}

TEST_F(StreamOrderMarks, any_capturing_knows_of_the_threads_own_default_stream) {
  stream_order order{gpu};
  EXPECT_FALSE(order.any_capturing(bound).value());
  begin_capture(driver::per_thread_stream());
  EXPECT_TRUE(order.any_capturing(bound).value());
  end_capture(driver::per_thread_stream());
  EXPECT_FALSE(order.any_capturing(bound).value());
}

TEST_F(StreamOrderMarks, any_capturing_knows_of_streams_that_synchronise_with_the_legacy_stream) {
  stream_order order{gpu};
  driver::CUstream blocking = nullptr;
  ASSERT_EQ(machine->driver().stream_create(&blocking, driver::CU_STREAM_DEFAULT), 0);
  begin_capture(blocking);
  EXPECT_TRUE(order.any_capturing(bound).value());
  end_capture(blocking);
  EXPECT_FALSE(order.any_capturing(bound).value());
  destroy(blocking);
}

TEST_F(StreamOrderMarks, a_stream_that_is_being_captured_is_not_made_to_wait) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  give_work(one.handle());
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  begin_capture(two.handle());
  EXPECT_FALSE(order.wait(other, freed, bound).value());
  EXPECT_FALSE(order.wait_for_stream(other, freed, bound).value());
  EXPECT_EQ(order.waits_queued(), 0u);
  end_capture(two.handle());
  EXPECT_TRUE(order.wait(other, freed, bound).value());
  EXPECT_EQ(order.waits_queued(), 1u);
}

// --- Waiting without the lock
// ---------------------------------------------------------------------

TEST_F(StreamOrderMarks, what_is_freed_during_a_wait_for_all_work_is_not_completed_by_it) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stamp before = order.now(slot);
  const order::epoch until = order.cut();
  const stamp meanwhile = order.now(slot);
  order.all_work_completed(until);
  EXPECT_TRUE(order.completed(before));
  EXPECT_FALSE(order.completed(meanwhile));
  EXPECT_FALSE(order.any_behind(until));
  EXPECT_TRUE(order.any_behind());
}

TEST_F(StreamOrderMarks, a_stream_that_ends_during_a_wait_for_all_work_is_waited_for_by_its_mark) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(two, bound).value();
  const order::epoch until = order.cut();
  give_work(two.handle());
  ASSERT_TRUE(order.end_stream(ending, bound));
  const stamp freed = order.now(slot);
  order.all_work_completed(until);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_TRUE(order.poll(bound).value()) << "the other stream has nothing to do";
  EXPECT_FALSE(order.completed(freed)) << "its last work is not done";
  EXPECT_FALSE(order.stream_completed(order.now(ending)));
  machine->run_until_idle();
  ASSERT_TRUE(order.poll(bound).value());
  EXPECT_TRUE(order.completed(freed));
}

TEST_F(StreamOrderMarks, a_stream_that_is_lost_during_a_wait_for_all_work_holds_up_what_follows) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(two, bound).value();
  ASSERT_TRUE(order.mark_streams(bound));  // from now on it is known to be one of weir's
  const order::epoch until = order.cut();
  order.lose(ending);
  const stamp freed = order.now(slot);
  order.all_work_completed(until);
  EXPECT_FALSE(completes(order, freed)) << "its work may be later than the wait";
  complete_all_work(order);
  EXPECT_TRUE(order.completed(freed));
}

TEST_F(StreamOrderMarks, what_a_captured_stream_freed_stays_its_own_after_a_wait_for_all_work) {
  for (const crossing_rule crossing : {crossing_rule::all_work, crossing_rule::declared_uses}) {
    stream_order order{gpu, {.crossing = crossing}};
    const stream_slot slot = order.slot_of(one, bound).value();
    const stream_slot captured = order.slot_of(two, bound).value();
    begin_capture(two.handle());
    const stamp inside = order.now(captured);
    const stamp outside = order.now(slot);
    const order::all_work_wait work{order, bound};
    ASSERT_TRUE(work.wait(bound));
    work.apply(order);
    EXPECT_FALSE(order.completed(inside));
    EXPECT_TRUE(order.completed(outside));
    end_capture(two.handle());
    EXPECT_TRUE(completes(order, inside));
  }
}

TEST_F(StreamOrderMarks, an_event_that_somebody_waits_for_is_not_recorded_again) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  give_work(one.handle());
  static_cast<void>(order.now(slot));
  ASSERT_TRUE(order.close(slot, bound));
  const order::awaited_marks awaited = order.oldest_mark();
  machine->run_until_idle();
  ASSERT_TRUE(order.poll(bound).value());
  const auto created = machine->calls(call::event_create);
  machine->hold(one.handle());
  give_work(one.handle());
  static_cast<void>(order.now(slot));
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(machine->calls(call::event_create), created + 1) << "one of two is still awaited";
  EXPECT_TRUE(awaited.wait()) << "and was reached long ago";
  machine->release(one.handle());
}

TEST_F(StreamOrderMarks, where_a_capture_cannot_be_asked_for_the_stream_is_marked_later) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stamp freed = order.now(slot);
  machine->fail(call::stream_is_capturing, 1, driver::CUDA_ERROR_NOT_PERMITTED);
  const auto closed = order.close(slot, bound);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.code(), errc::not_permitted);
  EXPECT_FALSE(order.gone(slot));
  EXPECT_TRUE(completes(order, freed));
}

TEST_F(StreamOrderMarks, a_driver_in_trouble_is_told_and_loses_no_stream) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  const stamp freed = order.now(slot);
  machine->fail(call::stream_is_capturing, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto closed = order.close(slot, bound);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(order.gone(slot));
  EXPECT_EQ(new_marks(order), 1u) << "the others are marked all the same";
  EXPECT_TRUE(order.poll(bound).value());
  EXPECT_TRUE(order.stream_completed({other, freed.epoch}));
  EXPECT_FALSE(order.stream_completed(freed));
  EXPECT_TRUE(completes(order, freed)) << "it is asked again";
  EXPECT_EQ(new_marks(order), 1u);
}

TEST_F(StreamOrderMarks, a_stream_that_the_driver_does_not_know_is_lost) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stamp freed = order.now(slot);
  machine->fail(call::stream_is_capturing, 1, driver::CUDA_ERROR_INVALID_HANDLE);
  EXPECT_FALSE(completes(order, freed));
  EXPECT_TRUE(order.gone(slot));
  complete_all_work(order);
  EXPECT_TRUE(order.completed(freed));
}

TEST_F(StreamOrderMarks, the_legacy_stream_is_marked_without_a_question_for_its_id) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(stream_ref::legacy(gpu), bound).value();
  static_cast<void>(order.now(slot));
  const std::uint64_t ids_before = machine->calls(call::stream_get_id);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(new_marks(order), 3u) << "of both others, too";
  EXPECT_EQ(machine->calls(call::stream_get_id), ids_before);
}

/// Nobody knows what it still does, so it holds up what was freed until the device rests.
TEST_F(StreamOrderMarks, a_stream_whose_last_mark_fails_is_lost) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(two, bound).value();
  const stamp freed = order.now(slot);
  machine->fail(call::event_record, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto ended = order.end_stream(ending, bound);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(new_marks(order), 0u);
  EXPECT_TRUE(order.gone(ending));
  EXPECT_TRUE(order.end_stream(ending, bound)) << "it is not asked again";
  EXPECT_FALSE(completes(order, freed));
  EXPECT_EQ(new_marks(order), 1u) << "of the other stream";
  complete_all_work(order);
  EXPECT_TRUE(order.completed(freed));
  EXPECT_TRUE(order.stream_completed(order.now(ending))) << "it gets nothing more to do";
}

TEST_F(StreamOrderMarks, a_mark_that_cannot_be_looked_at_is_told_and_looked_at_again) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  machine->fail(call::event_query, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto polled = order.poll(bound);
  ASSERT_FALSE(polled);
  EXPECT_EQ(polled.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(order.completed(freed));
  EXPECT_FALSE(order.stream_completed(freed));
  EXPECT_TRUE(order.stream_completed({other, freed.epoch})) << "the others are looked at";
  EXPECT_TRUE(order.poll(bound).value());
  EXPECT_TRUE(order.completed(freed));
  EXPECT_FALSE(order.poll(bound).value()) << "nothing came on";
}

/// A capture may have begun while it was recorded, and the event be the capture's.
TEST_F(StreamOrderMarks, an_event_that_may_be_a_captures_is_no_mark) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  ASSERT_TRUE(two.close());
  const stamp freed = order.now(slot);
  machine->fail(call::stream_is_capturing, 2, driver::CUDA_ERROR_UNKNOWN);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(new_marks(order), 1u) << "recorded for nothing";
  EXPECT_FALSE(order.can_wait_for(freed));
  EXPECT_FALSE(wait_for_marks(order, bound)) << "there is no mark";
  EXPECT_FALSE(order.completed(freed));
  EXPECT_TRUE(completes(order, freed));
  EXPECT_EQ(new_marks(order), 1u);
}

/// Its mark went with a capture that came and went while it was recorded.
TEST_F(StreamOrderMarks, a_mark_that_a_capture_took_is_made_again) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  give_work(one.handle());
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(new_marks(order), 2u);
  machine->fail(call::event_query, 1, driver::CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_TRUE(order.poll(bound).value()) << "the other stream came on";
  EXPECT_FALSE(order.completed(freed));
  EXPECT_FALSE(order.gone(slot));
  machine->run_until_idle();
  EXPECT_TRUE(completes(order, freed));
  EXPECT_EQ(new_marks(order), 1u);
}

TEST_F(StreamOrderMarks, the_only_mark_that_a_capture_took_is_made_again) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  ASSERT_TRUE(two.close());
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(new_marks(order), 1u);
  machine->fail(call::event_query, 1, driver::CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_FALSE(order.poll(bound).value());
  EXPECT_FALSE(order.can_wait_for(freed)) << "there is no mark any more";
  EXPECT_TRUE(completes(order, freed));
  EXPECT_EQ(new_marks(order), 1u);
}

// --- Who is who ----------------------------------------------------------------------------------

TEST_F(StreamOrderMarks, a_captured_stream_is_known_by_the_handle_it_was_met_with) {
  stream_order order{gpu};
  const driver::CUstream handle = make_driver_stream();
  const driver::CUstream unmet = make_driver_stream();
  static_cast<void>(order.slot_of(one, bound).value());
  const stream_slot slot = order.slot_of({gpu, handle}, bound).value();
  begin_capture(handle);
  begin_capture(unmet);
  EXPECT_EQ(order.slot_of({gpu, handle}, bound).value(), slot);
  const auto refused = order.slot_of({gpu, unmet}, bound);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::capture_forbidden);
  end_capture(unmet);
  end_capture(handle);
  EXPECT_EQ(order.count(), slot);
  destroy(unmet);
  destroy(handle);
}

TEST_F(StreamOrderMarks, a_captured_per_thread_stream_is_known_to_the_thread_that_met_it) {
  stream_order order{gpu};
  const stream_ref own = stream_ref::per_thread(gpu);
  EXPECT_EQ(order.slot_of(own, bound).value(), 1u);
  begin_capture(own.handle());
  EXPECT_EQ(order.slot_of(own, bound).value(), 1u);
  end_capture(own.handle());
  EXPECT_EQ(order.slot_of(own, bound).value(), 1u);
}

TEST_F(StreamOrderMarks, the_per_thread_handle_says_nothing_of_another_threads_captured_stream) {
  stream_order order{gpu};
  const stream_ref own = stream_ref::per_thread(gpu);
  EXPECT_EQ(order.slot_of(own, bound).value(), 1u);
  std::thread([&] {
    const context_scope here{gpu};
    begin_capture(own.handle());
    const auto refused = order.slot_of(own, here);
    ASSERT_FALSE(refused) << "on this thread it is another stream, never met";
    EXPECT_EQ(refused.code(), errc::capture_forbidden);
    end_capture(own.handle());
    EXPECT_EQ(order.slot_of(own, here).value(), 2u);
  }).join();
  EXPECT_EQ(order.slot_of(own, bound).value(), 1u);
}

/// It was watched, never named, and has ended: its handle may be another stream's.
TEST_F(StreamOrderMarks, the_handle_of_a_stream_that_is_over_is_forgotten) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const driver::CUstream handle = make_driver_stream();
  ASSERT_TRUE(watch_stream({gpu, handle}));
  EXPECT_TRUE(completes(order, order.now(slot)));
  const stream_id id = stream_ref(gpu, handle).id().value();
  const stream_slot watched = order.known(id);
  ASSERT_NE(watched, order::no_stream);
  ASSERT_TRUE(order.end_stream(watched, bound));
  ASSERT_TRUE(unwatch_stream({gpu, handle}));
  EXPECT_TRUE(completes(order, order.now(slot)));
  EXPECT_EQ(order.known(id), order::no_stream);
  begin_capture(handle);
  const auto refused = order.slot_of({gpu, handle}, bound);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::capture_forbidden);
  end_capture(handle);
  EXPECT_EQ(order.slot_of({gpu, handle}, bound).value(), watched) << "the place is free again";
  destroy(handle);
}

/// The last mark of a stream that ended counts for all epochs that follow, as long as it is over.
TEST_F(StreamOrderMarks, who_comes_back_owes_the_marks_since_its_end) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot back = order.slot_of(two, bound).value();
  give_work(two.handle());
  const stamp before = order.now(slot);
  ASSERT_TRUE(order.end_stream(back, bound));
  const stamp freed = order.now(slot);
  EXPECT_EQ(freed.epoch, before.epoch + 1);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_TRUE(order.can_wait_for(freed));
  EXPECT_EQ(order.slot_of(two, bound).value(), back);
  EXPECT_TRUE(order.can_wait_for(before)) << "its last mark is behind that";
  EXPECT_FALSE(order.can_wait_for(freed)) << "it may have been given work since";
  new_marks(order);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(new_marks(order), 1u);
  EXPECT_TRUE(order.can_wait_for(freed));
}

/// Nobody tells of its end any more, so its id would have to be asked for, which spoils captures.
TEST_F(StreamOrderMarks, who_comes_back_unwatched_is_a_stranger) {
  stream_order order{gpu};
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot captured = order.slot_of(two, bound).value();
  const driver::CUstream handle = make_driver_stream();
  ASSERT_TRUE(watch_stream({gpu, handle}));
  const stream_slot back = order.slot_of({gpu, handle}, bound).value();
  order.expect_capture(captured, true);
  const stamp watched = order.now(slot);
  EXPECT_FALSE(completes(order, watched));
  EXPECT_TRUE(order.stream_completed({back, watched.epoch})) << "it is marked all the same";
  ASSERT_TRUE(order.end_stream(back, bound));
  ASSERT_TRUE(unwatch_stream({gpu, handle}));
  ASSERT_EQ(order.slot_of({gpu, handle}, bound).value(), back);

  const std::uint64_t ids_before = machine->calls(call::stream_get_id);
  const stamp unwatched = order.now(slot);
  EXPECT_FALSE(completes(order, unwatched));
  EXPECT_FALSE(order.stream_completed({back, unwatched.epoch}));
  EXPECT_EQ(machine->calls(call::stream_get_id), ids_before);
  order.expect_capture(captured, false);
  EXPECT_TRUE(completes(order, unwatched));
  EXPECT_EQ(machine->calls(call::stream_get_id), ids_before + 1) << "it might be another by now";
  ASSERT_TRUE(order.end_stream(back, bound));
  destroy(handle);
}

}  // namespace
}  // namespace weir::order_test

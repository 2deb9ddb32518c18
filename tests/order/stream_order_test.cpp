// SPDX-License-Identifier: Apache-2.0
// stream_order by itself: when what was freed may leave its stream.
#include <cstdint>
#include <optional>
#include <vector>

#include "order/stream_order_fixture.hpp"
#include "support/order_waits.hpp"
#include "support/reports.hpp"
#include "weir/device/stream_watch.hpp"

namespace weir::order_test { namespace {

using testing_support::complete_all_work;
using testing_support::reports;
using testing_support::wait_for_marks;

TEST(says_gone, of_a_stream_that_is_not_there_and_of_no_other_trouble) {
  EXPECT_TRUE(order::says_gone({{.code = errc::bad_stream}}));
  EXPECT_TRUE(order::says_gone({{.code = errc::invalid_handle}}));
  EXPECT_TRUE(order::says_gone(
      {{.code = errc::driver_gone, .native = driver::CUDA_ERROR_CONTEXT_IS_DESTROYED}}));
  for (const errc trouble : {errc::driver_gone, errc::not_ready, errc::capture_forbidden})
    EXPECT_FALSE(order::says_gone({{.code = trouble}})) << to_string(trouble);
}

TEST_F(StreamOrder, is_completed_when_every_stream_is_done) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  give_work(two.handle());
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  EXPECT_TRUE(order.stream_completed(freed)) << "its own stream had nothing to do";
  machine->run_until_idle();
  EXPECT_TRUE(completes(order, freed));
  EXPECT_FALSE(order.any_behind());
}

TEST_F(StreamOrder, work_that_comes_after_the_end_of_the_epoch_does_not_count) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  give_work(two.handle());
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.completed(freed));
}

TEST_F(StreamOrder, under_declared_uses_only_its_own_stream_counts) {
  stream_order order{gpu, {.crossing = crossing_rule::declared_uses}};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  give_work(two.handle());
  const stamp freed = order.now(slot);
  EXPECT_TRUE(completes(order, freed));
  EXPECT_EQ(order.events_recorded(), 1u);
}

TEST_F(StreamOrder, one_stream_needs_one_event) {
  stream_order order{gpu};
  const stream only = make_stream();
  const stream_slot slot = order.slot_of(only, bound).value();
  for (int i = 0; i < 10; ++i) static_cast<void>(order.now(slot));
  EXPECT_TRUE(completes(order, order.now(slot)));
  EXPECT_EQ(order.events_recorded(), 1u);
  ASSERT_TRUE(order.close(slot, bound));
  EXPECT_EQ(order.events_recorded(), 1u) << "nothing was freed since";
}

TEST_F(StreamOrder, a_stream_met_late_holds_up_what_is_not_completed) {
  stream_order order{gpu};
  const stream one = make_stream();
  const driver::CUstream late = make_driver_stream();
  give_work(late);
  give_work(one.handle());
  const stream_slot slot = order.slot_of(one, bound).value();
  const stamp freed = order.now(slot);
  ASSERT_TRUE(order.close(slot, bound));
  static_cast<void>(order.slot_of({gpu, late}, bound).value());
  ASSERT_TRUE(one.synchronize());
  ASSERT_TRUE(order.poll(bound));
  EXPECT_FALSE(order.completed(freed));
  ASSERT_TRUE(stream_ref(gpu, late).synchronize());
  ASSERT_TRUE(order.close_others(order::no_stream, bound));
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.completed(freed));
  destroy(late);
}

TEST_F(StreamOrder, a_watched_stream_counts_until_it_is_unwatched) {
  stream_order order{gpu};
  const stream one = make_stream();
  const driver::CUstream silent = make_driver_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  ASSERT_TRUE(watch_stream({gpu, silent}));
  give_work(silent);
  const stamp held_up = order.now(slot);
  EXPECT_FALSE(completes(order, held_up));
  machine->run_until_idle();
  EXPECT_TRUE(completes(order, held_up));
  // No allocator listens here, so that its end must be announced by hand.
  ASSERT_TRUE(order.end_stream(order.known(stream_ref(gpu, silent).id().value()), bound));
  ASSERT_TRUE(unwatch_stream({gpu, silent}));
  destroy(silent);
  EXPECT_TRUE(completes(order, order.now(slot)));
  EXPECT_EQ(watch_stream(stream_ref::per_thread(gpu)).code(), errc::bad_stream);
}

TEST_F(StreamOrder, a_stream_that_is_watched_again_counts_again) {
  stream_order order{gpu};
  const stream one = make_stream();
  const driver::CUstream silent = make_driver_stream();
  const stream_ref known = stream_ref(gpu, silent).identified().value();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(known, bound).value();
  ASSERT_TRUE(order.end_stream(ending, bound));
  EXPECT_TRUE(completes(order, order.now(slot)));
  ASSERT_TRUE(watch_stream(known));
  give_work(silent);
  EXPECT_FALSE(completes(order, order.now(slot)));
  machine->run_until_idle();
  ASSERT_TRUE(unwatch_stream(known));
  destroy(silent);
}

TEST_F(StreamOrder,
       a_stream_that_is_watched_again_and_ends_before_it_is_met_counts_and_is_not_met) {
  stream_order order{gpu};
  const stream one = make_stream();
  const driver::CUstream silent = make_driver_stream();
  const stream_ref known = stream_ref(gpu, silent).identified().value();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(known, bound).value();
  ASSERT_TRUE(watch_stream(known));
  EXPECT_TRUE(completes(order, order.now(slot)));
  ASSERT_TRUE(order.end_stream(ending, bound));
  ASSERT_TRUE(unwatch_stream(known));
  ASSERT_TRUE(watch_stream(known));
  give_work(silent);
  const stamp held_up = order.now(slot);
  ASSERT_TRUE(order.end_stream(ending, bound));
  EXPECT_FALSE(completes(order, held_up)) << "it is in the registry, for those who are told later";
  EXPECT_TRUE(order.gone(ending));
  ASSERT_TRUE(unwatch_stream(known));
  destroy(silent);
  EXPECT_FALSE(completes(order, held_up));
  machine->run_until_idle();
  EXPECT_TRUE(completes(order, held_up));
  EXPECT_TRUE(order.gone(ending));
}

TEST_F(StreamOrder, the_work_of_a_stream_that_is_watched_and_unwatched_a_second_time_counts) {
  stream_order order{gpu};
  const stream one = make_stream();
  const driver::CUstream silent = make_driver_stream();
  const stream_ref known = stream_ref(gpu, silent).identified().value();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(known, bound).value();
  for (int time = 0; time < 3; ++time) {
    ASSERT_TRUE(watch_stream(known));
    give_work(silent);
    const stamp held_up = order.now(slot);
    ASSERT_TRUE(order.end_stream(ending, bound));
    ASSERT_TRUE(unwatch_stream(known));
    EXPECT_FALSE(completes(order, held_up)) << time;
    machine->run_until_idle();
    EXPECT_TRUE(completes(order, held_up)) << time;
  }
  destroy(silent);
}

TEST_F(StreamOrder, sources_are_asked_when_memory_is_about_to_leave_its_stream) {
  stream_order order{gpu};
  const stream one = make_stream();
  const driver::CUstream silent = make_driver_stream();
  const stream_ref known = stream_ref(gpu, silent).identified().value();
  int questions = 0;
  auto source = watch_streams(gpu, [&](std::vector<stream_ref>& streams) {
                  ++questions;
                  streams.push_back(known);
                }).value();
  const stream_slot slot = order.slot_of(one, bound).value();
  EXPECT_EQ(questions, 0);
  give_work(silent);
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  EXPECT_EQ(questions, 1);
  machine->run_until_idle();
  source = {};
  EXPECT_TRUE(completes(order, freed));
  EXPECT_EQ(watch_streams(gpu, {}).code(), errc::invalid_argument);
  ASSERT_TRUE(unwatch_stream(known));
  destroy(silent);
}

TEST_F(StreamOrder, a_stream_that_ended_counts_until_its_last_work_is_done) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(two, bound).value();
  give_work(two.handle());
  ASSERT_TRUE(order.end_stream(ending, bound));
  EXPECT_TRUE(order.gone(ending));
  ASSERT_TRUE(order.end_stream(ending, bound)) << "told twice, its last mark is still known";
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  machine->run_until_idle();
  EXPECT_TRUE(completes(order, freed));
}

TEST_F(StreamOrder, a_stream_that_is_named_again_counts_again) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot back = order.slot_of(two, bound).value();
  ASSERT_TRUE(order.end_stream(back, bound));
  ASSERT_TRUE(order.poll(bound));
  EXPECT_EQ(order.slot_of(two, bound).value(), back);
  EXPECT_FALSE(order.gone(back));
  give_work(two.handle());
  EXPECT_FALSE(completes(order, order.now(slot)));
}

TEST_F(StreamOrder, a_stream_that_ends_while_it_is_captured_is_not_asked_again) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot ending = order.slot_of(two, bound).value();
  ASSERT_EQ(
      bound.driver().stream_begin_capture(two.handle(), driver::CU_STREAM_CAPTURE_MODE_RELAXED),
      driver::CUDA_SUCCESS);
  ASSERT_TRUE(order.end_stream(ending, bound));
  EXPECT_TRUE(order.gone(ending));
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(bound.driver().stream_end_capture(two.handle(), &graph), driver::CUDA_SUCCESS);
  ASSERT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  const std::uint64_t before = machine->calls(driver::call::event_record);
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed)) << "nobody knows what it had to do";
  EXPECT_EQ(machine->calls(driver::call::event_record) - before, 1u);
  ASSERT_TRUE(gpu.synchronize());
  complete_all_work(order);
  EXPECT_TRUE(order.completed(freed));
}

TEST_F(StreamOrder, a_lost_stream_counts_until_the_device_was_seen_to_rest) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  const driver::CUstream foreign = make_driver_stream();
  const stream_slot lost = order.slot_of({gpu, foreign}, bound).value();
  give_work(foreign);
  destroy(foreign);  // unannounced
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  EXPECT_TRUE(order.gone(lost));
  machine->run_until_idle();
  EXPECT_FALSE(completes(order, freed)) << "nobody can know";
  ASSERT_TRUE(gpu.synchronize());
  complete_all_work(order);
  EXPECT_TRUE(order.completed(freed));
  EXPECT_TRUE(completes(order, order.now(slot))) << "it gets nothing more to do";
}

TEST_F(StreamOrder, a_stranger_is_asked_only_when_it_is_named) {
  stream_order order{gpu, {.allow_unreleased_streams = true}};
  const stream one = make_stream();
  const driver::CUstream foreign = make_driver_stream();
  static_cast<void>(order.slot_of({gpu, foreign}, bound).value());
  const stream_slot slot = order.slot_of(one, bound).value();
  const std::uint64_t before = machine->calls(driver::call::event_record);
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed)) << "it may be destroyed by now";
  EXPECT_EQ(machine->calls(driver::call::event_record) - before, 1u) << "a weir::stream lasts";
  {
    const order::named_stream named{order, order.slot_of({gpu, foreign}, bound).value()};
    ASSERT_TRUE(order.close_others(order::no_stream, bound));
  }
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.completed(freed));
  destroy(foreign);
}

TEST_F(StreamOrder, a_wait_is_for_all_streams) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream three = make_stream();
  const stream_slot owner = order.slot_of(one, bound).value();
  const stream_slot waiter = order.slot_of(three, bound).value();
  give_work(one.handle());
  give_work(two.handle());
  const stamp freed = order.now(owner);
  EXPECT_FALSE(order.can_wait_for(freed)) << "nothing is marked";
  EXPECT_TRUE(order.wait(waiter, freed, bound).value());
  EXPECT_EQ(order.waits_queued(), 4u) << "one and two wait for each other, too";
  EXPECT_TRUE(order.wait(waiter, freed, bound).value());
  EXPECT_EQ(order.waits_queued(), 4u) << "once is enough";
  EXPECT_TRUE(order.wait(owner, freed, bound).value()) << "what it freed itself is its own";
  EXPECT_EQ(order.waits_queued(), 4u);
}

TEST_F(StreamOrder, a_captured_stream_is_left_alone_and_marked_later) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  ASSERT_EQ(
      bound.driver().stream_begin_capture(two.handle(), driver::CU_STREAM_CAPTURE_MODE_RELAXED),
      driver::CUDA_SUCCESS);
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  EXPECT_FALSE(order.wait(order.slot_of(make_stream(), bound).value(), freed, bound).value());
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(bound.driver().stream_end_capture(two.handle(), &graph), driver::CUDA_SUCCESS);
  std::size_t nodes = 1;
  ASSERT_EQ(bound.driver().graph_get_nodes(graph, nullptr, &nodes), driver::CUDA_SUCCESS);
  EXPECT_EQ(nodes, 0u);
  ASSERT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  EXPECT_TRUE(completes(order, freed));
}

TEST_F(StreamOrder, no_stream_is_ever_queried) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  const std::uint64_t ids_before = machine->calls(driver::call::stream_get_id);
  give_work(two.handle());
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  ASSERT_TRUE(wait_for_marks(order, bound));
  EXPECT_TRUE(order.completed(freed));
  EXPECT_EQ(machine->calls(driver::call::stream_query), 0u);
  EXPECT_EQ(machine->calls(driver::call::stream_get_id), ids_before)
      << "which spoils a capture, too";
}

TEST_F(StreamOrder, a_stranger_is_not_asked_while_a_capture_may_take_it) {
  for (const bool declared : {true, false}) {
    stream_order order{gpu, {.undeclared_captures = !declared}};
    const stream one = make_stream();
    const stream captured = make_stream();
    const driver::CUstream foreign = make_driver_stream();
    const stream_slot stranger = order.slot_of({gpu, foreign}, bound).value();
    const stream_slot slot = order.slot_of(one, bound).value();
    const stream_slot expected = order.slot_of(captured, bound).value();
    if (declared) order.expect_capture(expected, true);
    const std::uint64_t ids_before = machine->calls(driver::call::stream_get_id);
    const stamp freed = order.now(slot);
    EXPECT_FALSE(completes(order, freed));
    EXPECT_EQ(machine->calls(driver::call::stream_get_id), ids_before)
        << "the capture of another stream may fork to it right now, and be spoiled";
    if (declared) {
      order.expect_capture(expected, false);
      EXPECT_TRUE(completes(order, freed));
    } else {
      const order::named_stream named{order, stranger};
      ASSERT_TRUE(order.close_others(order::no_stream, bound));
      ASSERT_TRUE(order.poll(bound));
      EXPECT_TRUE(order.completed(freed));
    }
    ASSERT_TRUE(order.end_stream(stranger, bound));
    destroy(foreign);
  }
}

TEST_F(StreamOrder, behind_a_long_kernel_marks_do_not_pile_up) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  give_work(two.handle());
  std::optional<stamp> last;
  for (int i = 0; i < 2000; ++i) {
    last = order.now(slot);
    ASSERT_FALSE(completes(order, *last));
  }
  EXPECT_LE(machine->calls(driver::call::event_create), 2u * 256 + 2);
  machine->run_until_idle();
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.completed(*last));
}

/// Of the epochs that were closed meanwhile only so many are told apart: the last of them counts as
/// done with what was closed after it.
TEST_F(StreamOrder, behind_a_stream_that_cannot_be_asked_closings_do_not_pile_up) {
  stream_order order{gpu};
  const stream one = make_stream();
  const stream two = make_stream();
  const stream_slot slot = order.slot_of(one, bound).value();
  const stream_slot other = order.slot_of(two, bound).value();
  order.expect_capture(other, true);
  std::vector<stamp> freed;
  for (int i = 0; i < 300; ++i) {
    freed.push_back(order.now(slot));
    ASSERT_FALSE(completes(order, freed.back()));
  }
  order.expect_capture(other, false);
  ASSERT_TRUE(order.close_others(order::no_stream, bound));
  give_work(two.handle());
  freed.push_back(order.now(slot));
  ASSERT_FALSE(completes(order, freed.back()));
  EXPECT_TRUE(order.stream_completed({other, freed[299].epoch})) << "it was marked before its work";
  EXPECT_TRUE(order.completed(freed[254]));
  EXPECT_FALSE(order.completed(freed[255]));
  EXPECT_FALSE(order.completed(freed[299]));
  machine->run_until_idle();
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.completed(freed[300]));
}

/// An event that the pool has no place for and the driver does not take back stood in the way of
/// every later one.
TEST_F(StreamOrder, an_event_that_cannot_be_returned_holds_nobody_up) {
  reports heard;
  stream_order order{gpu};
  std::vector<stream> streams;
  for (int i = 0; i < 6; ++i) {
    streams.push_back(make_stream());
    give_work(streams.back().handle());
  }
  const stream_slot slot = order.slot_of(streams.front(), bound).value();
  std::optional<stamp> last;
  for (int i = 0; i < 256; ++i) {  // 1,536 marks; the pool keeps 1,024
    last = order.now(slot);
    ASSERT_TRUE(order.close(slot, bound));
  }
  machine->run_until_idle();
  machine->fail(driver::call::event_destroy, 1, driver::CUDA_ERROR_UNKNOWN);
  ASSERT_TRUE(order.poll(bound));
  ASSERT_TRUE(order.poll(bound));
  EXPECT_TRUE(order.completed(*last));
  EXPECT_FALSE(order.any_behind());
  EXPECT_EQ(heard.take().size(), 1u) << "the failure is reported";
}

}  // namespace
}  // namespace weir::order_test

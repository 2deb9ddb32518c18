// SPDX-License-Identifier: Apache-2.0
// Polling and waiting for the streams of a stream_order whose owner notes what it is asked.
#include "order/stream_waiter.hpp"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "order/stream_order_fixture.hpp"

namespace weir::order_test { namespace {

using names = std::vector<std::string>;

class noting_owner final : public order::stream_waiter_host {
 public:
  void retire() override { asked.emplace_back("retire"); }
  [[nodiscard]] result<void> may_go_on() const override {
    if (closed) return errc::closed;
    return {};
  }
  void marks_begin() noexcept override { asked.emplace_back("marks"); }
  void all_work_wait_begins() noexcept override { asked.emplace_back("wait"); }
  void all_work_completed(order::epoch) noexcept override { asked.emplace_back("completed"); }
  [[nodiscard]] names take() { return std::exchange(asked, {}); }

  names asked;
  bool closed = false;
};

class StreamWaiter : public StreamOrder {
 protected:
  StreamWaiter() : lock{mutex} {
    first = all.slot_of(one, bound).value();
    second = all.slot_of(two, bound).value();
  }
  /// Marks the streams.
  void mark() { static_cast<void>(waiter.poll(order::no_stream, driver).value()); }
  /// Memory that was freed behind work that is not done.
  stamp free_on(const stream& busy, stream_slot slot) {
    give_work(busy.handle());
    return all.now(slot);
  }

  stream one = make_stream();
  stream two = make_stream();
  detail::mutex mutex;
  stream_order all{gpu};
  noting_owner owner;
  order::stream_waiter waiter{mutex, all, owner};
  order::driver_access driver{gpu};
  stream_slot first{};
  stream_slot second{};
  detail::mutex_lock lock;
};

TEST_F(StreamWaiter, where_no_stream_is_behind_nobody_is_asked) {
  const auto events = all.events_recorded();
  EXPECT_FALSE(waiter.poll(order::no_stream, driver).value());
  ASSERT_TRUE(waiter.wait_for_streams(driver));
  EXPECT_EQ(all.events_recorded(), events);
  EXPECT_EQ(owner.take(), names{});
}

TEST_F(StreamWaiter, a_poll_marks_the_streams_and_does_not_wait) {
  give_work(two.handle());
  const stamp freed = free_on(one, first);
  EXPECT_FALSE(waiter.poll(order::no_stream, driver).value());
  EXPECT_FALSE(all.completed(freed));
  EXPECT_EQ(owner.take(), names{"marks"});
  machine->run_until_idle();
  EXPECT_TRUE(waiter.poll(order::no_stream, driver).value());
  EXPECT_TRUE(all.completed(freed));
  EXPECT_EQ(owner.take(), names{"marks"}) << "to retire is left to the caller";
}

TEST_F(StreamWaiter, what_the_spared_stream_freed_is_not_marked) {
  static_cast<void>(free_on(one, first));
  const auto events = all.events_recorded();
  EXPECT_FALSE(waiter.poll(first, driver).value());
  EXPECT_EQ(all.events_recorded(), events);
  static_cast<void>(waiter.poll(second, driver).value());
  EXPECT_GT(all.events_recorded(), events);
}

TEST_F(StreamWaiter, streams_are_waited_for_by_their_marks) {
  const stamp freed = free_on(one, first);
  mark();
  static_cast<void>(owner.take());
  ASSERT_TRUE(waiter.wait_for_streams(driver));
  EXPECT_TRUE(all.completed(freed));
  EXPECT_EQ(owner.take(), names{"retire"});
}

TEST_F(StreamWaiter, the_oldest_mark_can_be_waited_for_alone) {
  const stamp older = free_on(one, first);
  mark();
  const stamp newer = free_on(two, second);
  mark();
  static_cast<void>(owner.take());
  machine->hold(two.handle());
  ASSERT_TRUE(waiter.wait_for(all.oldest_mark(), driver));
  EXPECT_TRUE(all.stream_completed(older));
  EXPECT_FALSE(all.stream_completed(newer));
  machine->release(two.handle());
  EXPECT_EQ(owner.take(), names{"retire"});
}

TEST_F(StreamWaiter, where_a_stream_cannot_be_marked_all_work_is_waited_for) {
  const stamp freed = free_on(one, first);
  begin_capture(two.handle());
  mark();
  static_cast<void>(owner.take());
  ASSERT_TRUE(waiter.wait_for_streams(driver));
  EXPECT_TRUE(all.completed(freed));
  EXPECT_EQ(owner.take(), (names{"retire", "wait", "completed", "retire"}));
  end_capture(two.handle());
}

TEST_F(StreamWaiter, an_owner_that_was_closed_meanwhile_learns_nothing) {
  const stamp freed = free_on(one, first);
  mark();
  static_cast<void>(owner.take());
  owner.closed = true;
  EXPECT_EQ(waiter.wait_for_streams(driver).code(), errc::closed);
  EXPECT_EQ(owner.take(), names{});
  EXPECT_EQ(waiter.wait_for_all_work(driver).code(), errc::closed);
  EXPECT_EQ(owner.take(), names{"wait"});
  EXPECT_FALSE(all.completed(freed));
}

TEST_F(StreamWaiter, the_lock_is_free_while_the_host_waits) {
  static_cast<void>(free_on(one, first));
  mark();
  machine->hold(one.handle());
  bool was_free = false;
  std::thread other{[&] {
    const detail::mutex_lock held{mutex};  // only once the waiter has let go of it
    was_free = true;
    machine->release(one.handle());
  }};
  ASSERT_TRUE(waiter.wait_for_streams(driver));
  other.join();
  EXPECT_TRUE(was_free);
}

TEST_F(StreamWaiter, a_stream_that_was_named_is_named_again_after_a_wait) {
  static_cast<void>(free_on(one, first));
  mark();
  stream_order unannounced{gpu, {.allow_unreleased_streams = true}};
  const driver::CUstream stranger = make_driver_stream();
  const auto slot = unannounced.slot_of(stream_ref{gpu, stranger}, bound).value();
  order::stream_waiter other{mutex, unannounced, owner};
  give_work(stranger);
  const stamp freed = unannounced.now(slot);
  const order::named_stream named{unannounced, slot};
  ASSERT_TRUE(other.wait_for_all_work(driver));
  EXPECT_TRUE(unannounced.completed(freed));
  const stamp later = unannounced.now(slot);
  give_work(stranger);
  const auto events = unannounced.events_recorded();
  static_cast<void>(other.poll(order::no_stream, driver).value());
  EXPECT_GT(unannounced.events_recorded(), events) << "it can be marked: the call names it";
  ASSERT_TRUE(other.wait_for_streams(driver));
  EXPECT_TRUE(unannounced.completed(later));
}

}}  // namespace weir::order_test

// SPDX-License-Identifier: Apache-2.0
// Progress of the streams of a bare core, whose host notes what was waited for.
#include "heap/stream_progress.hpp"

#include <atomic>
#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::no_stream;
using heap::stream_slot;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class noting_host final : public heap::stream_progress_host {
 public:
  void free_waited(block_index index, heap::stamp /*freed*/) noexcept override {
    freed.push_back(index);
  }
  [[nodiscard]] std::vector<block_index> take() { return std::exchange(freed, {}); }

  std::vector<block_index> freed;
};

class stream_progress_test : public heap_test {
 protected:
  stream_progress_test() {
    const detail::mutex_lock lock{core.mutex_};
    slot = core.order_.meet(on, on.id());
    other_slot = core.order_.meet(other, other.id());
  }
  void work_on(const stream& busy) {
    const context_scope bound{gpu()};
    ASSERT_TRUE(machine->launch(busy.handle(), "kernel", {}));
  }
  void mark() {
    core.mutex_.assert_held();
    static_cast<void>(progress.poll_streams(driver, no_stream).value());
  }
  /// A block that `on` freed and that work on the other stream may still use.
  void add_pending(block_index index) {
    core.mutex_.assert_held();
    core.pending_.prepare(index);
    work_on(other);
    core.pending_.add({index, core.order_.now(slot), {core.order_.now(other_slot)}});
  }

  bare_core core{gpu(), {}};
  noting_host host;
  heap::stream_progress progress{core, host};
  order::driver_access driver{gpu()};
  const stream on = new_stream();
  const stream other = new_stream();
  stream_slot slot{};
  stream_slot other_slot{};
};

TEST_F(stream_progress_test, a_pending_block_is_freed_once_its_streams_have_come_on) {
  const detail::mutex_lock lock{core.mutex_};
  add_pending(7);
  EXPECT_FALSE(progress.retire_all());
  mark();
  EXPECT_THAT(host.take(), IsEmpty());
  machine->run_until_idle();
  EXPECT_FALSE(progress.retire_all()) << "nobody asked the streams";
  EXPECT_TRUE(progress.poll_streams(driver, no_stream).value());
  EXPECT_THAT(host.take(), ElementsAre(7u));
  EXPECT_FALSE(progress.poll_streams(driver, no_stream).value()) << "no stream is behind";
}

TEST_F(stream_progress_test, marks_are_looked_at_without_new_ones) {
  const detail::mutex_lock lock{core.mutex_};
  add_pending(7);
  progress.poll_marks(driver);
  EXPECT_EQ(core.order_.events_recorded(), 0u);
  mark();
  const auto events = core.order_.events_recorded();
  machine->run_until_idle();
  progress.poll_marks(driver);
  EXPECT_EQ(core.order_.events_recorded(), events);
  EXPECT_THAT(host.take(), ElementsAre(7u));
}

TEST_F(stream_progress_test, a_wait_ends_with_what_it_waited_for_freed) {
  const detail::mutex_lock lock{core.mutex_};
  add_pending(7);
  ASSERT_TRUE(progress.wait_for_streams(driver));
  EXPECT_THAT(host.take(), ElementsAre(7u));
  add_pending(8);
  ASSERT_TRUE(progress.wait_for_all_work(driver));
  EXPECT_THAT(host.take(), ElementsAre(8u));
  add_pending(9);
  mark();
  ASSERT_TRUE(progress.wait_for(core.order_.unreached_marks(), driver));
  EXPECT_THAT(host.take(), ElementsAre(9u));
}

TEST_F(stream_progress_test, nobody_waits_while_captures_may_be_under_way) {
  const detail::mutex_lock lock{core.mutex_};
  add_pending(7);
  core.order_.pause();
  ASSERT_TRUE(progress.wait_for_streams(driver));
  EXPECT_THAT(host.take(), IsEmpty());
  EXPECT_TRUE(progress.any_capturing(driver).value());
  core.order_.resume();
  EXPECT_FALSE(progress.any_capturing(driver).value());
  ASSERT_TRUE(progress.wait_for_streams(driver));
  EXPECT_THAT(host.take(), ElementsAre(7u));
  core.captures_.declare(on.id(), pool_id{1});
  EXPECT_TRUE(progress.any_capturing(driver).value());
}

TEST_F(stream_progress_test, a_heap_that_is_closed_meanwhile_is_told_so) {
  const detail::mutex_lock lock{core.mutex_};
  add_pending(7);
  auto held_up = hold(other);
  std::thread closing{[&] {
    const detail::mutex_lock held{core.mutex_};  // free while the other thread waits
    core.closed_ = true;
    held_up.release();
  }};
  EXPECT_EQ(code_of(progress.wait_for_streams(driver)), errc::closed);
  closing.join();
  EXPECT_THAT(host.take(), IsEmpty());
}

TEST_F(stream_progress_test, what_a_stream_freed_is_shared_once) {
  const detail::mutex_lock lock{core.mutex_};
  static_cast<void>(core.order_.now(slot));
  progress.share_if_due();
  EXPECT_EQ(core.order_.events_recorded(), 0u);
  progress.share_later(slot);
  progress.share_if_due();
  const auto events = core.order_.events_recorded();
  EXPECT_GT(events, 0u);
  static_cast<void>(core.order_.now(slot));
  progress.share_if_due();
  EXPECT_EQ(core.order_.events_recorded(), events);
}

TEST_F(stream_progress_test, where_nothing_is_bound_nothing_is_retired_unnoticed) {
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_FALSE(progress.retire_unnoticed());
  heap::pool_state without_store;
  progress.retire(without_store);
  add_pending(7);
  EXPECT_FALSE(progress.retire_unnoticed());
  core.order_.all_work_completed(core.order_.cut());
  EXPECT_TRUE(progress.retire_unnoticed());
  EXPECT_THAT(host.take(), ElementsAre(7u));
}

TEST_F(stream_progress_test, other_devices_that_reach_the_memory_are_waited_for) {
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_THAT(progress.other_devices(), IsEmpty());
  core.placement_.rights.push_back(vmm::access_for(gpu(1)));
  EXPECT_THAT(progress.other_devices(), ElementsAre(gpu(1)));
  const stream there = stream::create(gpu(1)).value();
  add_pending(7);
  {
    const context_scope bound{gpu(1)};
    ASSERT_TRUE(machine->launch(there.handle(), "kernel", {}));
  }
  ASSERT_TRUE(progress.wait_for_all_work(driver));
  EXPECT_TRUE(there.is_complete().value());
}

}}  // namespace weir::testing_support

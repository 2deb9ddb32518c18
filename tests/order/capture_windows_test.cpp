// SPDX-License-Identifier: Apache-2.0
// stream_order by itself: captures that another thread begins between the allocator's question and
// its next call, and streams that end or come back in between.
#include <cstdint>
#include <thread>
#include <vector>

#include "order/stream_order.hpp"
#include "order/stream_order_fixture.hpp"
#include "weir/device/event.hpp"

namespace weir::order_test { namespace {

/// A driver where somebody begins to capture a stream right before an event is recorded on a
/// stream, or a wait queued on it. Streams are the driver's: known once they were named.
class CaptureWindows : public ::testing::Test {
 protected:
  CaptureWindows() {
    sim::machine_options chosen;
    chosen.mode = sim::progress::manual;
    machine = sim::machine::create(chosen).value();
    beneath = machine->driver();
    driver::table racing = beneath;
    racing.event_record = [](driver::CUevent event, driver::CUstream on) {
      if (on == driver::legacy_stream()) ++legacy_records;
      begin_if_seized(on);
      return beneath.event_record(event, on);
    };
    racing.stream_wait_event = [](driver::CUstream on, driver::CUevent event, unsigned flags) {
      ++waits;
      begin_if_seized(on);
      return beneath.stream_wait_event(on, event, flags);
    };
    racing_runtime = runtime::open_table(racing, "racing", machine).value();
    gpu = racing_runtime->device(device_id{0}).value();
    bound.emplace(*gpu);
    seized = captured = nullptr;
    legacy_records = waits = 0;
  }
  static void begin_if_seized(driver::CUstream on) {
    if (on != seized) return;
    seized = nullptr;
    EXPECT_EQ(beneath.stream_begin_capture(captured, driver::CU_STREAM_CAPTURE_MODE_RELAXED),
              driver::CUDA_SUCCESS);
  }
  driver::CUstream make_stream(unsigned flags = driver::CU_STREAM_NON_BLOCKING) {
    driver::CUstream handle = nullptr;
    EXPECT_EQ(beneath.stream_create(&handle, flags), driver::CUDA_SUCCESS);
    return handle;
  }
  void give_work(driver::CUstream to) { ASSERT_TRUE(machine->launch(to, "work", {})); }
  static void begin_capture(driver::CUstream on) {
    ASSERT_EQ(beneath.stream_begin_capture(on, driver::CU_STREAM_CAPTURE_MODE_RELAXED),
              driver::CUDA_SUCCESS);
  }
  /// Ends a capture in whatever state.
  static driver::CUresult end_capture(driver::CUstream on) {
    driver::CUgraph graph = nullptr;
    const auto answer = beneath.stream_end_capture(on, &graph);
    if (graph != nullptr) {
      EXPECT_EQ(beneath.graph_destroy(graph), driver::CUDA_SUCCESS);
    }
    return answer;
  }
  stream_slot meet(stream_order& order, driver::CUstream handle) {
    return order.slot_of({*gpu, handle}, *bound).value();
  }
  bool completes(stream_order& order, stamp freed) {
    EXPECT_TRUE(order.close(freed.stream, *bound));
    machine->run_until_idle();
    EXPECT_TRUE(order.poll(*bound));
    return order.completed(freed);
  }

  static inline driver::table beneath{};
  static inline driver::CUstream seized = nullptr;    // the call on it begins …
  static inline driver::CUstream captured = nullptr;  // … a capture of this one
  static inline std::uint64_t legacy_records = 0;
  static inline std::uint64_t waits = 0;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> racing_runtime;
  std::optional<device> gpu;
  std::optional<context_scope> bound;
};

TEST_F(CaptureWindows, the_legacy_stream_is_not_marked_while_a_capture_is_declared) {
  stream_order order{*gpu};
  const stream_slot legacy = meet(order, driver::legacy_stream());
  const stream_slot slot = meet(order, make_stream());
  captured = make_stream(driver::CU_STREAM_DEFAULT);
  const stream_slot declared = meet(order, captured);
  order.expect_capture(declared, true);
  seized = driver::legacy_stream();
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  {
    const order::named_stream named{order, legacy};
    EXPECT_FALSE(completes(order, order.now(legacy))) << "not in a call that names it, either";
    EXPECT_EQ(order.event_behind(legacy, *bound).value(), nullptr);
  }
  EXPECT_EQ(legacy_records, 0u);
  EXPECT_EQ(seized, driver::legacy_stream()) << "the capture had no window to begin in";
  seized = nullptr;
  order.expect_capture(declared, false);
  EXPECT_TRUE(completes(order, freed));
  EXPECT_EQ(legacy_records, 1u);
}

TEST_F(CaptureWindows, a_mark_that_a_capture_forbids_is_made_later) {
  stream_order order{*gpu};
  const stream_slot legacy = meet(order, driver::legacy_stream());
  const stream_slot slot = meet(order, make_stream());
  captured = make_stream(driver::CU_STREAM_DEFAULT);
  seized = driver::legacy_stream();
  const stamp freed = order.now(slot);
  EXPECT_FALSE(completes(order, freed));
  EXPECT_EQ(seized, nullptr);
  EXPECT_EQ(legacy_records, 1u);
  static_cast<void>(end_capture(captured));
  EXPECT_FALSE(completes(order, freed)) << "the next capture may begin at any time";
  EXPECT_EQ(legacy_records, 1u);
  const order::named_stream named{order, legacy};
  EXPECT_TRUE(completes(order, order.now(legacy))) << "the call names it";
  EXPECT_TRUE(order.completed(freed));
  EXPECT_EQ(legacy_records, 2u);
}

TEST_F(CaptureWindows, a_wait_that_a_capture_forbids_cannot_be_had) {
  stream_order order{*gpu};
  const driver::CUstream busy = make_stream();
  const stream_slot owner = meet(order, busy);
  const stream_slot waiter = meet(order, make_stream());
  captured = seized = make_stream();
  static_cast<void>(meet(order, captured));
  give_work(busy);
  const stamp freed = order.now(owner);
  seized = nullptr;
  ASSERT_TRUE(order.close(owner, *bound));
  seized = captured;
  const auto waited = order.wait(waiter, freed, *bound);
  ASSERT_TRUE(waited) << waited.error().message();
  EXPECT_FALSE(*waited);
  EXPECT_EQ(seized, nullptr);
  static_cast<void>(end_capture(captured));
  // Further waits on bystanders could meet the next capture.
  waits = 0;
  machine->run_until_idle();
  ASSERT_TRUE(order.poll(*bound));
  give_work(busy);
  const stamp later = order.now(owner);
  ASSERT_TRUE(order.close(owner, *bound));
  EXPECT_FALSE(order.wait(waiter, later, *bound).value());
  EXPECT_FALSE(order.wait_for_stream(waiter, later, *bound).value());
  EXPECT_EQ(waits, 0u);
}

TEST_F(CaptureWindows, an_undeclared_capture_ends_waits_of_bystanders_alone) {
  stream_order order{*gpu};
  const driver::CUstream busy = make_stream();
  const driver::CUstream main = make_stream();
  const stream_slot owner = meet(order, busy);
  const stream_slot waiter = meet(order, main);
  begin_capture(main);
  EXPECT_FALSE(completes(order, order.now(owner))) << "seen here";
  EXPECT_EQ(end_capture(main), driver::CUDA_SUCCESS);
  give_work(busy);
  stamp freed = order.now(owner);
  ASSERT_TRUE(order.close(owner, *bound));
  EXPECT_TRUE(order.wait(waiter, freed, *bound).value()) << "there is no bystander";
  EXPECT_EQ(waits, 1u);
  static_cast<void>(meet(order, make_stream()));
  freed = order.now(owner);
  ASSERT_TRUE(order.close(owner, *bound));
  EXPECT_FALSE(order.wait(waiter, freed, *bound).value());
  EXPECT_EQ(waits, 1u);
}

TEST_F(CaptureWindows, a_declared_capture_ends_no_waits) {
  stream_order order{*gpu};
  const driver::CUstream busy = make_stream();
  const driver::CUstream third = make_stream();
  const stream_slot owner = meet(order, busy);
  const stream_slot waiter = meet(order, make_stream());
  const stream_slot declared = meet(order, third);
  order.expect_capture(declared, true);
  begin_capture(third);
  EXPECT_TRUE(order.any_capturing(*bound).value());
  EXPECT_FALSE(completes(order, order.now(owner)));
  EXPECT_EQ(end_capture(third), driver::CUDA_SUCCESS);
  order.expect_capture(declared, false);
  give_work(busy);
  const stamp freed = order.now(owner);
  ASSERT_TRUE(order.close(owner, *bound));
  EXPECT_TRUE(order.wait(waiter, freed, *bound).value());
  EXPECT_GE(waits, 2u) << "the bystander waits, too";
}

/// A wait for the last mark of a stream that ended is one for all it did until then.
TEST_F(CaptureWindows, who_waited_for_a_streams_end_waits_again_when_it_comes_back) {
  stream_order order{*gpu, {.crossing = crossing_rule::declared_uses}};
  const driver::CUstream used = make_stream();
  const stream_slot waiter = meet(order, make_stream());
  const stream_slot user = meet(order, used);
  give_work(used);
  ASSERT_TRUE(order.end_stream(user, *bound));
  const stamp before = order.now(user);
  EXPECT_TRUE(order.wait_for_stream(waiter, before, *bound).value());
  EXPECT_EQ(waits, 1u);
  EXPECT_EQ(meet(order, used), user) << "it is named again";
  give_work(used);
  const stamp after = order.now(user);
  EXPECT_EQ(after.epoch, before.epoch) << "the epoch is still open";
  EXPECT_TRUE(order.wait_for_stream(waiter, after, *bound).value());
  EXPECT_EQ(waits, 2u);
}

TEST_F(CaptureWindows, what_the_threads_own_default_stream_frees_in_a_capture_stays_its_own) {
  stream_order order{*gpu};
  const driver::CUstream own = driver::per_thread_stream();
  const stream_slot slot = meet(order, own);
  EXPECT_EQ(order.captured_streams(*bound), std::vector<stream_slot>{});
  begin_capture(own);
  EXPECT_EQ(order.captured_streams(*bound), std::vector<stream_slot>{slot});
  std::thread{[&] {
    const context_scope there{*gpu};
    EXPECT_EQ(order.captured_streams(there), std::vector<stream_slot>{})
        << "no other thread can ask about it";
  }}.join();
  EXPECT_EQ(end_capture(own), driver::CUDA_SUCCESS);
  EXPECT_EQ(order.captured_streams(*bound), std::vector<stream_slot>{});
}

}  // namespace
}  // namespace weir::order_test

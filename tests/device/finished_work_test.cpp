// SPDX-License-Identifier: Apache-2.0
// Waiting for queued work beside captures: what is waited for, and that every capture stays valid.
#include "device/finished_work.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "device/device_fixture.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support { namespace {

using detail::has_finished_work;
using detail::is_outside_captures;
using detail::record_behind;
using detail::wait_for_all_work;
using detail::wait_for_work;
using driver::call;
using namespace weir::literals;

class finished_work_test : public ::testing::Test {
 protected:
  finished_work_test() {
    sim::machine_options settings;
    settings.devices.assign(2, sim::device_spec{.capacity = 1_GiB});
    settings.mode = sim::progress::manual;
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }
  void TearDown() override {
    for (const auto& found : machine->hazards()) ADD_FAILURE() << found.message();
    EXPECT_THAT(heard.errors, ::testing::IsEmpty());
  }
  [[nodiscard]] device gpu() const { return runtime_->device(device_id{0}).value(); }
  [[nodiscard]] const driver::table& cuda() const { return machine->driver(); }

  /// A stream that weir did not create and does not know.
  [[nodiscard]] stream_ref foreign_stream(unsigned flags) {
    const context_scope bound{gpu()};
    driver::CUstream handle = nullptr;
    EXPECT_EQ(cuda().stream_create(&handle, flags), 0);
    return {gpu(), handle};
  }
  /// Work that counts when it has run.
  void queue(const stream_ref& on) {
    const context_scope bound{gpu()};
    ASSERT_TRUE(machine->launch(on.handle(), "work", {}, [this] { ++done; }));
  }
  void begin_capture(const stream_ref& on, driver::CUstreamCaptureMode mode) {
    const context_scope bound{gpu()};
    ASSERT_EQ(cuda().stream_begin_capture(on.handle(), mode), 0);
  }
  /// Whether the capture was still valid.
  [[nodiscard]] bool end_capture(const stream_ref& on) {
    const context_scope bound{gpu()};
    driver::CUgraph graph = nullptr;
    const auto ended = cuda().stream_end_capture(on.handle(), &graph);
    if (graph != nullptr) {
      EXPECT_EQ(cuda().graph_destroy(graph), 0);
    }
    return ended == driver::CUDA_SUCCESS;
  }

  reported heard;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
  int done = 0;
};

constexpr driver::CUstreamCaptureMode modes[] = {driver::CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                 driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                 driver::CU_STREAM_CAPTURE_MODE_RELAXED};

TEST_F(finished_work_test, AllWorkIsWaitedForOnStreamsThatWeirDoesNotKnow) {
  queue(foreign_stream(driver::CU_STREAM_DEFAULT));
  queue(foreign_stream(driver::CU_STREAM_NON_BLOCKING));
  queue(stream_ref::legacy(gpu()));
  queue(stream_ref::per_thread(gpu()));
  std::thread{[&] { queue(stream_ref::per_thread(gpu())); }}.join();
  const context_scope bound{gpu()};
  ASSERT_TRUE(wait_for_all_work(bound));
  EXPECT_EQ(done, 5);
}

TEST_F(finished_work_test, AllWorkIsWaitedForBesideCapturesWhichStayValid) {
  for (const auto mode : modes) {
    for (const unsigned flags : {driver::CU_STREAM_DEFAULT, driver::CU_STREAM_NON_BLOCKING}) {
      done = 0;
      const stream_ref captured = foreign_stream(flags);
      const stream_ref busy = foreign_stream(driver::CU_STREAM_NON_BLOCKING);
      queue(captured);  // before its capture: it runs, and counts
      queue(busy);
      begin_capture(captured, mode);
      {
        const context_scope bound{gpu()};
        ASSERT_TRUE(wait_for_all_work(bound));
      }
      EXPECT_EQ(done, 2);
      EXPECT_TRUE(end_capture(captured)) << mode << ' ' << flags;
    }
  }
}

TEST_F(finished_work_test, ACaptureOfAnotherThreadStaysValid) {
  for (const auto mode : modes) {
    const stream_ref captured = foreign_stream(driver::CU_STREAM_DEFAULT);
    std::thread{[&] {
      begin_capture(captured, mode);
      std::thread{[&] {
        const context_scope bound{gpu()};
        EXPECT_TRUE(wait_for_all_work(bound));
        EXPECT_TRUE(wait_for_work(captured, bound));
        EXPECT_TRUE(wait_for_work(stream_ref::legacy(gpu()), bound));
      }}.join();
      EXPECT_TRUE(end_capture(captured)) << mode;
    }}.join();
  }
}

TEST_F(finished_work_test, TheModeOfTheThreadIsRestored) {
  const context_scope bound{gpu()};
  ASSERT_TRUE(wait_for_all_work(bound));
  auto mode = driver::CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(cuda().thread_exchange_stream_capture_mode(&mode), 0);
  EXPECT_EQ(mode, driver::CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_EQ(cuda().thread_exchange_stream_capture_mode(&mode), 0);
}

TEST_F(finished_work_test, AStreamIsWaitedForAndOthersAreNot) {
  const stream_ref one = foreign_stream(driver::CU_STREAM_NON_BLOCKING);
  const stream_ref other = foreign_stream(driver::CU_STREAM_NON_BLOCKING);
  queue(one);
  machine->hold(other.handle());
  queue(other);
  const context_scope bound{gpu()};
  EXPECT_EQ(has_finished_work(one, bound).value(), std::optional{false});
  ASSERT_TRUE(wait_for_work(one, bound));
  EXPECT_EQ(done, 1);
  EXPECT_EQ(has_finished_work(one, bound).value(), std::optional{true});
  EXPECT_EQ(has_finished_work(other, bound).value(), std::optional{false});
  machine->release(other.handle());
}

TEST_F(finished_work_test, ACapturedStreamsEarlierWorkIsWaitedFor) {
  const stream_ref captured = foreign_stream(driver::CU_STREAM_NON_BLOCKING);
  queue(captured);
  begin_capture(captured, driver::CU_STREAM_CAPTURE_MODE_GLOBAL);
  {
    const context_scope bound{gpu()};
    EXPECT_FALSE(is_outside_captures(captured, bound).value());
    EXPECT_EQ(has_finished_work(captured, bound).value(), std::nullopt);
    ASSERT_TRUE(wait_for_work(captured, bound));
  }
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(end_capture(captured));
}

TEST_F(finished_work_test, TheLegacyStreamIsNotOutsideTheCaptureOfABlockingStream) {
  const stream_ref legacy = stream_ref::legacy(gpu());
  const stream_ref captured = foreign_stream(driver::CU_STREAM_DEFAULT);
  queue(legacy);
  begin_capture(captured, driver::CU_STREAM_CAPTURE_MODE_RELAXED);
  {
    const context_scope bound{gpu()};
    EXPECT_FALSE(is_outside_captures(legacy, bound).value());
    auto mark = event::create(gpu()).value();
    EXPECT_FALSE(record_behind(mark, legacy, bound).value());
    EXPECT_EQ(has_finished_work(legacy, bound).value(), std::nullopt);
    ASSERT_TRUE(wait_for_work(legacy, bound));
  }
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(end_capture(captured));
}

/// The driver of a machine on which a capture of the stream begins right before each event record.
struct racing_driver {
  static inline driver::table real;
  static driver::CUresult record(driver::CUevent event, driver::CUstream stream) {
    EXPECT_EQ(real.stream_begin_capture(stream, driver::CU_STREAM_CAPTURE_MODE_RELAXED), 0);
    return real.event_record(event, stream);
  }
};

TEST_F(finished_work_test, AMarkOfACaptureThatBeganMeanwhileIsNotCounted) {
  racing_driver::real = machine->driver();
  driver::table raced = machine->driver();
  raced.event_record = &racing_driver::record;
  const auto other = runtime::open_table(raced, "raced").value();
  const device there = other->device(device_id{0}).value();
  const auto stream = stream::create(there).value();
  auto mark = event::create(there).value();
  const context_scope bound{there};
  EXPECT_FALSE(record_behind(mark, stream, bound).value());
  EXPECT_TRUE(end_capture(stream));
  // Again, now through a wait, which finds another way.
  ASSERT_TRUE(wait_for_work(stream, bound));
  EXPECT_TRUE(end_capture(stream));
}

TEST_F(finished_work_test, AFullDeviceIsWaitedForByWayOfTheHost) {
  const stream_ref busy = foreign_stream(driver::CU_STREAM_NON_BLOCKING);
  const context_scope bound{gpu()};
  queue(busy);
  machine->fail(call::mem_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(wait_for_all_work(bound));
  EXPECT_EQ(done, 1);
  EXPECT_EQ(machine->calls(call::mem_free_host), 1u);
}

TEST_F(finished_work_test, AFailureIsAnErrorAndTheNextWaitWorks) {
  const stream_ref busy = foreign_stream(driver::CU_STREAM_NON_BLOCKING);
  const context_scope bound{gpu()};
  queue(busy);
  machine->fail(call::mem_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  machine->fail(call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(wait_for_all_work(bound).code(), errc::no_host_memory);
  EXPECT_EQ(done, 0);
  ASSERT_TRUE(wait_for_all_work(bound));
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// The context is bound around every call and put back after it; a failure comes back as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "device/device_fixture.hpp"
#include "device/state.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using scope_test = device_test;

// Calls that concern the thread or the binding itself.
const std::set<call> need_no_context = {call::ctx_get_current, call::ctx_push_current,
                                        call::ctx_pop_current, call::device_primary_ctx_retain};
const std::set<call> destroying = {call::stream_destroy,   call::event_destroy, call::mem_unmap,
                                   call::mem_address_free, call::mem_release,   call::mem_free};

TEST_F(scope_test, EveryCallIsMadeUnderTheDevicesContextAndLeavesTheStackAsItWas) {
  possessions own{device_at(0)};
  const auto ours = fake_driver::context_of(0);
  const auto other = fake_driver::context_of(1);
  const std::vector<std::vector<driver::CUcontext>> stacks = {
      {}, {ours}, {other}, {ours, other}, {other, ours}};
  for (const auto& stack : stacks) {
    for (const auto& each : operations()) {
      SCOPED_TRACE(each.name);
      fake.stack() = stack;
      fake.clear_log();
      EXPECT_TRUE(each.run(device_at(0), own));
      EXPECT_EQ(fake.stack(), stack);
      std::size_t calls_with_context = 0;
      for (const auto& made : fake.log()) {
        if (need_no_context.contains(made.which)) continue;
        ++calls_with_context;
        EXPECT_EQ(made.current, ours) << driver::info(made.which).symbol;
      }
      EXPECT_GE(calls_with_context, 1u);
    }
  }
}

TEST_F(scope_test, ACurrentContextCostsOneCall) {
  possessions own{device_at(0)};
  make_current();
  fake.clear_log();
  EXPECT_TRUE(own.event.is_complete().value());
  EXPECT_THAT(fake.calls(), ElementsAre(call::ctx_get_current, call::event_query));
  fake.clear_log();
  ASSERT_TRUE(own.event.record(own.stream));
  EXPECT_THAT(fake.calls(), ElementsAre(call::ctx_get_current, call::event_record));
}

TEST_F(scope_test, CallsWithAScopeAddNothing) {
  possessions own{device_at(0)};
  fake.stack().clear();
  const context_scope bound{device_at(0)};
  ASSERT_TRUE(bound);
  fake.clear_log();
  const stream_ref foreign{device_at(0), own.stream.handle()};
  ASSERT_TRUE(own.event.record(own.stream, bound));
  ASSERT_TRUE(own.event.is_complete(bound));
  ASSERT_TRUE(foreign.wait(own.event, bound));
  ASSERT_TRUE(foreign.id(bound));
  ASSERT_TRUE(foreign.is_complete(bound));
  ASSERT_TRUE(foreign.capture(bound));
  ASSERT_TRUE(foreign.is_capturing(bound));
  EXPECT_EQ(own.stream.ref().id(bound).value(), own.stream.id()) << "which is known already";
  EXPECT_THAT(fake.calls(),
              ElementsAre(call::event_record, call::event_query, call::stream_wait_event,
                          call::stream_is_capturing, call::stream_get_id, call::stream_query,
                          call::stream_get_capture_info, call::stream_is_capturing));
}

TEST_F(scope_test, AScopeOfAnotherDeviceIsRefusedBeforeTheDriverSeesIt) {
  possessions own{device_at(0)};
  const context_scope wrong{device_at(1)};
  ASSERT_TRUE(wrong);
  fake.clear_log();
  EXPECT_EQ(code_of(own.event.is_complete(wrong)), errc::invalid_argument);
  EXPECT_EQ(code_of(own.event.record(own.stream, wrong)), errc::invalid_argument);
  EXPECT_EQ(code_of(stream_ref(device_at(0), own.stream.handle()).id(wrong)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(own.stream.ref().wait(own.event, wrong)), errc::invalid_argument);
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST_F(scope_test, TheFirstFailureOfAnyCallComesBackAndNothingIsLost) {
  possessions own{device_at(0)};
  make_current();
  const reported heard;
  for (const auto& each : operations()) {
    fake.clear_log();
    ASSERT_TRUE(each.run(device_at(0), own)) << each.name;
    const auto calls = fake.calls();
    for (std::size_t nth = 1; nth <= calls.size(); ++nth) {
      SCOPED_TRACE(each.name + ", call " + std::to_string(nth));
      const call failing = calls[nth - 1];
      const auto live = fake.live();
      fake.fail_nth(nth, driver::CUDA_ERROR_UNKNOWN);
      const auto outcome = each.run(device_at(0), own);
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().call(), driver::info(failing).symbol);
      EXPECT_EQ(outcome.error().native(), 999);
      EXPECT_EQ(code_of(outcome), errc::driver_error);
      EXPECT_THAT(fake.stack(), ElementsAre(fake_driver::context_of(0)));
      // What the driver refused to destroy is still there, and so is what could not be destroyed
      // because its context could not be bound; everything else was cleaned up.
      const bool refused = destroying.contains(failing) || failing == call::ctx_get_current;
      if (!refused) {
        EXPECT_EQ(fake.live(), live);
      }
    }
  }
  EXPECT_THAT(heard.errors, IsEmpty());
}

TEST_F(scope_test, AScopeThatCannotBeEnteredStopsThereAndIsNotLeft) {
  const std::vector<call> all = {call::device_primary_ctx_retain, call::ctx_get_current,
                                 call::ctx_push_current};
  const reported heard;
  for (std::size_t nth = 1; nth <= all.size(); ++nth) {
    const auto fresh = runtime::open_table(fake.table, "fake").value();
    fake.stack() = {fake_driver::context_of(1)};
    fake.clear_log();
    fake.fail_nth(nth, driver::CUDA_ERROR_UNKNOWN);
    {
      const context_scope bound{fresh->device(device_id{0}).value()};
      EXPECT_FALSE(bound);
      EXPECT_EQ(bound.error(), driver::make_error(all[nth - 1], driver::CUDA_ERROR_UNKNOWN));
    }
    EXPECT_EQ(fake.calls(), std::vector(all.begin(), all.begin() + static_cast<int>(nth)));
    EXPECT_THAT(fake.stack(), ElementsAre(fake_driver::context_of(1)));
  }
  EXPECT_THAT(heard.errors, IsEmpty());
}

TEST_F(scope_test, AScopeThatCannotBeLeftIsReported) {
  fake.stack() = {fake_driver::context_of(1)};
  const reported heard;
  {
    const context_scope bound{device_at(0)};
    ASSERT_TRUE(bound);
    fake.always[call::ctx_pop_current] = driver::CUDA_ERROR_INVALID_CONTEXT;
  }
  ASSERT_EQ(heard.errors.size(), 1u);
  EXPECT_EQ(heard.errors[0].call(), "cuCtxPopCurrent");
  EXPECT_EQ(heard.errors[0].native(), driver::CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(scope_test, AScopeThatIsLeftAtTheSecondTryLeavesTheOuterContextCurrent) {
  const context_scope outer{device_at(1)};
  const std::vector before = fake.stack();
  const reported heard;
  {
    const context_scope inner{device_at(0)};
    ASSERT_TRUE(inner);
    fake.fail_nth(1, driver::CUDA_ERROR_UNKNOWN);
  }
  EXPECT_EQ(fake.stack(), before);
  EXPECT_THAT(heard.errors, IsEmpty());
}

TEST_F(scope_test, ThreadsRetainTheContextOnce) {
  fake.retaining_takes = std::chrono::milliseconds{20};  // long enough for all to come together
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([where = device_at(0)] { EXPECT_TRUE(where.memory_info()); });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQ(fake.retained(0), 1);
  EXPECT_EQ(fake.count(call::device_primary_ctx_retain), 1u);
}

TEST_F(scope_test, AContextThatIsThereTakesNoLock) {
  ASSERT_TRUE(device_at(0).memory_info());
  std::unique_lock held{detail::device_state::of(device_at(0)).context_mutex};
  auto asked = std::async(std::launch::async,
                          [where = device_at(0)] { return where.memory_info().has_value(); });
  EXPECT_EQ(asked.wait_for(std::chrono::seconds{5}), std::future_status::ready);
  held.unlock();
  EXPECT_TRUE(asked.get());
}

}  // namespace
}  // namespace weir::testing_support

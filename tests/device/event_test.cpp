// SPDX-License-Identifier: Apache-2.0
// Events, their pool, and the thread's capture mode.
#include "weir/device/event.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "device/device_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

static_assert(!std::is_copy_constructible_v<event>);
static_assert(std::is_nothrow_move_constructible_v<event>);

using event_test = device_test;

TEST_F(event_test, SettingsReachTheDriver) {
  const auto flags = [this](event_options settings) {
    EXPECT_TRUE(event::create(device_at(0), settings));
    return static_cast<int>(fake.last_event_flags);
  };
  EXPECT_EQ(flags({}), driver::CU_EVENT_DISABLE_TIMING);
  EXPECT_EQ(flags({.timing = true}), driver::CU_EVENT_DEFAULT);
  EXPECT_EQ(flags({.interprocess = true}),
            driver::CU_EVENT_DISABLE_TIMING | driver::CU_EVENT_INTERPROCESS);
  EXPECT_EQ(flags({.timing = true, .blocking_sync = true}), driver::CU_EVENT_BLOCKING_SYNC);
  EXPECT_EQ(code_of(event::create(device_at(0), {.timing = true, .interprocess = true})),
            errc::invalid_argument);
}

TEST_F(event_test, NotReachedIsNoError) {
  const auto mark = event::create(device_at(0)).value();
  EXPECT_TRUE(mark.is_complete().value());
  fake.always[call::event_query] = driver::CUDA_ERROR_NOT_READY;
  EXPECT_FALSE(mark.is_complete().value());
  fake.always[call::event_query] = driver::CUDA_ERROR_CAPTURED_EVENT;
  const auto refused = mark.is_complete();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), 907);
  EXPECT_EQ(code_of(refused), errc::capture_forbidden);
}

TEST_F(event_test, AStreamOfAnotherDeviceIsRefusedBeforeTheDriverSeesIt) {
  auto mark = event::create(device_at(0)).value();
  EXPECT_EQ(code_of(mark.record(stream_ref::legacy(device_at(1)))), errc::bad_stream);
  EXPECT_EQ(fake.count(call::event_record), 0u);
  EXPECT_TRUE(stream_ref::legacy(device_at(1)).wait(mark)) << "waiting across devices is allowed";
}

TEST_F(event_test, AClosedEventRefusesEverything) {
  auto mark = event::create(device_at(0)).value();
  const auto other = event::create(device_at(0), {.timing = true}).value();
  ASSERT_TRUE(mark.close());
  EXPECT_EQ(mark.handle(), nullptr);
  fake.clear_log();
  EXPECT_EQ(code_of(mark.record(stream_ref::legacy(device_at(0)))), errc::closed);
  EXPECT_EQ(code_of(mark.is_complete()), errc::closed);
  EXPECT_EQ(code_of(mark.synchronize()), errc::closed);
  EXPECT_EQ(code_of(mark.export_handle()), errc::closed);
  EXPECT_EQ(code_of(event::elapsed(mark, other)), errc::closed);
  EXPECT_TRUE(mark.close());
  EXPECT_EQ(fake.count(call::event_destroy), 0u);
}

TEST_F(event_test, AnEmptyEventSaysWhetherItWasMovedFromOrClosed) {
  auto mark = event::create(device_at(0)).value();
  event moved{std::move(mark)};
  EXPECT_EQ(code_of(mark.is_complete()), errc::moved_from);  // NOLINT(bugprone-use-after-move)
  EXPECT_FALSE(mark);
  EXPECT_TRUE(moved);
  ASSERT_TRUE(moved.close());
  EXPECT_FALSE(moved);
  EXPECT_EQ(code_of(moved.is_complete()), errc::closed);
  mark = std::move(moved);
  EXPECT_EQ(code_of(mark.is_complete()), errc::closed);
  EXPECT_EQ(code_of(moved.is_complete()), errc::moved_from);  // NOLINT(bugprone-use-after-move)
  mark = event::create(device_at(0)).value();
  EXPECT_TRUE(mark.is_complete().value());
}

TEST_F(event_test, ElapsedNeedsTiming) {
  const auto timed = event::create(device_at(0), {.timing = true}).value();
  const auto untimed = event::create(device_at(0)).value();
  EXPECT_EQ(code_of(event::elapsed(timed, untimed)), errc::invalid_argument);
  EXPECT_EQ(code_of(event::elapsed(untimed, timed)), errc::invalid_argument);
  EXPECT_EQ(event::elapsed(timed, timed).value().count(), 0.0F);
  const auto later = event::create(device_at(0), {.timing = true}).value();
  EXPECT_EQ(event::elapsed(timed, later).value().count(), 32.0F)
      << "the fake answers the difference of the handles";
  fake.always[call::event_elapsed_time] = driver::CUDA_ERROR_NOT_READY;
  EXPECT_EQ(code_of(event::elapsed(timed, timed)), errc::not_ready);
}

TEST_F(event_test, OnlyInterprocessEventsAreExported) {
  EXPECT_EQ(code_of(event::create(device_at(0)).value().export_handle()), errc::invalid_argument);
  EXPECT_TRUE(event::create(device_at(0), {.interprocess = true}).value().export_handle());
}

TEST_F(event_test, MovesAndClosesOnce) {
  auto first = event::create(device_at(0)).value();
  event second{std::move(first)};
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(second);
  second = event::create(device_at(0)).value();
  EXPECT_EQ(fake.live(), 1u);
  EXPECT_TRUE(second.close());
  EXPECT_EQ(fake.live(), 0u);
}

TEST_F(event_test, ThePoolGivesBackWhatItGot) {
  event_pool pool{device_at(0)};
  auto first = pool.acquire().value();
  auto* const handle = first.handle();
  EXPECT_EQ(fake.last_event_flags, unsigned{driver::CU_EVENT_DISABLE_TIMING});
  ASSERT_TRUE(pool.release(std::move(first)));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(pool.idle(), 1u);
  fake.clear_log();
  const auto again = pool.acquire().value();
  EXPECT_EQ(again.handle(), handle);
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST_F(event_test, ThePoolKeepsNoMoreThanItMay) {
  event_pool pool{device_at(0), 2};
  std::vector<event> taken;
  for (int i = 0; i < 5; ++i) taken.push_back(pool.acquire().value());
  for (auto& each : taken) ASSERT_TRUE(pool.release(std::move(each)));
  EXPECT_EQ(pool.idle(), 2u);
  EXPECT_EQ(fake.live(), 2u);
  ASSERT_TRUE(pool.trim());
  EXPECT_EQ(pool.idle(), 0u);
  EXPECT_EQ(fake.live(), 0u);
}

TEST_F(event_test, ThePoolTakesOnlyItsOwnKind) {
  event_pool pool{device_at(0)};
  auto timed = event::create(device_at(0), {.timing = true}).value();
  auto elsewhere = event::create(device_at(1)).value();
  EXPECT_EQ(code_of(pool.release(std::move(timed))), errc::foreign_pointer);
  EXPECT_EQ(code_of(pool.release(std::move(elsewhere))), errc::foreign_pointer);
  EXPECT_TRUE(timed);      // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(elsewhere);  // NOLINT(bugprone-use-after-move)
  ASSERT_TRUE(timed.close());
  EXPECT_EQ(code_of(pool.release(std::move(timed))), errc::closed);
  EXPECT_EQ(pool.idle(), 0u);
}

TEST_F(event_test, TheIdleEventsGoWithThePoolAndTheTakenOnesDoNot) {
  std::optional<event> taken;
  {
    event_pool pool{device_at(0)};
    auto idle = pool.acquire().value();
    taken = pool.acquire().value();
    ASSERT_TRUE(pool.release(std::move(idle)));
  }
  EXPECT_EQ(fake.live(), 1u);
  EXPECT_TRUE(taken->is_complete());
}

TEST_F(event_test, TrimDestroysAllAndTellsTheFirstFailure) {
  event_pool pool{device_at(0)};
  std::vector<event> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(pool.acquire().value());
  for (auto& each : taken) ASSERT_TRUE(pool.release(std::move(each)));
  make_current();
  fake.clear_log();
  fake.fail_nth(3, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(pool.trim()), errc::driver_error);
  EXPECT_EQ(fake.count(call::event_destroy), 3u);
  EXPECT_EQ(fake.live(), 1u);
  EXPECT_EQ(pool.idle(), 0u);
  EXPECT_TRUE(pool.trim()) << "there is nothing left to fail";

  for (int i = 0; i < 3; ++i) taken[static_cast<std::size_t>(i)] = pool.acquire().value();
  for (auto& each : taken) ASSERT_TRUE(pool.release(std::move(each)));
  fake.always = {{call::event_destroy, driver::CUDA_ERROR_NOT_PERMITTED}};
  fake.fail_nth(2, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(pool.trim()), errc::driver_error) << "not what the others say";
}

TEST_F(event_test, ThePoolServesManyThreads) {
  event_pool pool{device_at(0), 4};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool] {
      for (int i = 0; i < 500; ++i) {
        auto a = pool.acquire().value();
        auto b = pool.acquire().value();
        ASSERT_NE(a.handle(), b.handle());
        ASSERT_TRUE(pool.release(std::move(a)));
        ASSERT_TRUE(pool.release(std::move(b)));
      }
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_LE(pool.idle(), 4u);
  EXPECT_EQ(fake.live(), pool.idle());
}

TEST_F(event_test, TheGuardRelaxesTheThreadAndPutsItsModeBack) {
  fake.thread_mode = driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  fake.clear_log();
  {
    const thread_capture_mode_guard relaxed{device_at(0)};
    EXPECT_TRUE(relaxed);
    EXPECT_EQ(fake.thread_mode, driver::CU_STREAM_CAPTURE_MODE_RELAXED);
  }
  EXPECT_EQ(fake.thread_mode, driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_THAT(fake.calls(), ElementsAre(call::thread_exchange_stream_capture_mode,
                                        call::thread_exchange_stream_capture_mode));
}

TEST_F(event_test, AGuardThatFailedPutsNothingBack) {
  fake.clear_log();
  fake.always[call::thread_exchange_stream_capture_mode] = driver::CUDA_ERROR_UNKNOWN;
  {
    const thread_capture_mode_guard relaxed{device_at(0)};
    EXPECT_FALSE(relaxed);
    EXPECT_EQ(relaxed.error().native(), 999);
  }
  EXPECT_EQ(fake.calls().size(), 1u);
}

}  // namespace
}  // namespace weir::testing_support

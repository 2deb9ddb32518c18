// SPDX-License-Identifier: Apache-2.0
// Streams: who they are, what they belong to, and whether they are being captured.
#include "weir/device/stream.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <latch>
#include <thread>
#include <type_traits>

#include "device/device_fixture.hpp"
#include "device/state.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

static_assert(std::is_trivially_copyable_v<stream_ref>, "passed by value on every allocation");
static_assert(!std::is_copy_constructible_v<stream>);
static_assert(std::is_nothrow_move_constructible_v<stream>);
// cuda.h: typedef struct CUstream_st* CUstream; driver_types.h: typedef CUstream_st* cudaStream_t.
static_assert(std::is_constructible_v<stream_ref, device, struct ::CUstream_st*>);

using stream_test = device_test;

TEST_F(stream_test, NullIsTheLegacyStream) {
  const stream_ref null{device_at(0), nullptr};
  EXPECT_TRUE(null.is_legacy());
  EXPECT_EQ(null, stream_ref::legacy(device_at(0)));
  EXPECT_NE(null, stream_ref::legacy(device_at(1)));
  EXPECT_NE(null, stream_ref::per_thread(device_at(0)));
  EXPECT_TRUE(stream_ref::per_thread(device_at(0)).is_per_thread());
  EXPECT_FALSE(stream_ref::per_thread(device_at(0)).is_legacy());
  EXPECT_FALSE(null.is_per_thread());
  EXPECT_EQ(null.id().value(), stream_ref::legacy(device_at(0)).id().value());
}

TEST_F(stream_test, AnIdentifiedReferenceAsksNoMore) {
  const auto known = stream_ref::legacy(device_at(0)).identified().value();
  const auto own = stream::create(device_at(0)).value();
  fake.clear_log();
  EXPECT_EQ(known.id().value(), stream_id{6});
  EXPECT_EQ(known.known_id(), stream_id{6});
  EXPECT_EQ(own.ref().known_id(), own.id());
  EXPECT_EQ(stream_ref(device_at(0), own.handle()).known_id(), stream_id{});
  EXPECT_EQ(own.ref().id().value(), own.id());
  EXPECT_EQ(stream_ref{own}.identified().value().id().value(), own.id());
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST_F(stream_test, ThePerThreadStreamIsAskedEachTime) {
  const auto mine = stream_ref::per_thread(device_at(0)).identified().value();
  ASSERT_TRUE(mine.id());
  EXPECT_EQ(mine.known_id(), stream_id{});
  make_current();
  fake.clear_log();
  ASSERT_TRUE(mine.id());
  EXPECT_THAT(fake.calls(),
              ElementsAre(call::ctx_get_current, call::stream_is_capturing, call::stream_get_id));
}

TEST_F(stream_test, SettingsReachTheDriver) {
  const auto beside = stream::create(device_at(0)).value();
  EXPECT_EQ(fake.last_stream_flags, unsigned{driver::CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(fake.last_stream_priority, 0);
  const auto in_order = stream::create(device_at(0), {.non_blocking = false}).value();
  EXPECT_EQ(fake.last_stream_flags, unsigned{driver::CU_STREAM_DEFAULT});
  EXPECT_NE(beside.id(), in_order.id());
  const auto urgent = stream::create(device_at(0), {.priority = -3}).value();
  EXPECT_EQ(fake.last_stream_flags, unsigned{driver::CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(fake.last_stream_priority, -3);
}

TEST_F(stream_test, MovesAndClosesOnce) {
  auto first = stream::create(device_at(0)).value();
  auto* const handle = first.handle();
  stream second{std::move(first)};
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.handle(), handle);
  second = stream::create(device_at(0)).value();
  EXPECT_EQ(fake.count(call::stream_destroy), 1u);
  EXPECT_TRUE(second.close());
  EXPECT_FALSE(second);
  EXPECT_TRUE(second.close());
  EXPECT_EQ(fake.count(call::stream_destroy), 2u);
  EXPECT_EQ(fake.live(), 0u);
}

TEST_F(stream_test, AssigningToItselfKeepsTheStream) {
  auto own = stream::create(device_at(0)).value();
  auto& same = own;
  own = std::move(same);
  EXPECT_TRUE(own);
  EXPECT_EQ(fake.count(call::stream_destroy), 0u);
}

TEST_F(stream_test, BusyIsNoError) {
  const auto own = stream::create(device_at(0)).value();
  EXPECT_TRUE(own.is_complete().value());
  fake.always[call::stream_query] = driver::CUDA_ERROR_NOT_READY;
  EXPECT_FALSE(own.is_complete().value());
  fake.always[call::stream_query] = driver::CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(code_of(own.is_complete()), errc::device_lost);
}

TEST_F(stream_test, WaitingForAnEmptyEventIsRefused) {
  const auto own = stream::create(device_at(0)).value();
  auto gone = event::create(device_at(0)).value();
  ASSERT_TRUE(gone.close());
  EXPECT_EQ(code_of(own.wait(gone)), errc::closed);
  EXPECT_EQ(fake.count(call::stream_wait_event), 0u);
}

TEST_F(stream_test, CaptureIsToldWithItsId) {
  const auto own = stream::create(device_at(0)).value();
  EXPECT_EQ(own.ref().capture().value().status, capture_status::none);
  EXPECT_FALSE(own.ref().is_capturing().value());
  fake.capture = driver::CU_STREAM_CAPTURE_STATUS_ACTIVE;
  const auto active = own.ref().capture().value();
  EXPECT_EQ(active.status, capture_status::active);
  EXPECT_EQ(active.id, capture_id{77});
  EXPECT_TRUE(own.ref().is_capturing().value());
  fake.capture = driver::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  EXPECT_EQ(own.ref().capture().value().status, capture_status::invalidated);
  EXPECT_TRUE(own.ref().is_capturing().value());
}

TEST_F(stream_test, TheLegacyStreamBesideACaptureIsNotCapturing) {
  fake.always[call::stream_get_capture_info] = driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  fake.always[call::stream_is_capturing] = driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const auto legacy = stream_ref::legacy(device_at(0));
  EXPECT_EQ(legacy.capture().value().status, capture_status::implicit);
  EXPECT_FALSE(legacy.is_capturing().value());
}

TEST_F(stream_test, AnIdIsNotAskedForDuringACapture) {
  const auto legacy = stream_ref::legacy(device_at(0));
  const auto expect_refused = [&] {
    const auto refused = legacy.id();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), (error{{.code = errc::capture_forbidden,
                                       .call = "cuStreamGetId",
                                       .detail = "the stream's id cannot be read during its "
                                                 "capture; call id() before the capture begins"}}));
  };
  fake.capture = driver::CU_STREAM_CAPTURE_STATUS_ACTIVE;
  expect_refused();
  fake.capture = driver::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  expect_refused();
  fake.capture = driver::CU_STREAM_CAPTURE_STATUS_NONE;
  fake.always[call::stream_is_capturing] = driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  expect_refused();
  EXPECT_EQ(fake.count(call::stream_get_id), 0u);
}

TEST_F(stream_test, AFailureToAskForACaptureIsNoCapture) {
  fake.capture = driver::CU_STREAM_CAPTURE_STATUS_ACTIVE;  // what a failed call leaves there
  fake.always[call::stream_is_capturing] = driver::CUDA_ERROR_INVALID_HANDLE;
  const auto refused = stream_ref::legacy(device_at(0)).id();
  ASSERT_FALSE(refused);
  EXPECT_EQ(code_of(refused), errc::invalid_handle);
  EXPECT_EQ(refused.error().call(), "cuStreamIsCapturing");
  EXPECT_EQ(fake.count(call::stream_get_id), 0u);
}

TEST_F(stream_test, StreamsOfAnotherDeviceAreFound) {
  const stream_ref theirs{device_at(0), reinterpret_cast<::CUstream_st*>(std::uintptr_t{0x500})};
  EXPECT_TRUE(theirs.validate());
  fake.stream_context = fake_driver::context_of(1);
  EXPECT_EQ(code_of(theirs.validate()), errc::bad_stream);
  fake.stream_context = reinterpret_cast<driver::CUcontext>(std::uintptr_t{0x2000});
  EXPECT_TRUE(theirs.validate()) << "a context of the user's own on the right device";
  EXPECT_TRUE(stream_ref::legacy(device_at(0)).validate());
  EXPECT_TRUE(stream_ref::per_thread(device_at(0)).validate());
}

TEST_F(stream_test, WhatIsNoStreamIsFound) {
  const stream_ref gone{device_at(0), reinterpret_cast<::CUstream_st*>(std::uintptr_t{0x500})};
  for (const auto answer :
       {driver::CUDA_ERROR_INVALID_HANDLE, driver::CUDA_ERROR_INVALID_VALUE,
        driver::CUDA_ERROR_INVALID_CONTEXT, driver::CUDA_ERROR_CONTEXT_IS_DESTROYED}) {
    fake.always[call::stream_get_ctx] = answer;
    const auto refused = gone.validate();
    ASSERT_FALSE(refused) << answer;
    EXPECT_EQ(code_of(refused), errc::bad_stream) << answer;
    EXPECT_EQ(refused.error().native(), answer);
    EXPECT_EQ(refused.error().call(), "cuStreamGetCtx");
  }
  fake.always[call::stream_get_ctx] = driver::CUDA_ERROR_LAUNCH_FAILED;
  EXPECT_EQ(code_of(gone.validate()), errc::device_lost);
  fake.clear_log();
  EXPECT_TRUE(stream_ref::legacy(device_at(0)).validate());
  EXPECT_TRUE(stream_ref::per_thread(device_at(0)).validate());
  EXPECT_THAT(fake.calls(), IsEmpty());
}

TEST_F(stream_test, AFailureOnTheWayToTheStreamsDeviceIsReturned) {
  const stream_ref theirs{device_at(0), reinterpret_cast<::CUstream_st*>(std::uintptr_t{0x500})};
  fake.stream_context = reinterpret_cast<driver::CUcontext>(std::uintptr_t{0x2000});
  make_current();
  const auto stack = fake.stack();
  ASSERT_TRUE(theirs.validate());
  for (const auto which : {call::ctx_push_current, call::ctx_get_device}) {
    fake.always = {{which, driver::CUDA_ERROR_UNKNOWN}};
    const auto refused = theirs.validate();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().call(), driver::info(which).symbol);
    EXPECT_EQ(fake.stack(), stack);
  }
}

// Drivers before CUDA 12.0 and 11.3.
class old_driver_test : public ::testing::Test {
 protected:
  old_driver_test() {
    fake.table.stream_get_id = nullptr;
    fake.table.stream_get_capture_info = nullptr;
    runtime_ = runtime::open_table(fake.table, "old").value();
  }
  [[nodiscard]] device device_at(int index) const {
    return runtime_->device(device_id{index}).value();
  }

  fake_driver fake;
  std::shared_ptr<runtime> runtime_;
};

TEST_F(old_driver_test, NumbersStreamsItself) {
  const auto a = stream::create(device_at(0)).value();
  const auto b = stream::create(device_at(0)).value();
  EXPECT_NE(a.id(), b.id());
  EXPECT_EQ(stream_ref(device_at(0), a.handle()).id().value(), a.id());
  const auto legacy = stream_ref::legacy(device_at(0)).id().value();
  EXPECT_EQ(stream_ref(device_at(0), nullptr).id().value(), legacy);
  EXPECT_NE(stream_ref::legacy(device_at(1)).id().value(), legacy);
}

TEST_F(old_driver_test, ARecycledHandleGetsANewNumber) {
  const auto handle = fake.next_handle;
  auto first = stream::create(device_at(0)).value();
  const auto before = first.id();
  ASSERT_TRUE(first.close());
  fake.next_handle = handle;
  const auto second = stream::create(device_at(0)).value();
  EXPECT_NE(second.id(), before);
  EXPECT_EQ(stream_ref(device_at(0), second.handle()).id().value(), second.id());
}

TEST_F(old_driver_test, AForeignStreamWithTheHandleOfOneThatWeDestroyedIsAnother) {
  auto own = stream::create(device_at(0)).value();
  const auto before = own.id();
  auto* const handle = own.handle();
  ASSERT_TRUE(own.close());
  EXPECT_NE(stream_ref(device_at(0), handle).id().value(), before);
}

TEST_F(old_driver_test, AHandleKnownFromAForeignStreamIsRenumberedWhenWeCreateIt) {
  const auto handle = fake.next_handle;
  const stream_ref foreign{device_at(0), reinterpret_cast<::CUstream_st*>(handle)};
  const auto before = foreign.id().value();
  EXPECT_EQ(foreign.id().value(), before);
  const auto own = stream::create(device_at(0)).value();
  ASSERT_EQ(own.handle(), foreign.handle());
  EXPECT_NE(own.id(), before);
}

/// One map for all threads: what one forgets, the others must not stumble over.
TEST_F(old_driver_test, NumbersAndForgetsStreamsOnManyThreads) {
  constexpr std::uintptr_t rounds = 20'000;
  auto& state = detail::device_state::of(device_at(0));
  std::latch start{2};
  const auto number_and_forget = [&](std::uintptr_t first) {
    const context_scope bound{device_at(0)};
    stream_id last{};
    start.arrive_and_wait();
    for (std::uintptr_t i = 0; i < rounds; ++i) {
      auto* const handle = reinterpret_cast<::CUstream_st*>(first + i % 64 * 0x10);
      const stream_id number = stream_ref(device_at(0), handle).id(bound).value();
      ASSERT_NE(number, last);
      last = number;
      detail::forget_stream(state, handle);
    }
  };
  std::thread other{number_and_forget, 0x100000};
  number_and_forget(0x200000);
  other.join();
  EXPECT_TRUE(state.numbers.empty());
}

TEST_F(old_driver_test, EachThreadHasItsOwnPerThreadNumber) {
  const auto ask = [this](int index) {
    return stream_ref::per_thread(device_at(index)).id().value();
  };
  const auto mine = ask(0);
  EXPECT_EQ(ask(0), mine);
  EXPECT_NE(ask(1), mine);
  stream_id theirs{};
  std::thread{[&] { theirs = ask(0); }}.join();
  EXPECT_NE(theirs, mine);
  // The device has 16 bits, the thread the 32 above them.
  EXPECT_EQ(ask(1).number(), mine.number() + 1);
  stream_id next{};
  std::thread{[&] { next = ask(0); }}.join();
  EXPECT_EQ(next.number(), theirs.number() + 0x10000);
}

TEST_F(old_driver_test, SaysThatItCannotNameACapture) {
  const auto own = stream::create(device_at(0)).value();
  EXPECT_EQ(own.ref().capture().value().status, capture_status::none);
  fake.capture = driver::CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(code_of(own.ref().capture()), errc::not_supported);
  EXPECT_TRUE(own.ref().is_capturing().value());
  fake.always[call::stream_is_capturing] = driver::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  EXPECT_EQ(stream_ref::legacy(device_at(0)).capture().value().status, capture_status::implicit);
}

TEST_F(stream_test, TheLegacyStreamIsAskedForItsIdOnce) {
  const auto first = stream_ref::legacy(device_at(0)).id().value();
  const auto asked = fake.count(call::stream_get_id);
  EXPECT_EQ(stream_ref::legacy(device_at(0)).id().value(), first);
  EXPECT_EQ(fake.count(call::stream_get_id), asked);
}

}  // namespace
}  // namespace weir::testing_support

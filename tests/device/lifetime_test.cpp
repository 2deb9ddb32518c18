// SPDX-License-Identifier: Apache-2.0
// The end of things: destructors that fail, a driver that is gone, and a process that forked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "device/device_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using lifetime_test = device_test;

TEST_F(lifetime_test, OwnersKeepTheirRuntime) {
  std::optional<possessions> own{device_at(0)};
  runtime_.reset();
  EXPECT_EQ(fake.retained(0), 1);
  const auto where = own->stream.device();
  for (const auto& each : operations()) EXPECT_TRUE(each.run(where, *own)) << each.name;
  own.reset();
  EXPECT_EQ(fake.live(), 0u);
  EXPECT_EQ(fake.retained(0), 0);
}

TEST_F(lifetime_test, TheLastOwnerReleasesTheContextAfterItsOwnThing) {
  std::optional<event> last = event::create(device_at(0)).value();
  runtime_.reset();
  fake.stack().clear();
  fake.clear_log();
  last.reset();
  EXPECT_THAT(fake.calls(), ::testing::ElementsAre(call::ctx_get_current, call::ctx_push_current,
                                                   call::event_destroy, call::ctx_pop_current,
                                                   call::device_primary_ctx_release));
}

TEST_F(lifetime_test, DestructorsReportTheFailingCallAndItsCode) {
  const reported heard;
  {
    const possessions own{device_at(0)};
    for (const auto which : {call::stream_destroy, call::event_destroy, call::mem_unmap,
                             call::mem_release, call::mem_address_free}) {
      fake.always[which] = driver::CUDA_ERROR_INVALID_HANDLE;
    }
  }
  std::vector<std::string_view> calls;
  for (const auto& each : heard.errors) {
    calls.push_back(each.call());
    EXPECT_EQ(each.native(), driver::CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(each.code(), errc::invalid_handle);
  }
  // Four events of their own and the pool's idle one.
  EXPECT_THAT(calls, UnorderedElementsAre("cuStreamDestroy", "cuEventDestroy", "cuEventDestroy",
                                          "cuEventDestroy", "cuEventDestroy", "cuEventDestroy",
                                          "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"));
}

TEST_F(lifetime_test, AContextThatCannotBeReleasedIsReported) {
  ASSERT_TRUE(device_at(0).memory_info());
  const reported heard;
  fake.always[call::device_primary_ctx_release] = driver::CUDA_ERROR_UNKNOWN;
  runtime_.reset();
  ASSERT_EQ(heard.errors.size(), 1u);
  EXPECT_EQ(heard.errors[0].call(), "cuDevicePrimaryCtxRelease");
}

TEST_F(lifetime_test, CloseReturnsWhatADestructorWouldReport) {
  const reported heard;
  auto own = stream::create(device_at(0)).value();
  fake.always[call::stream_destroy] = driver::CUDA_ERROR_INVALID_HANDLE;
  EXPECT_EQ(code_of(own.close()), errc::invalid_handle);
  EXPECT_FALSE(own);
  EXPECT_THAT(heard.errors, IsEmpty());
}

class gone_test : public device_test, public ::testing::WithParamInterface<driver::CUresult> {};

TEST_P(gone_test, CallsSaySoAndDestructorsAreSilent) {
  const reported heard;
  const auto before = reported_errors();
  {
    possessions own{device_at(0)};
    fake.everything = GetParam();
    for (const auto& each : operations()) {
      EXPECT_EQ(code_of(each.run(device_at(0), own)), errc::driver_gone) << each.name;
    }
  }
  runtime_.reset();
  EXPECT_THAT(heard.errors, IsEmpty());
  EXPECT_EQ(reported_errors(), before);
}

INSTANTIATE_TEST_SUITE_P(ways_to_go, gone_test,
                         ::testing::Values(driver::CUDA_ERROR_DEINITIALIZED,
                                           driver::CUDA_ERROR_NOT_INITIALIZED,
                                           driver::CUDA_ERROR_CONTEXT_IS_DESTROYED));

TEST_F(lifetime_test, AScopeLeftAfterTheDriverWentIsSilent) {
  const reported heard;
  {
    const context_scope bound{device_at(0)};
    ASSERT_TRUE(bound);
    fake.everything = driver::CUDA_ERROR_DEINITIALIZED;
  }
  EXPECT_THAT(heard.errors, IsEmpty());
}

TEST_F(lifetime_test, AForkedChildTouchesNoDriver) {
  std::optional<possessions> own{device_at(0)};
  std::optional<event_pool> unused{device_at(0)};
  const auto found = in_child([&] {
    fake.clear_log();
    const auto reports = reported_errors();
    int number = 1;
    for (const auto& each : operations()) {
      if (const auto outcome = each.run(device_at(0), *own);
          outcome || outcome.code() != errc::driver_gone) {
        return number;
      }
      ++number;
    }
    if (own->pool.acquire() || own->pool.trim() || own->pool.idle() != 0) return 100;
    if (device_at(0).context() || device_at(0).can_access_peer(device_at(1))) return 101;
    if (const thread_capture_mode_guard relaxed{device_at(0)};
        relaxed || relaxed.error().code() != errc::driver_gone) {
      return 102;
    }
    if (const auto trimmed = unused->trim(); trimmed || trimmed.code() != errc::driver_gone)
      return 105;
    own.reset();
    unused.reset();
    runtime_.reset();
    if (!fake.log().empty()) return 103;
    return reported_errors() == reports ? 0 : 104;
  });
  EXPECT_EQ(found, 0);
  EXPECT_TRUE(own->event.is_complete()) << "the parent goes on";
}

TEST_F(lifetime_test, AForkedChildMayOpenARuntimeOfItsOwn) {
  const auto found = in_child([&] {
    if (device_at(0).memory_info()) return 1;
    const auto mine = runtime::open_table(fake.table, "child's");
    if (!mine) return 2;
    const auto where = (*mine)->device(device_id{0});
    return where && where->memory_info() ? 0 : 3;
  });
  EXPECT_EQ(found, 0);
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Driver results become the errors they stand for.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "weir/driver/table.hpp"

namespace weir::driver { namespace {

struct known_result {
  CUresult native;
  std::string_view name;
};
constexpr known_result results[] = {
#define WEIR_ENUMERATOR(enumeration, name, value) \
  {static_cast<CUresult>(std::is_same_v<enumeration, CUresult> ? value : -1), #name},
#define WEIR_STRUCT(name, size, alignment)
#define WEIR_FIELD(structure, field, offset, size)
#include "driver/abi.def"
};

TEST(driver_errors, every_result_has_its_name) {
  int checked = 0;
  for (const auto& [native, name] : results) {
    if (native == -1) continue;
    EXPECT_EQ(result_name(native), name);
    ++checked;
  }
  EXPECT_GT(checked, 90);
  EXPECT_EQ(result_name(static_cast<CUresult>(12345)), "CUDA_ERROR_UNKNOWN");
}

TEST(driver_errors, results_are_sorted_by_what_can_be_done) {
  EXPECT_EQ(to_errc(CUDA_ERROR_OUT_OF_MEMORY), errc::out_of_memory);
  EXPECT_EQ(to_errc(CUDA_ERROR_INVALID_VALUE), errc::invalid_argument);
  EXPECT_EQ(to_errc(CUDA_ERROR_INVALID_HANDLE), errc::invalid_handle);
  EXPECT_EQ(to_errc(CUDA_ERROR_INVALID_CONTEXT), errc::invalid_handle);
  EXPECT_EQ(to_errc(CUDA_ERROR_NOT_READY), errc::not_ready);
  EXPECT_EQ(to_errc(CUDA_ERROR_NOT_SUPPORTED), errc::not_supported);
  EXPECT_EQ(to_errc(CUDA_ERROR_NOT_PERMITTED), errc::not_permitted);
  EXPECT_EQ(to_errc(CUDA_ERROR_NOT_FOUND), errc::not_found);
  EXPECT_EQ(to_errc(CUDA_ERROR_ALREADY_MAPPED), errc::already_mapped);
  EXPECT_EQ(to_errc(CUDA_ERROR_NOT_MAPPED), errc::not_mapped);
  EXPECT_EQ(to_errc(CUDA_ERROR_NO_DEVICE), errc::no_device);
  EXPECT_EQ(to_errc(CUDA_ERROR_INVALID_DEVICE), errc::no_device);
  EXPECT_EQ(to_errc(CUDA_ERROR_OPERATING_SYSTEM), errc::system);
  EXPECT_EQ(to_errc(CUDA_ERROR_UNKNOWN), errc::driver_error);
}

TEST(driver_errors, the_end_of_the_driver_is_told_from_the_end_of_the_device) {
  for (const CUresult gone : {CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NOT_INITIALIZED,
                              CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_MPS_CLIENT_TERMINATED})
    EXPECT_EQ(to_errc(gone), errc::driver_gone) << result_name(gone);
  for (const CUresult lost :
       {CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ASSERT,
        CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_LAUNCH_TIMEOUT})
    EXPECT_EQ(to_errc(lost), errc::device_lost) << result_name(lost);
}

TEST(driver_errors, a_capture_that_forbids_is_told_from_one_that_broke) {
  EXPECT_EQ(to_errc(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), errc::capture_forbidden);
  EXPECT_EQ(to_errc(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT), errc::capture_forbidden);
  EXPECT_EQ(to_errc(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), errc::capture_invalid);
  EXPECT_EQ(to_errc(CUDA_ERROR_STREAM_CAPTURE_UNJOINED), errc::capture_invalid);
}

TEST(driver_errors, only_success_is_internal) {
  EXPECT_EQ(to_errc(CUDA_SUCCESS), errc::internal);
  for (const auto& [native, name] : results) {
    if (native == -1 || native == CUDA_SUCCESS) continue;
    EXPECT_NE(to_errc(native), errc::internal) << name;
  }
  // A result that a later driver invented is still an error of the driver.
  EXPECT_EQ(to_errc(static_cast<CUresult>(12345)), errc::driver_error);
}

TEST(driver_errors, an_error_names_its_call) {
  const error made =
      make_error(call::mem_create, CUDA_ERROR_OUT_OF_MEMORY, bytes{64 << 20}, "device 3");
  EXPECT_EQ(made.code(), errc::out_of_memory);
  EXPECT_EQ(made.native(), 2);
  EXPECT_EQ(made.call(), "cuMemCreate");
  EXPECT_EQ(made.requested(), bytes{64 << 20});
  EXPECT_EQ(made.message(),
            "out_of_memory: not enough memory for the request (cuMemCreate = 2, 64 MiB): device 3");
}

TEST(driver_errors, check_lets_success_through) {
  EXPECT_TRUE(check(call::init, CUDA_SUCCESS));
  const auto failed = check(call::event_query, CUDA_ERROR_NOT_READY);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.code(), errc::not_ready);
  EXPECT_EQ(failed.error().call(), "cuEventQuery");
}

}  // namespace
}  // namespace weir::driver

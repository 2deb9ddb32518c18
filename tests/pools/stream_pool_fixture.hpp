// SPDX-License-Identifier: Apache-2.0
// What the tests of stream pools work with: a runtime on the machine under test, and a simulated
// machine whose driver can be made to fail.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "support/contract_test.hpp"
#include "support/reports.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/pool/stream_pool.hpp"

namespace weir::testing_support {

using namespace weir::literals;

namespace stream_pools {

[[nodiscard]] inline device_address address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// A test on the machine under test, simulated or a GPU. At its end nothing may have been reported,
/// unless the test took it, and the machine must have found no fault with the program.
class stream_pool_contract : public contract_test {
 protected:
  void SetUp() override {
    contract_test::SetUp();
    if (machine == nullptr) return;
    runtime_ = runtime::open_table(*cu, "machine under test", machine).value();
    if (!gpu().capabilities().memory_pools) GTEST_SKIP() << "the device has no pools";
  }
  void TearDown() override {
    if (machine != nullptr) {
      cu->ctx_set_current(context);
      EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
      runtime_.reset();
      for (const error& each : heard.take()) ADD_FAILURE() << "reported: " << each.message();
    }
    contract_test::TearDown();
  }

  [[nodiscard]] weir::device gpu(int index = 0) const {
    return runtime_->device(device_id{index}).value();
  }
  [[nodiscard]] stream_pool make(const stream_pool_config& config = {}) const {
    return stream_pool::create(gpu(), config).value();
  }
  [[nodiscard]] weir::stream make_stream() const { return weir::stream::create(gpu()).value(); }
  /// Fills with `value`, in the stream's order.
  void write(const stream_ref& stream, const void* memory, bytes size, word value) {
    ASSERT_EQ(CUDA_SUCCESS,
              fill(address_of(memory), value, size.count() / sizeof(word), stream.handle()));
  }
  /// How many words are not `value`, once the device has come to rest.
  [[nodiscard]] std::size_t wrong(const void* memory, bytes size, word value) {
    return mismatches(address_of(memory), value, size.count() / sizeof(word));
  }
  void begin_capture(const stream_ref& stream) {
    ASSERT_EQ(CUDA_SUCCESS,
              cu->stream_begin_capture(stream.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  }
  void order(const stream_ref& first, const stream_ref& then) {
    auto mark = event::create(gpu()).value();
    ASSERT_TRUE(mark.record(first));
    ASSERT_TRUE(then.wait(mark));
  }

  reports heard;
  std::shared_ptr<runtime> runtime_;
};

}  // namespace stream_pools
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// The replaced functions where the host has no memory: whichever allocation fails, the program goes
// on, and no memory is lost.
#include <gtest/gtest.h>

#include <memory>

#include "hooks.hpp"
#include "process.hpp"
#include "real_driver.hpp"
#include "support/scarce_machine.hpp"
#include "weir/sim/machine.hpp"

namespace weir_preload { namespace {

using namespace abi;
using weir::testing_support::scarce_memory;
using weir::testing_support::spared_driver;
using weir::testing_support::spared_memory;

/// A simulated machine as the driver of this process, with host memory of its own.
class scarce_run : public testing::Test {
 protected:
  void SetUp() override {
    weir::sim::machine_options options;
    options.devices.assign(1, {.capacity = weir::bytes{std::uint64_t{2} << 30},
                               .context_overhead = weir::bytes{64 << 20}});
    machine_ = weir::sim::machine::create(options).value();
    real_.calls = spared_driver::of(machine_->driver());
    real_.version = 13000;
    add(hook::cuMemAlloc_v2, real_.calls.mem_alloc);
    add(hook::cuMemFree_v2, real_.calls.mem_free);
    add(hook::cuMemAllocAsync, real_.calls.mem_alloc_async);
    add(hook::cuMemFreeAsync, real_.calls.mem_free_async);
    add(hook::cuMemGetAddressRange_v2, real_.calls.mem_get_address_range);
    add(hook::cuStreamBeginCapture_v2, real_.calls.stream_begin_capture);
    add(hook::cuStreamEndCapture, real_.calls.stream_end_capture);
    real_driver::replace(&real_);
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.init(0));
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.device_primary_ctx_retain(&context_, 0));
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.ctx_set_current(context_));
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.stream_create(&stream_, CU_STREAM_NON_BLOCKING));
  }
  void TearDown() override {
    for (const auto& each : machine_->hazards()) ADD_FAILURE() << each.message();
    process::get()->drop_heap(0);
    process::restart();
    real_driver::replace(nullptr);
    ASSERT_EQ(CUDA_SUCCESS, real_.calls.ctx_set_current(nullptr));
  }
  template <class Function>
  void add(hook row, Function* function) {
    real_.originals[static_cast<std::size_t>(row)] = reinterpret_cast<void*>(function);
  }
  /// What the program holds, of weir and of the driver.
  [[nodiscard]] std::uint64_t live() const {
    const auto heap = process::get()->existing_heap(0);
    return heap == nullptr ? 0 : heap->memory().stats().requested.current.count();
  }
  /// Runs `program` with one host allocation after the other failing, until none does.
  template <class Program>
  void sweep(const Program& program) {
    for (long enough = 0;; ++enough) {
      SCOPED_TRACE(enough);
      ASSERT_LT(enough, 5000);
      bool failed = false;
      {
        const scarce_memory scarce{enough};
        program();
        failed = scarce_memory::take_failure();
      }
      ASSERT_EQ(live(), 0u);
      if (!failed) return;
    }
  }
  static void expect(CUresult answer) {
    const spared_memory spared;
    EXPECT_EQ(CUDA_SUCCESS, answer);
  }

  std::shared_ptr<weir::sim::machine> machine_;
  real_driver real_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

TEST_F(scarce_run, serves_or_lets_the_driver_serve) {
  sweep([&] {
    CUdeviceptr plain = 0;
    CUdeviceptr ordered = 0;
    expect(cuMemAlloc_v2(&plain, 3 << 20));
    expect(cuMemAllocAsync(&ordered, 1 << 20, stream_));
    CUdeviceptr base = 0;
    std::size_t size = 0;
    expect(cuMemGetAddressRange_v2(&base, &size, plain + 1));
    EXPECT_EQ(base, plain);
    if (cuMemFreeAsync(ordered, stream_) != CUDA_SUCCESS) expect(cuMemFreeAsync(ordered, stream_));
    if (cuMemFree_v2(plain) != CUDA_SUCCESS) expect(cuMemFree_v2(plain));
  });
}

TEST_F(scarce_run, frees_beside_captures_or_can_be_asked_again) {
  CUstream captured = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, real_.calls.stream_create(&captured, CU_STREAM_NON_BLOCKING));
  sweep([&] {
    CUdeviceptr plain = 0;
    expect(cuMemAlloc_v2(&plain, 3 << 20));
    const CUresult begun = cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (cuMemFree_v2(plain) != CUDA_SUCCESS) expect(cuMemFree_v2(plain));
    if (begun != CUDA_SUCCESS) return;
    CUgraph graph = nullptr;
    if (cuStreamEndCapture(captured, &graph) != CUDA_SUCCESS)
      expect(cuStreamEndCapture(captured, &graph));
    expect(real_.calls.graph_destroy(graph));
  });
}

}  // namespace
}  // namespace weir_preload

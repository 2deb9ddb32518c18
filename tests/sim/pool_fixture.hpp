// SPDX-License-Identifier: Apache-2.0
// What the tests of stream-ordered pools share: a machine that does nothing unless it is told to.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "support/sizes.hpp"
#include "support/this_process.hpp"
#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace weir::sim_tests {

using namespace driver;  // NOLINT(google-build-using-namespace): the calls under test
using sim::hazard_kind;
using sim::reads;
using sim::writes;

using testing_support::mib;
inline constexpr std::uint64_t page = 32 * mib;
inline constexpr std::uint64_t everything = ~std::uint64_t{0};

inline CUmemPoolProps device_pool(int device = 0, std::uint64_t most = 0,
                                  CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE) {
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.handleTypes = types;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.maxSize = most;
  return wanted;
}

/// Nothing happens on the device unless a test makes it happen.
inline sim::machine_options by_hand(std::size_t devices = 1) {
  sim::machine_options options;
  options.mode = sim::progress::manual;
  options.devices.resize(devices);
  return options;
}

class pool_fixture : public ::testing::Test {
 protected:
  explicit pool_fixture(sim::machine_options options = by_hand())
      : machine{sim::machine::create(std::move(options)).value()}, cuda{machine->driver()} {
    EXPECT_EQ(cuda.init(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
    a = stream();
    b = stream();
  }

  CUstream stream() {
    CUstream made = nullptr;
    EXPECT_EQ(cuda.stream_create(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return made;
  }
  CUmemoryPool make(const CUmemPoolProps& wanted) {
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cuda.mem_pool_create(&made, &wanted), CUDA_SUCCESS);
    return made;
  }
  /// A pool that gives nothing back by itself.
  CUmemoryPool keeping(std::uint64_t most = 0) {
    CUmemoryPool made = make(device_pool(0, most));
    threshold(made, everything);
    return made;
  }
  void threshold(CUmemoryPool of, std::uint64_t bytes) {
    EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes),
              CUDA_SUCCESS);
  }
  void rules(CUmemoryPool of, int follow, int opportunistic, int internal) {
    EXPECT_EQ(
        cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow),
        CUDA_SUCCESS);
    EXPECT_EQ(
        cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &opportunistic),
        CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                          &internal),
              CUDA_SUCCESS);
  }
  std::uint64_t figure(CUmemoryPool of, CUmemPool_attribute which) {
    std::uint64_t found = 0;
    EXPECT_EQ(cuda.mem_pool_get_attribute(of, which, &found), CUDA_SUCCESS);
    return found;
  }
  std::uint64_t reserved(CUmemoryPool of) {
    return figure(of, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  }
  std::uint64_t used(CUmemoryPool of) { return figure(of, CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }

  CUdeviceptr take(CUmemoryPool from, std::uint64_t bytes, CUstream on) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda.mem_alloc_from_pool_async(&made, bytes, from, on), CUDA_SUCCESS);
    return made;
  }
  CUresult try_take(CUmemoryPool from, std::uint64_t bytes, CUstream on) {
    CUdeviceptr made = 0;
    return cuda.mem_alloc_from_pool_async(&made, bytes, from, on);
  }
  void give(CUdeviceptr address, CUstream on) {
    EXPECT_EQ(cuda.mem_free_async(address, on), CUDA_SUCCESS);
  }
  void wait_for(CUstream on) { EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS); }
  void wait_for_all() { EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS); }
  /// What `on` does from now on comes after what `other` has been given so far.
  void order(CUstream on, CUstream other) {
    CUevent mark = nullptr;
    EXPECT_EQ(cuda.event_create(&mark, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(cuda.event_record(mark, other), CUDA_SUCCESS);
    EXPECT_EQ(cuda.stream_wait_event(on, mark, 0), CUDA_SUCCESS);
  }
  void kernel(CUstream on, std::vector<sim::access> touches) {
    EXPECT_TRUE(machine->launch(on, "kernel", std::move(touches)).has_value());
  }
  std::uint64_t capacity() { return machine->options().devices[0].capacity.count(); }
  std::vector<hazard_kind> hazards() {
    std::vector<hazard_kind> kinds;
    for (const auto& found : machine->hazards()) kinds.push_back(found.kind);
    return kinds;
  }

  std::shared_ptr<sim::machine> machine;
  const driver::table& cuda;
  CUcontext context = nullptr;
  CUstream a = nullptr;
  CUstream b = nullptr;
};

}  // namespace weir::sim_tests

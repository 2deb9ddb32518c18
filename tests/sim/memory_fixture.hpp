// SPDX-License-Identifier: Apache-2.0
// What the tests of memory share: a machine with a current context, and a look at the address
// space.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/sizes.hpp"
#include "support/system_limit.hpp"
#include "support/this_process.hpp"
#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace weir::sim_tests {

using namespace driver;  // NOLINT(google-build-using-namespace): the calls under test
using sim::hazard_kind;
using sim::reads;
using sim::writes;

using testing_support::gib;
using testing_support::kib;
using testing_support::mib;
using testing_support::system_limit;
using testing_support::tib;
/// What handles are made of.
inline constexpr std::size_t unit = 2 * mib;
inline constexpr CUdeviceptr nowhere = 0x1234000;

template <class T>
T* at(CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

/// Whether the process may read at `address`: the system says so without a fault.
inline bool readable(CUdeviceptr address) {
  int ends[2];
  if (::pipe(ends) != 0) return false;
  const bool could = ::write(ends[1], at<const void>(address), 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return could;
}

/// A machine with small devices whose whole capacity is for the test, with one call's cost each.
inline sim::machine_options small_machine(std::size_t capacity, std::size_t devices = 1) {
  sim::device_spec spec;
  spec.capacity = bytes{capacity};
  spec.context_overhead = bytes{0};
  return {.devices = {devices, spec}, .mode = sim::progress::manual};
}

/// Such a machine whose calls cost nothing, and whose work takes its time.
inline sim::machine_options timed_machine() {
  sim::machine_options options = small_machine(64 * mib);
  options.mode = sim::progress::timed;
  options.costs = sim::cost_table::free();
  return options;
}

class memory_fixture : public ::testing::Test {
 protected:
  explicit memory_fixture(sim::machine_options options = {})
      : machine{sim::machine::create(std::move(options)).value()}, cuda{machine->driver()} {
    EXPECT_EQ(cuda.init(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  }

  CUdeviceptr plain(std::size_t size) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda.mem_alloc(&made, size), CUDA_SUCCESS);
    return made;
  }
  void* pinned(std::size_t size, unsigned flags = 0) {
    void* made = nullptr;
    EXPECT_EQ(cuda.mem_host_alloc(&made, size, flags), CUDA_SUCCESS);
    return made;
  }
  CUdeviceptr managed(std::size_t size, unsigned flags = CU_MEM_ATTACH_GLOBAL) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda.mem_alloc_managed(&made, size, flags), CUDA_SUCCESS);
    return made;
  }
  CUstream stream() {
    CUstream made = nullptr;
    EXPECT_EQ(cuda.stream_create(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return made;
  }
  void work(CUstream on, std::vector<sim::access> accesses, std::function<void()> body = {}) {
    EXPECT_TRUE(machine->launch(on, "work", std::move(accesses), std::move(body)).has_value());
  }
  /// Work that touches `accesses`, done; what the stream says afterwards.
  CUresult run(CUstream on, std::vector<sim::access> accesses, std::function<void()> body = {}) {
    work(on, std::move(accesses), std::move(body));
    return cuda.stream_synchronize(on);
  }
  std::size_t used(int device = 0) { return machine->used(device_id{device}).count(); }
  std::vector<hazard_kind> hazards() {
    std::vector<hazard_kind> found;
    for (const auto& each : machine->hazards()) found.push_back(each.kind);
    return found;
  }
  template <class T>
  T attribute(CUpointer_attribute which, CUdeviceptr address) {
    T value{};
    EXPECT_EQ(cuda.pointer_get_attribute(&value, which, address), CUDA_SUCCESS) << which;
    return value;
  }
  CUresult attribute_answer(CUpointer_attribute which, CUdeviceptr address) {
    std::uint64_t value[2] = {};
    return cuda.pointer_get_attribute(value, which, address);
  }

  std::shared_ptr<sim::machine> machine;
  const table& cuda;
  CUcontext context = nullptr;
};

}  // namespace weir::sim_tests

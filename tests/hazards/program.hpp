// SPDX-License-Identifier: Apache-2.0
// A small vocabulary for writing multi-stream programs that the hazard oracle is to judge.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "weir/sim/machine.hpp"

namespace weir::hazards {

using namespace weir::driver;

/// One program on one simulated machine with two devices. Every call is checked: a program that the
/// driver refuses is a broken test, not a race.
class program {
 public:
  explicit program(std::uint64_t seed = 1);

  // --- Objects -----------------------------------------------------------------------------------
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  CUevent event();
  /// Plain device memory.
  CUdeviceptr buffer(std::size_t size = 4096);
  /// Host memory that devices see.
  unsigned char* pinned(std::size_t size = 4096);
  CUdeviceptr managed(std::size_t size = 4096);
  /// A 2 MiB handle mapped at two addresses.
  struct mapped_twice {
    CUdeviceptr first;
    CUdeviceptr second;
    CUmemGenericAllocationHandle handle;
  };
  mapped_twice alias();

  // --- Operations --------------------------------------------------------------------------------
  void write(CUstream on, CUdeviceptr address, std::size_t size = 4096);
  void read(CUstream on, CUdeviceptr address, std::size_t size = 4096);
  void copy(CUstream on, CUdeviceptr to, CUdeviceptr from, std::size_t size = 4096);
  void fill(CUstream on, CUdeviceptr address, std::size_t size = 4096);
  void record(CUevent event, CUstream on);
  void wait(CUstream on, CUevent event);
  /// `second` continues after everything that is in `first` now.
  void join(CUstream first, CUstream second);
  void synchronize(CUstream on);
  void synchronize(CUevent event);
  void synchronize();
  /// Asks until the event is complete.
  void poll(CUevent event);
  void poll(CUstream on);
  CUdeviceptr allocate(CUstream on, std::size_t size = 4096);
  void free(CUstream on, CUdeviceptr address);
  void unmap(CUdeviceptr address);
  void host_read(const void* pointer, std::size_t size = 4096);
  void host_write(void* pointer, std::size_t size = 4096);
  void check(CUresult answer) const { ASSERT_EQ(answer, CUDA_SUCCESS); }

  [[nodiscard]] sim::machine& machine() { return *machine_; }
  [[nodiscard]] const table& cuda() const { return machine_->driver(); }
  /// The hazards that the oracle reported, as text for a failing test.
  [[nodiscard]] std::string describe_hazards() const;

 private:
  std::shared_ptr<sim::machine> machine_;
};

}  // namespace weir::hazards

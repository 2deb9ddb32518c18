// SPDX-License-Identifier: Apache-2.0
// What a contract test works with: the table, a current context, and things that clean themselves
// up.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "support/machine_under_test.hpp"

namespace weir { inline namespace v0 { namespace driver {
/// Lets GoogleTest print a result by name.
void PrintTo(CUresult value, std::ostream* out);
}}}  // namespace weir::v0::driver

namespace weir::testing_support {

using namespace driver;  // NOLINT: the tests speak the driver's own language

using word = std::uint32_t;

inline constexpr std::size_t kib = std::size_t{1} << 10;
inline constexpr std::size_t mib = std::size_t{1} << 20;

/// A machine with its context current on this thread, and what a test made on it. What new_…()
/// hands out lives until clean_up(), which the destructor calls: it waits for the device, undoes
/// everything in reverse order, and makes the context current again should it not be.
class driver_fixture {
 public:
  driver_fixture() = default;
  ~driver_fixture() { clean_up(); }
  driver_fixture(const driver_fixture&) = delete;
  driver_fixture& operator=(const driver_fixture&) = delete;

  void open(std::shared_ptr<machine_under_test> machine);
  void clean_up();
  void defer(std::function<void()> undo) { undo_.push_back(std::move(undo)); }

  [[nodiscard]] CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING);
  [[nodiscard]] CUevent new_event(unsigned flags = CU_EVENT_DISABLE_TIMING);
  [[nodiscard]] CUdeviceptr new_memory(std::size_t bytes);
  [[nodiscard]] CUdeviceptr new_managed(std::size_t bytes);
  [[nodiscard]] word* new_pinned(std::size_t bytes);
  [[nodiscard]] CUmemoryPool new_pool(CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE);
  /// An address range; a physical handle; the two joined, with access for device 0.
  [[nodiscard]] CUdeviceptr new_range(std::size_t bytes);
  [[nodiscard]] CUmemGenericAllocationHandle new_handle(
      std::size_t bytes, CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE);
  [[nodiscard]] CUdeviceptr new_mapping(std::size_t bytes);
  /// Ends the capture of `stream` and keeps the graph until clean_up().
  [[nodiscard]] CUgraph end_capture(CUstream stream);
  [[nodiscard]] CUgraphExec new_exec(CUgraph graph);

  [[nodiscard]] CUmemAllocationProp properties(
      CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE) const;
  [[nodiscard]] CUmemPoolProps pool_properties(
      CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_NONE) const;
  [[nodiscard]] CUmemLocation here() const { return {CU_MEM_LOCATION_TYPE_DEVICE, device}; }
  [[nodiscard]] std::size_t granularity() const;

  // Queue a kernel of kernels.hpp.
  CUresult fill(CUdeviceptr words, word value, std::uint64_t count, CUstream stream);
  CUresult increment(CUdeviceptr words, std::uint64_t count, CUstream stream);
  CUresult copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t count, CUstream stream);
  CUresult check(CUdeviceptr words, word expected, std::uint64_t count, CUdeviceptr mismatches,
                 CUstream stream);
  CUresult spin(std::chrono::nanoseconds time, CUstream stream);
  [[nodiscard]] std::unique_ptr<occupation> occupy(CUstream stream) {
    return machine->occupy(stream);
  }

  /// Whether `stream` comes to rest within a second.
  [[nodiscard]] bool comes_to_rest(CUstream stream);
  /// Whether `stream` is still busy after a while in which unhindered work would have ended.
  [[nodiscard]] bool stays_busy(CUstream stream);

  /// The words as they are once the device has come to rest.
  [[nodiscard]] std::vector<word> words(CUdeviceptr address, std::size_t count);
  /// How many of the words differ from `expected` once the device has come to rest.
  [[nodiscard]] std::size_t mismatches(CUdeviceptr address, word expected, std::size_t count);

  std::shared_ptr<machine_under_test> machine;
  const table* cu = nullptr;
  CUdevice device = 0;
  CUcontext context = nullptr;

 private:
  CUresult launch(CUfunction function, std::uint64_t count, CUstream stream, void** parameters);
  std::vector<std::function<void()>> undo_;
};

}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// The machine that a test runs on: a simulated one or a real GPU, behind one face.
//
// A test binary links exactly one of sim_under_test.cpp and gpu_under_test.cpp; the tests
// themselves cannot tell which.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/driver/table.hpp"
#include "weir/observe/events.hpp"

namespace weir::testing_support {

/// Keeps a stream busy while it lives: what is queued behind it waits. finish() lets it go on, and
/// so does the destructor. On a GPU it ends by itself after a few seconds, so that a test which
/// waits for held work by mistake fails instead of hanging.
class occupation {
 public:
  occupation() = default;
  virtual ~occupation() = default;
  occupation(const occupation&) = delete;
  occupation& operator=(const occupation&) = delete;
  virtual void finish() = 0;
};

/// The test kernels (kernels.hpp) as the machine's functions.
struct kernel_set {
  driver::CUfunction fill = nullptr;
  driver::CUfunction check = nullptr;
  driver::CUfunction increment = nullptr;
  driver::CUfunction copy = nullptr;
  driver::CUfunction spin = nullptr;
  driver::CUfunction hold = nullptr;
};

/// A machine whose first device has its primary context retained for as long as the machine lives,
/// with the test kernels loaded into it. The context is current on the thread that opened it.
class machine_under_test {
 public:
  virtual ~machine_under_test() = default;
  machine_under_test(const machine_under_test&) = delete;
  machine_under_test& operator=(const machine_under_test&) = delete;

  /// The table under test. It counts (call_counter.hpp).
  [[nodiscard]] const driver::table& driver() const noexcept { return *table_; }
  [[nodiscard]] driver::CUdevice device() const noexcept { return device_; }
  [[nodiscard]] driver::CUcontext context() const noexcept { return context_; }
  [[nodiscard]] const kernel_set& kernels() const noexcept { return kernels_; }
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

  /// The stream must be idle.
  [[nodiscard]] virtual std::unique_ptr<occupation> occupy(driver::CUstream stream) = 0;
  /// Descriptions of the hazards that the machine has reported since the last call; none on a GPU.
  [[nodiscard]] virtual std::vector<std::string> take_hazards() = 0;
  /// What an allocator tells of its blocks, so that hazards know them; null on a GPU.
  [[nodiscard]] virtual std::unique_ptr<event_sink> watch_blocks() { return nullptr; }

 protected:
  explicit machine_under_test(std::uint64_t seed) : seed_{seed} {}
  /// Initialises the driver, opens device 0 and loads the kernels.
  result<void> start(const driver::table& real);

 private:
  std::uint64_t seed_;
  const driver::table* table_ = nullptr;
  driver::CUdevice device_ = 0;
  driver::CUcontext context_ = nullptr;
  kernel_set kernels_{};
};

/// The machine for `seed`. A simulated machine is new each time; a GPU is opened once.
[[nodiscard]] result<std::shared_ptr<machine_under_test>> open_machine(std::uint64_t seed);

/// The seeds that every test runs with.
[[nodiscard]] std::vector<std::uint64_t> machine_seeds();

/// Whether tests may be skipped because there is no machine.
[[nodiscard]] bool machine_may_be_absent();

}  // namespace weir::testing_support

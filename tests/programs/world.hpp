// SPDX-License-Identifier: Apache-2.0
// The simulated machine that a mixed program runs on, and the record of what went wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../order/first_failure.hpp"
#include "../order/rng.hpp"
#include "weir/device/device.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::programs_test {

using order_test::first_failure;
using order_test::rng;

inline constexpr std::size_t device_count = 2;

/// A machine with two connected devices, chosen by the seed. Hazards, and errors that weir reports
/// to the error handler, count as failures.
///
/// The driver has host memory of its own, so that host memory can fail for weir alone. One world at
/// a time: the error handler is the process's. The failure and the step log are for any thread.
class world {
 public:
  explicit world(std::uint64_t seed);
  ~world();
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] rng& random() { return random_; }
  [[nodiscard]] sim::machine& machine() { return *machine_; }
  [[nodiscard]] const driver::table& cuda() const { return machine_->driver(); }
  [[nodiscard]] device gpu(std::size_t index) const { return gpus_[index]; }
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  [[nodiscard]] bytes used(std::size_t index) const {
    return machine_->used(device_id{static_cast<int>(index)});
  }
  [[nodiscard]] bytes used_before(std::size_t index) const { return used_before_[index]; }

  [[nodiscard]] const std::shared_ptr<first_failure>& failure() const { return failure_; }
  [[nodiscard]] bool failed() const { return failure_->occurred(); }
  void fail(std::string message) { failure_->report(std::move(message)); }
  bool expect(bool holds, const char* message) {
    if (!holds) fail(message);
    return holds;
  }
  bool expect_ok(driver::CUresult answer, const char* operation) {
    if (answer == driver::CUDA_SUCCESS) return true;
    fail(std::string{operation} + " answered " + std::to_string(answer));
    return false;
  }
  template <class T>
  bool expect_ok(const result<T>& outcome, const char* operation) {
    if (outcome) return true;
    fail(std::string{operation} + ": " + outcome.error().message());
    return false;
  }

  /// Errors that the error handler receives are expected from now on: calls have been made to fail.
  void tolerate_reports() { tolerates_reports_ = true; }
  [[nodiscard]] bool tolerates_reports() const { return tolerates_reports_; }

  /// Adds a line to the log of the last steps.
  void log(std::string step);
  [[nodiscard]] std::string last_steps() const;
  /// The seed, the failure and the last steps; empty if nothing failed.
  [[nodiscard]] std::string outcome() const;

 private:
  std::uint64_t seed_;
  rng random_;
  std::uint64_t capacity_;
  std::shared_ptr<first_failure> failure_ = std::make_shared<first_failure>();
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::vector<device> gpus_;
  std::array<bytes, device_count> used_before_{};
  std::atomic<bool> tolerates_reports_{false};
  mutable std::mutex log_mutex_;
  std::deque<std::string> log_;
  std::uint64_t steps_ = 0;
};

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// What a random program runs on: a small simulated GPU with the oracle on, and an allocator.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "first_failure.hpp"
#include "read_checksum.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::order_test {

/// What a program does about uses on other streams than the one a block was allocated for.
enum class discipline : std::uint8_t {
  /// Before the block is freed each is recorded, or the stream of the free comes after it.
  declared,
  /// Nothing: the block's own stream alone is made to come after them, before it uses the memory
  /// again. Right under an allocator that keeps what a stream freed to that stream.
  undeclared,
};

struct fixture_options {
  order_test::discipline discipline = discipline::declared;
  /// Chosen by the seed unless it is given.
  std::optional<placement_policy> policy{};
  /// No request fails, so that every policy sees the same program.
  bool ample = false;
};

/// A machine and an allocator, both chosen by the seed. Hazards, and errors that are reported to
/// the handler, count as failures. One at a time: the error handler is the process's.
class order_fixture {
 public:
  explicit order_fixture(std::uint64_t seed, fixture_options chosen = {});
  ~order_fixture();
  order_fixture(const order_fixture&) = delete;
  order_fixture& operator=(const order_fixture&) = delete;

  [[nodiscard]] sim::machine& machine() { return *machine_; }
  [[nodiscard]] const driver::table& cuda() { return machine_->driver(); }
  [[nodiscard]] device gpu() const { return *gpu_; }
  [[nodiscard]] caching_allocator& memory() { return *memory_; }
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  [[nodiscard]] const allocator_options& settings() const { return settings_; }
  [[nodiscard]] bool declares_uses() const { return options_.discipline == discipline::declared; }
  [[nodiscard]] bool ample() const { return options_.ample; }
  [[nodiscard]] const std::shared_ptr<first_failure>& failure() const { return failure_; }
  [[nodiscard]] const std::shared_ptr<read_checksum>& checksum() const { return checksum_; }
  [[nodiscard]] std::string describe() const;

  void expect(bool holds, const char* message) {
    if (!holds) failure_->report(message);
  }
  /// False, and a failure, for an error of the operation.
  template <class T>
  bool expect_ok(const result<T>& outcome, const char* operation) {
    if (outcome) return true;
    failure_->report(std::string{operation} + ": " + outcome.error().message());
    return false;
  }
  bool expect_ok(driver::CUresult answer, const char* operation) {
    if (answer == driver::CUDA_SUCCESS) return true;
    failure_->report(std::string{operation} + " answered " + std::to_string(answer));
    return false;
  }

  /// Whether a request may fail here with that code.
  [[nodiscard]] bool may_fail_with(errc code) const {
    return !options_.ample && code == errc::out_of_memory;
  }
  /// The heap's own check of its metadata.
  void check_heap();
  /// requested <= allocated <= active <= reserved, whoever is at work. Returns those.
  memory_stats check_invariants();
  /// All is freed and no graph or pool is left: everything is released, and can be had again.
  void check_end();

 private:
  [[nodiscard]] std::string describe_pools() const;

  const fixture_options options_;
  std::shared_ptr<first_failure> failure_ = std::make_shared<first_failure>();
  std::shared_ptr<read_checksum> checksum_ = std::make_shared<read_checksum>();
  std::uint64_t capacity_;
  allocator_options settings_;
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::optional<device> gpu_;
  bytes used_before_{};
  std::optional<caching_allocator> memory_;
};

}  // namespace weir::order_test

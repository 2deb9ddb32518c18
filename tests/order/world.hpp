// What a random program runs on: a small simulated GPU with the oracle on, and an allocator.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "evidence.hpp"
#include "weir/caching_allocator.hpp"
#include "weir/runtime.hpp"
#include "weir/sim.hpp"

namespace weir::heap {
class allocator_state;
}

namespace weir::order_test {

/// A machine and an allocator, both chosen by the seed. Hazards, and errors that are reported to
/// the handler, become evidence. One at a time: the error handler is the process's.
class world {
 public:
  explicit world(std::uint64_t seed);
  ~world();
  world(const world&) = delete;
  world& operator=(const world&) = delete;

  [[nodiscard]] sim::machine& machine() { return *machine_; }
  [[nodiscard]] const driver::table& cuda() { return machine_->driver(); }
  [[nodiscard]] device gpu() const { return *gpu_; }
  [[nodiscard]] caching_allocator& memory() { return *memory_; }
  [[nodiscard]] heap::allocator_state& inside();
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  [[nodiscard]] const options& settings() const { return settings_; }
  [[nodiscard]] const std::shared_ptr<evidence>& faults() const { return faults_; }
  [[nodiscard]] std::string describe() const;

  void expect(bool holds, const char* what) {
    if (!holds) faults_->report(what);
  }
  /// False, and evidence, for an error.
  template <class T>
  bool done(const result<T>& outcome, const char* what) {
    if (outcome) return true;
    faults_->report(std::string{what} + ": " + outcome.error().message());
    return false;
  }
  bool done(driver::CUresult answer, const char* what) {
    if (answer == driver::CUDA_SUCCESS) return true;
    faults_->report(std::string{what} + " answered " + std::to_string(answer));
    return false;
  }

  /// requested <= allocated <= active <= reserved, whoever is at work.
  void check_invariants();
  /// All is freed and no graph or pool is left: everything goes back, and is there to be had.
  void check_end();

  /// A tag has a limit: requests may fail at it.
  std::atomic<bool> tags_limited{false};

 private:
  [[nodiscard]] std::string picture() const;

  std::shared_ptr<evidence> faults_ = std::make_shared<evidence>();
  std::uint64_t capacity_;
  options settings_;
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::optional<device> gpu_;
  bytes used_before_{};
  std::optional<caching_allocator> memory_;
};

}  // namespace weir::order_test

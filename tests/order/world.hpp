// What a random program runs on: a small simulated GPU with the oracle on, and an allocator.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "evidence.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::heap {
class allocator_state;
}

namespace weir::order_test {

/// What a program does about uses on other streams than the one a block was allocated for.
enum class discipline : std::uint8_t {
  /// Before the block is freed each is recorded, or the stream of the free comes after it.
  declared,
  /// Nothing: the block's own stream alone is made to come after them, before it uses the memory
  /// again. Right under an allocator that keeps what a stream freed to that stream.
  native,
};

struct world_options {
  order_test::discipline discipline = discipline::declared;
  /// Chosen by the seed unless it is given.
  std::optional<placement_policy> policy{};
  /// No request fails, so that every policy sees the same program.
  bool ample = false;
};

/// A machine and an allocator, both chosen by the seed. Hazards, and errors that are reported to
/// the handler, become evidence. One at a time: the error handler is the process's.
class world {
 public:
  explicit world(std::uint64_t seed, world_options wanted = {});
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
  [[nodiscard]] bool declares_uses() const { return wanted_.discipline == discipline::declared; }
  [[nodiscard]] bool ample() const { return wanted_.ample; }
  [[nodiscard]] const std::shared_ptr<evidence>& faults() const { return faults_; }
  [[nodiscard]] const std::shared_ptr<readings>& contents() const { return contents_; }
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

  /// Whether that is an answer a request may get here.
  [[nodiscard]] bool may_fail(const result<void*>& refused) const {
    const bool limited = refused.code() == errc::limit_exceeded && tags_limited;
    return !wanted_.ample && (refused.code() == errc::out_of_memory || limited);
  }
  /// requested <= allocated <= active <= reserved, whoever is at work.
  void check_invariants();
  /// All is freed and no graph or pool is left: everything goes back, and is there to be had.
  void check_end();

  /// A tag has a limit: requests may fail at it.
  std::atomic<bool> tags_limited{false};

 private:
  [[nodiscard]] std::string picture() const;

  const world_options wanted_;
  std::shared_ptr<evidence> faults_ = std::make_shared<evidence>();
  std::shared_ptr<readings> contents_ = std::make_shared<readings>();
  std::uint64_t capacity_;
  options settings_;
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::optional<device> gpu_;
  bytes used_before_{};
  std::optional<caching_allocator> memory_;
};

}  // namespace weir::order_test

// What is kept of a program: its first fault, and what its kernels have read.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace weir::order_test {

/// Keeps the first fault, whoever finds it: the oracle, a kernel, the error handler, a check. Any
/// thread; found() costs a load.
class evidence {
 public:
  void report(std::string fault) {
    const std::lock_guard lock{mutex_};
    if (!found_.exchange(true)) first_ = std::move(fault);
  }
  [[nodiscard]] bool found() const noexcept { return found_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::string first() const {
    const std::lock_guard lock{mutex_};
    return first_;
  }

 private:
  std::atomic<bool> found_{false};
  mutable std::mutex mutex_;
  std::string first_;
};

/// All that kernels have read, as one number that does not depend on their order. Any thread.
class readings {
 public:
  /// The reader `which`, a number that no other one has, has read `content`.
  void add(std::uint64_t which, std::uint64_t content) noexcept {
    std::uint64_t mixed = which * 0x9e3779b97f4a7c15ULL ^ content;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    sum_.fetch_add(mixed ^ (mixed >> 27), std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t sum() const noexcept { return sum_; }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }

 private:
  std::atomic<std::uint64_t> sum_{0};
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace weir::order_test

// The first fault of a program, whoever finds it: the oracle, a kernel, the error handler, a check.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

namespace weir::order_test {

/// Keeps the first fault. Any thread; found() costs a load.
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

}  // namespace weir::order_test

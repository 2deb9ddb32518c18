// SPDX-License-Identifier: Apache-2.0
// What went wrong first in a program whose checks run on several threads.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

namespace weir::order_test {

/// Keeps the first failure, whoever reports it: the oracle, a kernel, the error handler, a check.
/// Any thread; occurred() costs a load.
class first_failure {
 public:
  void report(std::string message) {
    const std::lock_guard lock{mutex_};
    if (!occurred_.exchange(true)) message_ = std::move(message);
  }
  [[nodiscard]] bool occurred() const noexcept { return occurred_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::string message() const {
    const std::lock_guard lock{mutex_};
    return message_;
  }

 private:
  std::atomic<bool> occurred_{false};
  mutable std::mutex mutex_;
  std::string message_;
};

}  // namespace weir::order_test

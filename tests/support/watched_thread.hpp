// SPDX-License-Identifier: Apache-2.0
// A thread of a test, and whether it sleeps.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "support/this_process.hpp"

namespace weir::testing_support {

/// Does one thing on a thread of its own. Joined at the end of the scope, if not before.
class watched_thread {
 public:
  explicit watched_thread(std::function<void()> act)
      : thread_{[this, act = std::move(act)] {
          number_ = ::gettid();
          act();
          over_ = true;
        }} {}
  ~watched_thread() { join(); }
  watched_thread(const watched_thread&) = delete;
  watched_thread& operator=(const watched_thread&) = delete;

  [[nodiscard]] bool is_over() const noexcept { return over_; }
  /// Returns once the thread waits for somebody. False: it is over.
  [[nodiscard]] bool falls_asleep() const {
    while (!over_)
      if (number_ != 0 && is_asleep(number_)) return !over_;
    return false;
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<pid_t> number_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace weir::testing_support

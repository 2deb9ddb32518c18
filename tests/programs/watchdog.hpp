// SPDX-License-Identifier: Apache-2.0
// A watchdog that ends the process with a message when a program hangs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace weir::programs_test {

/// Prints `message` and aborts unless it is destroyed in time.
class watchdog {
 public:
  watchdog(std::chrono::seconds patience, std::function<std::string()> message)
      : thread_{[this, patience, message = std::move(message)] {
          std::unique_lock lock{mutex_};
          if (changed_.wait_for(lock, patience, [this] { return done_; })) return;
          std::fprintf(stderr, "HANG: %s\n", message().c_str());
          std::abort();
        }} {}
  ~watchdog() {
    {
      const std::lock_guard lock{mutex_};
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace weir::programs_test

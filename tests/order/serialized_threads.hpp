// SPDX-License-Identifier: Apache-2.0
// Threads of which one runs at a time: real ones, with their own thread-local state, in a
// repeatable order.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weir::order_test {

/// Runs each task on the thread it is meant for and waits for its end. One caller at a time.
class serialized_threads {
 public:
  explicit serialized_threads(std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) workers_.push_back(std::make_unique<worker>());
  }
  [[nodiscard]] std::size_t size() const { return workers_.size(); }
  void run(std::size_t index, std::function<void()> task) { workers_[index]->run(std::move(task)); }
  /// Ends the thread; another takes its place.
  void replace(std::size_t index) {
    workers_[index].reset();
    workers_[index] = std::make_unique<worker>();
  }

 private:
  class worker {
   public:
    worker() : thread_{[this] { work(); }} {}
    ~worker() {
      {
        const std::lock_guard lock{mutex_};
        stopping_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }
    worker(const worker&) = delete;
    worker& operator=(const worker&) = delete;

    void run(std::function<void()> task) {
      std::unique_lock lock{mutex_};
      task_ = std::move(task);
      changed_.notify_all();
      changed_.wait(lock, [&] { return !task_; });
    }

   private:
    void work() {
      std::unique_lock lock{mutex_};
      for (;;) {
        changed_.wait(lock, [&] { return task_ || stopping_; });
        if (!task_) return;
        task_();
        task_ = nullptr;
        changed_.notify_all();
      }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> task_;
    bool stopping_ = false;
    std::thread thread_;  // last: it uses the others
  };

  std::vector<std::unique_ptr<worker>> workers_;
};

}  // namespace weir::order_test

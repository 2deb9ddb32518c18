// Threads that take turns: real ones, with all they have of their own, in a repeatable order.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weir::order_test {

/// Runs what it is given on the thread it is given for, one at a time, and waits for it.
class crew {
 public:
  explicit crew(std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) members_.push_back(std::make_unique<member>());
  }
  [[nodiscard]] std::size_t size() const { return members_.size(); }
  void run(std::size_t which, std::function<void()> task) { members_[which]->run(std::move(task)); }
  /// Ends the thread; another takes its place.
  void replace(std::size_t which) {
    members_[which].reset();
    members_[which] = std::make_unique<member>();
  }

 private:
  class member {
   public:
    member() : thread_{[this] { work(); }} {}
    ~member() {
      {
        const std::lock_guard lock{mutex_};
        over_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }
    member(const member&) = delete;
    member& operator=(const member&) = delete;

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
        changed_.wait(lock, [&] { return task_ || over_; });
        if (!task_) return;
        task_();
        task_ = nullptr;
        changed_.notify_all();
      }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> task_;
    bool over_ = false;
    std::thread thread_;  // last: it uses the others
  };

  std::vector<std::unique_ptr<member>> members_;
};

}  // namespace weir::order_test

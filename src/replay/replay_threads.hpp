// SPDX-License-Identifier: Apache-2.0
// The threads of a recording, which get their turns one after the other.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weir { inline namespace v0 { namespace replay {

/// Keeps one thread for each thread of a recording, so that an allocator's per-thread state is as
/// it was in the program. Only one works at a time: the order of requests is the recording's, or no
/// two replays would compare. Owned and called by one thread.
class replay_threads {
 public:
  /// With up to one thread, or more than 64, the caller's thread does all the work.
  explicit replay_threads(std::size_t count);
  ~replay_threads();
  replay_threads(const replay_threads&) = delete;
  replay_threads& operator=(const replay_threads&) = delete;

  /// Runs `work` on thread `index` and waits for it. What it throws is thrown here.
  void run(std::size_t index, const std::function<void()>& work);
  [[nodiscard]] bool is_single() const noexcept { return workers_.empty(); }

 private:
  struct worker {
    std::thread thread;
    std::condition_variable turn;
    const std::function<void()>* work = nullptr;
    bool stopping = false;
  };
  void serve(worker& self);

  std::mutex mutex_;
  std::condition_variable done_;
  std::exception_ptr exception_;
  std::vector<std::unique_ptr<worker>> workers_;
};

}}}  // namespace weir::v0::replay

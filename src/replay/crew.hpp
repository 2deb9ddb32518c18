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

namespace weir::inline v0::replay {

/// Keeps one thread for each thread of a recording, so that what an allocator keeps for a thread is
/// kept as it was for the program. Only one works at a time: the order of requests is the
/// recording's, or no two replays would compare. Owned and called by one thread.
class crew {
 public:
  /// With up to one member, or more than 64, the caller's thread does all the work.
  explicit crew(std::size_t members);
  ~crew();
  crew(const crew&) = delete;
  crew& operator=(const crew&) = delete;

  /// Runs `work` on thread `member` and waits for it. What it throws is thrown here.
  void run(std::size_t member, const std::function<void()>& work);
  [[nodiscard]] bool alone() const noexcept { return members_.empty(); }

 private:
  struct member {
    std::thread thread;
    std::condition_variable turn;
    const std::function<void()>* work = nullptr;
    bool over = false;
  };
  void live(member& self);

  std::mutex mutex_;
  std::condition_variable done_;
  std::exception_ptr failed_;
  std::vector<std::unique_ptr<member>> members_;
};

}  // namespace weir::inline v0::replay

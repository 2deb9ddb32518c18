// SPDX-License-Identifier: Apache-2.0
// Turns: one condition variable a thread, one mutex for all.
#include "replay/replay_threads.hpp"

#include <utility>

namespace weir { inline namespace v0 { namespace replay {

namespace {
constexpr std::size_t most_threads = 64;
}

replay_threads::replay_threads(std::size_t count) {
  if (count < 2 || count > most_threads) return;
  for (std::size_t i = 0; i < count; ++i) {
    workers_.push_back(std::make_unique<worker>());
    worker& self = *workers_.back();
    self.thread = std::thread{[this, &self] { serve(self); }};
  }
}

replay_threads::~replay_threads() {
  for (const auto& each : workers_) {
    {
      const std::scoped_lock lock{mutex_};
      each->stopping = true;
    }
    each->turn.notify_one();
    each->thread.join();
  }
}

void replay_threads::run(std::size_t index, const std::function<void()>& work) {
  if (is_single()) {
    work();
    return;
  }
  worker& chosen = *workers_[index];
  std::unique_lock lock{mutex_};
  chosen.work = &work;
  chosen.turn.notify_one();
  done_.wait(lock, [&] { return chosen.work == nullptr; });
  if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
}

void replay_threads::serve(worker& self) {
  std::unique_lock lock{mutex_};
  while (true) {
    self.turn.wait(lock, [&] { return self.work != nullptr || self.stopping; });
    if (self.work == nullptr) return;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      (*self.work)();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    exception_ = thrown;
    self.work = nullptr;
    done_.notify_one();
  }
}

}}}  // namespace weir::v0::replay

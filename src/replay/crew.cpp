// Turns: one condition variable a thread, one mutex for all.
#include "replay/crew.hpp"

#include <utility>

namespace weir::inline v0::replay {

namespace {
constexpr std::size_t most_members = 64;
}

crew::crew(std::size_t members) {
  if (members < 2 || members > most_members) return;
  for (std::size_t i = 0; i < members; ++i) {
    members_.push_back(std::make_unique<member>());
    member& self = *members_.back();
    self.thread = std::thread{[this, &self] { live(self); }};
  }
}

crew::~crew() {
  for (const auto& each : members_) {
    {
      const std::scoped_lock held{mutex_};
      each->over = true;
    }
    each->turn.notify_one();
    each->thread.join();
  }
}

void crew::run(std::size_t which, const std::function<void()>& work) {
  if (alone()) {
    work();
    return;
  }
  member& chosen = *members_[which];
  std::unique_lock held{mutex_};
  chosen.work = &work;
  chosen.turn.notify_one();
  done_.wait(held, [&] { return chosen.work == nullptr; });
  if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
}

void crew::live(member& self) {
  std::unique_lock held{mutex_};
  while (true) {
    self.turn.wait(held, [&] { return self.work != nullptr || self.over; });
    if (self.work == nullptr) return;
    held.unlock();
    std::exception_ptr thrown;
    try {
      (*self.work)();
    } catch (...) {
      thrown = std::current_exception();
    }
    held.lock();
    failed_ = thrown;
    self.work = nullptr;
    done_.notify_one();
  }
}

}  // namespace weir::inline v0::replay

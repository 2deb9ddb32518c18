// A lock that is waited for on the spot, because it is held briefly.
#pragma once

#include <mutex>

namespace weir::inline v0::heap {

/// The heap's lock for who needs it for some hundred nanoseconds, as those do that hold it mostly:
/// going to sleep over it, and being woken, would take ten times as long as it does.
class brief_lock {
 public:
  explicit brief_lock(std::mutex& which) noexcept : lock_{which, std::try_to_lock} {
    for (int tries = 0; tries < 100 && !lock_.owns_lock(); ++tries) {
      pause();
      static_cast<void>(lock_.try_lock());
    }
    if (!lock_.owns_lock()) lock_.lock();
  }

 private:
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // tens of cycles, where `yield` is none
#endif
  }
  std::unique_lock<std::mutex> lock_;
};

}  // namespace weir::inline v0::heap

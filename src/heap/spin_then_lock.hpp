// SPDX-License-Identifier: Apache-2.0
// A lock that is waited for on the spot, because it is held briefly.
#pragma once

#include "base/mutex.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The heap's lock for who needs it for some hundred nanoseconds, as those do that hold it mostly:
/// going to sleep over it, and being woken, would take ten times as long as it does.
class WEIR_THREAD_SAFETY(scoped_lockable) spin_then_lock {
 public:
  [[nodiscard]] explicit spin_then_lock(detail::mutex& mutex) noexcept
      WEIR_THREAD_SAFETY(acquire_capability(mutex))
      : mutex_{mutex} {
    acquire();
  }
  ~spin_then_lock() WEIR_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  spin_then_lock(const spin_then_lock&) = delete;
  spin_then_lock& operator=(const spin_then_lock&) = delete;

 private:
  /// Unchecked: that a try in a loop ends with the lock is beyond the analysis.
  void acquire() noexcept WEIR_UNCHECKED_LOCKING {
    for (int tries = 0; tries <= 100; ++tries) {
      if (mutex_.try_lock()) return;
      pause();
    }
    mutex_.lock();
  }
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // tens of cycles, where `yield` is none
#endif
  }

  detail::mutex& mutex_;
};

}}}  // namespace weir::v0::heap

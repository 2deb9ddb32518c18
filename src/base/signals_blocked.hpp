// SPDX-License-Identifier: Apache-2.0
// A scope in which the calling thread takes no signals, and the threads that it starts never do.
#pragma once

#include <csignal>
#include <ctime>

namespace weir { inline namespace v0 { namespace detail {

/// Blocks the signals that come from outside on this thread, to its end.
///
/// A thread inherits what is blocked: weir's own never run a program's handlers, and never take a
/// signal that the program waits for on threads where it is blocked. Signals of faults are left as
/// they are. SIGXFSZ of a write in the scope is dropped, because the write returned EFBIG.
class signals_blocked {
 public:
  signals_blocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&blocked, fault);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~signals_blocked() {
    if (sigismember(&before_, SIGXFSZ) == 0) {
      sigset_t file_size;
      sigemptyset(&file_size);
      sigaddset(&file_size, SIGXFSZ);
      const timespec no_time{};
      static_cast<void>(sigtimedwait(&file_size, nullptr, &no_time));
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  signals_blocked(const signals_blocked&) = delete;
  signals_blocked& operator=(const signals_blocked&) = delete;

 private:
  sigset_t before_;
};

}}}  // namespace weir::v0::detail

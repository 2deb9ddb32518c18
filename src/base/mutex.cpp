// SPDX-License-Identifier: Apache-2.0
// Sleeping over a mutex that another thread holds.
#include "base/mutex.hpp"

#if !WEIR_MUTEX_IS_NATIVE
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weir { inline namespace v0 { namespace detail {

void mutex::wait() noexcept {
  // Whoever comes here leaves `contended` behind: it cannot know whether others sleep.
  while (state_.exchange(contended, std::memory_order_acquire) != unlocked)
    ::syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, contended, nullptr, nullptr, 0);
}

void mutex::wake() noexcept {
  ::syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}}}  // namespace weir::v0::detail
#endif

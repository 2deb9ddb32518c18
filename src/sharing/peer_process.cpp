// SPDX-License-Identifier: Apache-2.0
// Looking a process up, and waiting for its end.
#include "sharing/peer_process.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace weir { inline namespace v0 { namespace sharing {

peer_process::peer_process(descriptor pidfd, pid_t number) noexcept : pidfd_{std::move(pidfd)} {
  if (pidfd_ || number <= 0) return;
  pidfd_ = descriptor{static_cast<int>(::syscall(SYS_pidfd_open, number, 0U))};
  was_gone_ = !pidfd_ && errno == ESRCH;
}

bool peer_process::has_exited(std::chrono::milliseconds limit) const noexcept {
  if (!pidfd_) return was_gone_;
  pollfd polled{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, static_cast<int>(limit.count())) > 0 && (polled.revents & POLLIN) != 0;
}

}}}  // namespace weir::v0::sharing

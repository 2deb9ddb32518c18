// SPDX-License-Identifier: Apache-2.0
// The process at the other end of a connection, and whether it has ended.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace sharing {

/// Watches a process through its pidfd, also while others hold its sockets open. Any thread.
class peer_process {
 public:
  peer_process() noexcept = default;
  /// `pidfd` is the one that the kernel sent with a message. Without it the process is looked up by
  /// its number, which is 0 where it belongs to another PID namespace: then nothing is known of it.
  peer_process(descriptor pidfd, pid_t number) noexcept;

  /// False where the kernel cannot tell.
  [[nodiscard]] bool has_exited(std::chrono::milliseconds limit) const noexcept;
  /// Readable once the process has ended; -1: nothing tells of its end.
  [[nodiscard]] int get() const noexcept { return pidfd_.get(); }

 private:
  descriptor pidfd_;
  bool was_gone_ = false;  // before it could be watched
};

}}}  // namespace weir::v0::sharing

// SPDX-License-Identifier: Apache-2.0
// membarrier where the kernel has it, fences on both sides where not.
#include "heap/asymmetric_barrier.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weir { inline namespace v0 { namespace heap {

constinit bool asymmetric_barrier::expedited_ = false;
constinit bool asymmetric_barrier::refused_ = false;

void asymmetric_barrier::prepare() noexcept {
  static const bool registered =
      !refused_ && ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  // Written once: whoever comes later finds the static made, and the value there.
  static const bool set = (expedited_ = registered, true);
  static_cast<void>(set);
}

void asymmetric_barrier::heavy() noexcept {
  // A registered process is never refused; if it were, a fence on this side alone would not do, so
  // the kernel is asked until it answers.
  while (expedited_ && ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) {
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}}}  // namespace weir::v0::heap

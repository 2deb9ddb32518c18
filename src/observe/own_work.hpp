// SPDX-License-Identifier: Apache-2.0
// Work on memory that is an allocator's own doing, and not its users'.
#pragma once

#include <cstdint>

namespace weir { inline namespace v0 { namespace observe {

/// A byte: thread-local storage is scarce (tests/package/check_library.py).
extern constinit thread_local std::uint8_t own_work_depth;

/// While one lives, the work that this thread queues is an allocator's own: it may touch bytes that
/// were not handed out, such as what lies between two blocks that are copied in one go. Whoever
/// judges uses of memory asks is_own_work(). Stays on its thread and in its block; costs a count.
class own_work_scope {
 public:
  own_work_scope() noexcept { ++own_work_depth; }
  ~own_work_scope() { --own_work_depth; }
  own_work_scope(const own_work_scope&) = delete;
  own_work_scope& operator=(const own_work_scope&) = delete;
};

[[nodiscard]] inline bool is_own_work() noexcept { return own_work_depth != 0; }

}}}  // namespace weir::v0::observe

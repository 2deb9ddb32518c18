// SPDX-License-Identifier: Apache-2.0
// What the C ABI keeps for each thread, apart from the library's thread-local storage.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "capi/handles.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// One thread's; created when it is first needed, destroyed with the thread.
///
/// Not thread-local itself: a library with much thread-local storage cannot be loaded into a
/// running program (tests/package/check_library.py).
struct thread_locals {
  static constexpr std::size_t most_named = 64;

  std::array<char, 1024> message{};
  std::array<std::optional<stream_ref>, most_named> named_streams{};  // by device
  std::vector<std::unique_ptr<pool_scope>> entered;                   // left in the opposite order
  table::reader* reader = nullptr;                                    // goes to the next thread

  thread_locals() = default;
  ~thread_locals();
  thread_locals(const thread_locals&) = delete;
  thread_locals& operator=(const thread_locals&) = delete;
};

/// Null where the host has no memory, or the process no pthread key.
[[nodiscard]] thread_locals* own_thread_locals() noexcept;
/// Null if the thread has none yet.
[[nodiscard]] thread_locals* existing_thread_locals() noexcept;

}}}  // namespace weir::v0::capi

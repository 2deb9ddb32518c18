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

namespace weir::inline v0::capi {

/// A thread's own; made when it is first needed, gone with the thread.
///
/// Not thread-local itself: a library with much thread-local storage cannot be loaded into a
/// running program (tests/package/check_library.py).
struct thread_room {
  static constexpr std::size_t most_named = 64;

  std::array<char, 1024> message{};
  std::array<std::optional<stream_ref>, most_named> named_streams{};  // by device
  std::vector<std::unique_ptr<pool_scope>> entered;                   // left in the opposite order
  table::reader* reader = nullptr;                                    // goes to the next thread

  thread_room() = default;
  ~thread_room();
  thread_room(const thread_room&) = delete;
  thread_room& operator=(const thread_room&) = delete;
};

/// Null where the host has no memory.
[[nodiscard]] thread_room* own_room() noexcept;
/// Null if the thread has none yet.
[[nodiscard]] thread_room* own_room_if_any() noexcept;

}  // namespace weir::inline v0::capi

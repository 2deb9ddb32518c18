// SPDX-License-Identifier: Apache-2.0
// What stands behind a weir_buffer, whichever function created it.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "capi/objects.hpp"
#include "device/state.hpp"
#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/host_memory.hpp"
#include "weir/buffer/unified_buffer.hpp"
#include "weir/pool/pooled_buffer.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// Memory of one of four kinds, with an owner. Each is one thread's at a time, hence the lock.
struct buffer_object {
  using managed = weir::detail::managed_block;
  using pinned = weir::detail::mapped_block;

  /// Locks the mutex. closed: another call closed the buffer after this one found its handle;
  /// driver_gone: in a forked child, where a thread of the parent may hold it for ever.
  [[nodiscard]] result<std::unique_lock<std::mutex>> lock_open() {
    WEIR_TRY_VALUE(first, machine->device(device_id{0}));
    if (weir::detail::device_state::of(first).forked()) return weir::detail::fork_error();
    std::unique_lock lock{mutex};
    if (is_closed) return error{{.code = errc::closed, .detail = "the buffer is closed"}};
    return lock;
  }

  std::shared_ptr<runtime> machine;
  std::mutex mutex;                       // of the following
  bool is_closed = false;                 // the memory is freed, or was tried to be
  std::shared_ptr<stream_object> stream;  // the one a device_buffer is freed on, if it has a handle
  std::variant<device_buffer, managed, pinned, pooled_memory> memory;
  std::vector<weir::detail::view_hold> views;  // of managed memory: the host has it
};
WEIR_HANDLE_KIND(buffer)

/// A buffer of the kind that the call is for, locked.
template <class Kind>
struct buffer_argument {
  std::shared_ptr<buffer_object> object;
  std::unique_lock<std::mutex> lock;
  Kind* memory;
};

/// `otherwise`: it is of another kind.
template <class Kind>
[[nodiscard]] result<buffer_argument<Kind>> find_buffer(weir_buffer* handle, error otherwise) {
  WEIR_TRY_VALUE(object, find(handle));
  WEIR_TRY_VALUE(lock, object->lock_open());
  Kind* const memory = std::get_if<Kind>(&object->memory);
  if (memory == nullptr) return otherwise;
  return buffer_argument<Kind>{object, std::move(lock), memory};
}

template <class Kind>
[[nodiscard]] result<void> hand_out_buffer(std::shared_ptr<runtime> machine,
                                           std::shared_ptr<stream_object> stream, Kind memory,
                                           weir_buffer** into) {
  auto object = std::make_shared<buffer_object>();
  object->machine = std::move(machine);
  object->stream = std::move(stream);
  object->memory = std::move(memory);
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_buffer>(std::move(object)));
  *into = handle;
  return {};
}

/// What is in new memory, of `flags` that may say weir_buffer_zeroed.
[[nodiscard]] inline result<contents> contents_from(std::uint32_t flags) {
  WEIR_TRY(check_flags(flags, weir_buffer_zeroed));
  return (flags & weir_buffer_zeroed) != 0 ? contents::zeroed : contents::undefined;
}

}}}  // namespace weir::v0::capi

// SPDX-License-Identifier: Apache-2.0
// What the hooks of other programs have in common: the process's allocators, with raw streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "capi/defaults.hpp"
#include "weir.h"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// The stream of a request: a raw one, or the one that weir_plugin_set_stream() named.
struct plugin_stream {
  void* native = nullptr;
  bool named_by_thread = false;

  [[nodiscard]] stream_ref on(const allocator_object& home) const noexcept;
};

/// Null on failure; the thread's last error says why.
[[nodiscard]] void* plugin_allocate(std::int32_t device, std::size_t size, plugin_stream stream);
/// Throws out_of_memory, with a report, or failure.
[[nodiscard]] void* plugin_allocate_or_throw(std::int32_t device, std::size_t size,
                                             plugin_stream stream);
/// To whichever of the process's allocators it is of, most likely that of `device`, on the stream
/// it was allocated for.
void plugin_free(void* pointer, std::int32_t device) noexcept;
/// Reports a failure to the error handler, unless the driver is gone.
void report_unless_gone(const result<void>& outcome) noexcept;

/// The device of the calling thread's context; 0 where it has none, and before the process's
/// runtime is open.
[[nodiscard]] std::int32_t plugin_current_device() noexcept;
/// The same for a request, which opens the runtime. Where that fails the request says so.
[[nodiscard]] std::int32_t plugin_requested_device() noexcept;
/// Empties the caches of all the process's allocators.
void plugin_empty_caches() noexcept;
/// Calls `action(default_allocator)` for each of those, that of `first` first, until it returns
/// true.
template <class Action>
bool any_default_allocator(std::int32_t first, const Action& action) {
  const std::int32_t count = default_device_count();
  const default_allocator likely = existing_allocator_of(first);
  if (likely.object != nullptr && action(likely)) return true;
  for (std::int32_t number = 0; number < count; ++number) {
    const default_allocator each = existing_allocator_of(number);
    if (number != first && each.object != nullptr && action(each)) return true;
  }
  return false;
}

/// The outcome of `action(default_allocator)` for the one that knows the pointer, most likely that
/// of `first`: who does not says foreign_pointer, and the next is asked.
template <class Action>
[[nodiscard]] result<void> ask_owner(std::int32_t first, const Action& action) {
  result<void> outcome =
      error{{.code = errc::foreign_pointer,
             .detail = "the pointer belongs to none of the process's default allocators"}};
  any_default_allocator(first, [&](const default_allocator& each) {
    result<void> answer = action(each);
    const bool is_owner = answer || answer.code() != errc::foreign_pointer;
    if (is_owner) outcome = std::move(answer);
    return is_owner;
  });
  return outcome;
}

}}}  // namespace weir::v0::capi

// SPDX-License-Identifier: Apache-2.0
// Devices that the host must leave alone with managed memory while they work.
#pragma once

#include <optional>

#include "device/state.hpp"
#include "pools/stream_uses.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace buffers {

// While a device without concurrent managed access works, the host must not touch global managed
// memory, whatever device it was made for. And while the host has a view of any, nothing may be
// queued on such a device, whatever it uses. So views count for all such devices of a runtime, and
// for all buffers. Memory that is attached to one stream is another matter: the host may touch it
// while that stream is idle.

/// Whether the runtime has such a device.
[[nodiscard]] bool has_exclusive_device(const detail::device_state& of);
/// Adds all work of such devices, as far as they have a context.
void add_exclusive_devices(const detail::device_state& of, pools::awaited_work& work);

/// What must stay idle while a view lives: a stream, or all such devices.
struct idle_part {
  std::optional<stream_ref> stream{};
  friend bool operator==(const idle_part&, const idle_part&) = default;
};

/// A view begins or ends. Any thread. Throws std::bad_alloc.
void begin_exclusive_view(const detail::device_state& of, const idle_part& part);
void end_exclusive_view(const detail::device_state& of, const idle_part& part) noexcept;
/// Whether one in the runtime of the device keeps work from the stream.
[[nodiscard]] bool any_exclusive_view(const detail::device_state& of, const stream_ref& stream);

}}}  // namespace weir::v0::buffers

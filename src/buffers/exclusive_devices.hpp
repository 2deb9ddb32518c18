// Devices that the host must leave alone with managed memory while they work.
#pragma once

#include "buffers/stream_uses.hpp"
#include "device/state.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace buffers {

// While a device without concurrent managed access works, the host must not touch global managed
// memory, whatever device it was made for. And while the host has a view of any, nothing may be
// queued on such a device, whatever it uses. So views count for all such devices of a runtime, and
// for all buffers.

/// Whether the runtime has such a device.
[[nodiscard]] bool has_exclusive_device(const detail::device_state& of);
/// Adds all work of such devices, as far as they have a context.
void add_exclusive_devices(const detail::device_state& of, awaited_work& work);

/// A view of global memory begins or ends. Any thread. Throws std::bad_alloc.
void begin_exclusive_view(const detail::device_state& of);
void end_exclusive_view(const detail::device_state& of) noexcept;
/// Whether there is one in the runtime of the device.
[[nodiscard]] bool any_exclusive_view(const detail::device_state& of);

}}}  // namespace weir::v0::buffers

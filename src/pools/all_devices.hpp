// SPDX-License-Identifier: Apache-2.0
// Waiting for work of whatever device.
#pragma once

#include "device/state.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// Waits for all work of the other devices of the runtime, as far as they have a context. For
/// memory of `home` that nobody has freed: nobody has said which devices use it. An error: nothing
/// is known about the work. A device that is lost does none.
[[nodiscard]] result<void> wait_for_other_devices(detail::device_state& home);

/// Tells that memory stays allocated, because a wait for the work that may use it failed so.
[[nodiscard]] error kept_memory(error reason, bytes kept) noexcept;

}}}  // namespace weir::v0::pools

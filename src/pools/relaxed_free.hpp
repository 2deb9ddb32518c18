// SPDX-License-Identifier: Apache-2.0
// Freeing memory without breaking a capture.
#pragma once

#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// Calls it while the thread's capture mode is relaxed. Tried twice: whoever gives up loses the
/// memory.
template <class Free>
[[nodiscard]] result<void> free_relaxed(weir::device device, const Free& free) noexcept {
  for (const bool is_last : {false, true}) {
    const thread_capture_mode_guard relaxed{device};
    if (relaxed) return free();
    if (is_last) return relaxed.error();
  }
  return errc::internal;
}

}}}  // namespace weir::v0::pools

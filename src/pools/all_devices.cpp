// SPDX-License-Identifier: Apache-2.0
// One wait for each device.
#include "pools/all_devices.hpp"

#include <new>

#include "device/finished_work.hpp"
#include "weir/device/runtime.hpp"

namespace weir { inline namespace v0 { namespace pools {

result<void> wait_for_other_devices(detail::device_state& home) {
  for (int number = 0; number < home.owner->device_count(); ++number) {
    WEIR_TRY_VALUE(other, home.owner->device(device_id{number}));
    auto& state = detail::device_state::of(other);
    if (&state == &home || state.context.load(std::memory_order_acquire) == nullptr) continue;
    const context_scope there{other};
    auto done = detail::wait_for_all_work(there);
    if (!done && !detail::does_no_work(done.error())) return done;
  }
  return {};
}

error kept_memory(error reason, bytes kept) noexcept {
  reason.set_requested(kept);
  try {
    reason.set_detail(to_string(kept) +
                      " stay allocated, because work that may use them could not be waited for" +
                      (reason.detail().empty() ? "" : ": " + reason.detail()));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return reason;
}

}}}  // namespace weir::v0::pools

// How far streams have come, and what that makes of the blocks they freed.
#include <algorithm>

#include "pools/block_cache.hpp"

namespace weir::inline v0::pools {

using order::nobody;

void block_cache::retire() {
  for (block* each = pending_.front; each != nullptr;) {
    block& what = *each;
    each = what.after;
    if (!std::all_of(what.others.begin(), what.others.end(),
                     [&](const stamp& other) { return order_.passed(other); }))
      continue;
    kept_.prepare(what.size, what.freed_on);
    pending_.remove(what);
    books_.pending -= what.size;
    what.others.clear();
    what.state = block_state::kept;
    kept_.put(what);
  }
  kept_.retire(order_);
}

result<block*> block_cache::look_for_kept(const request& wanted, driver_access& driver) {
  if (!kept_.any_bound(wanted.rounded) && pending_.empty()) return static_cast<block*>(nullptr);
  WEIR_TRY(driver.entered());
  // The host touches pinned memory in no stream's order: its own stream must be done, too.
  WEIR_TRY(look_after_all(source_.host_touches ? nobody : wanted.slot, driver));
  block* found = find_kept(wanted);
  // A device at rest reaches a mark within microseconds; new memory costs far more than to look.
  for (int looks = 0; looks < 32 && found == nullptr && kept_.any_bound(wanted.rounded); ++looks) {
    WEIR_TRY(order_.poll(driver.enter()));
    retire();
    found = find_kept(wanted);
  }
  return found;
}

result<void> block_cache::look_after_all(stream_slot spared, driver_access& driver) {
  if (order_.any_behind()) {
    WEIR_TRY(driver.entered());
    WEIR_TRY(order_.close_others(spared, driver.enter()));
    WEIR_TRY(order_.poll(driver.enter()));
  }
  retire();
  return {};
}

result<void> block_cache::wait_for_streams(driver_access& driver) {
  WEIR_TRY(look_after_all(nobody, driver));
  if (!order_.any_behind()) return {};
  WEIR_TRY(order_.synchronize(driver.enter()));
  if (order_.any_behind()) {
    // Streams that can no longer be asked: only the whole device's rest tells about them.
    WEIR_TRY_VALUE(capturing, order_.any_capturing(driver.enter()));
    if (!capturing) {
      const auto rested = device_.synchronize();
      // Somebody else's stream is being captured: the device cannot be waited for now.
      if (!rested && rested.code() != errc::capture_forbidden) return rested;
      if (rested) order_.device_synchronized();
    }
  }
  retire();
  return {};
}

result<block*> block_cache::take_behind_wait(const request& wanted, driver_access& driver) {
  WEIR_TRY(driver.entered());
  // A wait queued on a captured stream would become part of its graph.
  WEIR_TRY_VALUE(capturing, order_.ref(wanted.slot).is_capturing(driver.enter()));
  if (capturing) return static_cast<block*>(nullptr);
  for (block* each : kept_.bound(wanted.rounded)) {
    WEIR_TRY_VALUE(waits, order_.wait(wanted.slot, each->freed, driver.enter()));
    if (!waits) continue;
    kept_.take(*each);
    return each;
  }
  return static_cast<block*>(nullptr);
}

}  // namespace weir::inline v0::pools

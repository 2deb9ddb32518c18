// How far streams have come, and what that makes of the blocks they freed.
#include <algorithm>

#include "pools/block_cache.hpp"

namespace weir::inline v0::pools {

using heap::nobody;

result<void> block_cache::look_at(stream_slot slot, driver_access& driver) {
  if (!streams_.behind(slot)) return {};
  WEIR_TRY(driver.entered());
  WEIR_TRY(streams_.settle(slot, driver.enter()));
  WEIR_TRY(streams_.poll(slot, driver.enter()));
  return {};
}

void block_cache::retire() {
  for (block* each = pending_.front; each != nullptr;) {
    block& what = *each;
    each = what.after;
    if (!std::all_of(what.others.begin(), what.others.end(),
                     [&](const stamp& other) { return streams_.has_passed(other); }))
      continue;
    kept_.prepare(what.size, what.freed_on);
    pending_.remove(what);
    books_.pending -= what.size;
    what.others.clear();
    what.state = block_state::kept;
    kept_.put(what);
  }
  kept_.retire(streams_);
}

result<void> block_cache::look_after(std::uint64_t size, driver_access& driver) {
  const std::vector<block*> bound = kept_.bound(size);
  if (bound.empty() && pending_.empty()) return {};
  for (const block* each : bound) WEIR_TRY(look_at(each->freed.stream, driver));
  for (const block* each = pending_.front; each != nullptr; each = each->after) {
    if (each->size != size) continue;
    WEIR_TRY(look_at(each->freed_on, driver));
    for (const stamp& other : each->others) WEIR_TRY(look_at(other.stream, driver));
  }
  retire();
  return {};
}

result<void> block_cache::look_after_all(driver_access& driver) {
  for (stream_slot slot = 1; slot <= streams_.count(); ++slot) WEIR_TRY(look_at(slot, driver));
  retire();
  return {};
}

result<bool> block_cache::any_capturing(driver_access& driver) {
  for (stream_slot slot = 1; slot <= streams_.count(); ++slot) {
    if (streams_.lost(slot) || streams_.ref(slot).is_per_thread()) continue;
    const auto asked = streams_.ref(slot).is_capturing(driver.enter());
    if (asked && *asked) return true;
  }
  return false;
}

result<void> block_cache::wait_for_streams(driver_access& driver) {
  WEIR_TRY(driver.entered());
  bool left = false;
  for (stream_slot slot = 1; slot <= streams_.count(); ++slot) {
    if (!streams_.behind(slot)) continue;
    WEIR_TRY(streams_.close(slot, driver.enter()));
    WEIR_TRY(streams_.synchronize(slot, driver.enter()));
    left = left || streams_.behind(slot);
  }
  if (left) {
    // Streams that can no longer be asked: only the whole device's rest tells about them.
    WEIR_TRY_VALUE(capturing, any_capturing(driver));
    if (!capturing) {
      const auto rested = device_.synchronize();
      // Somebody else's stream is being captured: the device cannot be waited for now.
      if (!rested && rested.code() != errc::capture_forbidden) return rested;
      if (rested) streams_.device_synchronized();
    }
  }
  retire();
  return {};
}

result<block*> block_cache::take_behind_wait(const request& wanted, driver_access& driver) {
  WEIR_TRY(driver.entered());
  // A wait queued on a captured stream would become part of its graph.
  WEIR_TRY_VALUE(capturing, streams_.ref(wanted.slot).is_capturing(driver.enter()));
  if (capturing) return static_cast<block*>(nullptr);
  for (block* each : kept_.bound(wanted.rounded)) {
    WEIR_TRY_VALUE(waits, streams_.wait(wanted.slot, each->freed, driver.enter()));
    if (!waits) continue;
    kept_.take(*each);
    return each;
  }
  return static_cast<block*>(nullptr);
}

}  // namespace weir::inline v0::pools

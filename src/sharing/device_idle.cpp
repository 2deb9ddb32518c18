// SPDX-License-Identifier: Apache-2.0
// Waiting for a device, and the mappings that wait for it.
#include "sharing/device_idle.hpp"

#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "device/per_process.hpp"

namespace weir { inline namespace v0 { namespace sharing {
namespace {

/// The end of a process unmaps everything anyway.
struct kept_mappings {
  detail::mutex mutex;
  std::list<kept_mapping> all WEIR_GUARDED_BY(mutex);
};
kept_mappings& process_kept() {
  static constinit detail::per_process<kept_mappings> kept;
  return kept.get();
}

/// Removes and returns those of the device. Needs no host memory.
std::list<kept_mapping> take_kept(kept_mappings& kept, const detail::device_state& home) noexcept {
  const detail::mutex_lock lock{kept.mutex};
  std::list<kept_mapping> taken;
  for (auto next = kept.all.begin(); next != kept.all.end();) {
    const auto each = next++;
    if (each->home == &home) taken.splice(taken.end(), kept.all, each);
  }
  return taken;
}

void put_back(kept_mappings& kept, std::list<kept_mapping> taken) noexcept {
  const detail::mutex_lock lock{kept.mutex};
  kept.all.splice(kept.all.end(), taken);
}

}  // namespace

result<void> wait_until_idle(weir::device home) try {
  const context_scope bound{home};
  if (!bound) return bound.error();
  // Before the wait, so that it counts for all of them.
  kept_mappings& kept = process_kept();
  std::list<kept_mapping> taken = take_kept(kept, detail::device_state::of(home));
  auto idle = detail::wait_for_all_work(bound);
  if (!may_unmap(idle)) put_back(kept, std::move(taken));
  return idle;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

keeping_place::keeping_place() : place_(1) { static_cast<void>(process_kept()); }

void keeping_place::keep_until_idle(weir::device home, std::shared_ptr<void> mappings) noexcept {
  place_.front() = {&detail::device_state::of(home), std::move(mappings)};
  put_back(process_kept(), std::move(place_));  // which is there since this was made
}

}}}  // namespace weir::v0::sharing

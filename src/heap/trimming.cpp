// SPDX-License-Identifier: Apache-2.0
// Which memory goes, in which order, and what is waited for.
#include "heap/trimming.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

namespace weir { inline namespace v0 { namespace heap {

using order::driver_access;

result<bytes> trimming::release_down_to(std::uint64_t keep, driver_access& driver) {
  const std::uint64_t before = core_.placement_.reserved;
  result<void> source_trouble;  // must not keep the others from giving back
  pools_.sweep(driver);
  WEIR_TRY(core_.usable());
  for (pool_state* each = core_.pools_.front().get(); each != nullptr;
       each = core_.pool_behind(each->id)) {
    if (each->memory == nullptr) continue;
    // The release of memory of the driver's own lets go of the lock.
    while (core_.placement_.reserved > keep && each->may_release(core_.order_)) {
      auto went = each->memory->release(bytes{core_.placement_.reserved - keep}, driver.enter());
      WEIR_TRY(core_.usable());
      if (!went && each->source == nullptr) return std::move(went).error();
      if (!went && source_trouble) source_trouble = std::move(went).error();
      if (!went || *went == bytes{}) break;
    }
  }
  WEIR_TRY(source_trouble);
  return bytes{before - std::min(before, core_.placement_.reserved)};
}

result<bytes> trimming::trim(bytes keep) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  core_.notice_ended_graphs();
  driver_access driver{core_.placement_.device};
  WEIR_TRY(driver.entered());
  return release_cached(keep, driver);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> trimming::release_cached(bytes keep, driver_access& driver) {
  flusher_.flush_caches();
  WEIR_TRY(progress_.poll_streams(driver, no_stream));
  return release_down_to(keep.count(), driver);
}

/// What is cheap first: cached memory, then the same after the work that may use it is done, then
/// memory that comes back.
result<bytes> trimming::shrink(bytes keep) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  core_.notice_ended_graphs();
  driver_access driver{core_.placement_.device};
  WEIR_TRY(driver.entered());
  const std::uint64_t before = core_.placement_.reserved;
  const auto released = [&] {
    core_.mutex_.assert_held();
    return bytes{before - std::min(before, core_.placement_.reserved)};
  };
  WEIR_TRY(release_cached(keep, driver));
  if (core_.placement_.reserved <= keep.count()) return released();
  WEIR_TRY(progress_.wait_for_streams(driver));
  WEIR_TRY(release_cached(keep, driver));
  while (core_.placement_.reserved > keep.count()) {
    WEIR_TRY_VALUE(made, residency_.evictions().evict(nullptr, {}, driver));
    if (!made) break;
  }
  return released();
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> trimming::empty_cache() try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  WEIR_TRY(residency_.await_arrivals());
  core_.notice_ended_graphs();
  driver_access driver{core_.placement_.device};
  WEIR_TRY(driver.entered());
  flusher_.flush_caches();
  WEIR_TRY(progress_.wait_for_streams(driver));
  core_.notice_ended_graphs();  // those whose last replay was waited for
  auto released = release_down_to(0, driver);
  static_cast<void>(core_.wait_for_releases());  // what was cached is the driver's afterwards
  return released;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> trimming::empty_cache(pool_id id) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  pool_state* pool = core_.find_pool(id);
  if (pool == nullptr) return errc::closed;
  if (pool->memory == nullptr || pool->of_capture) return bytes{};
  if (pool->where != residence::resident) return bytes{};
  driver_access driver{core_.device_};
  WEIR_TRY(driver.entered());
  std::vector<stamp> replays;  // may have been queued on any stream
  if (pool->for_graphs) {
    WEIR_TRY(progress_.poll_streams(driver, no_stream));  // meets those that were never named
    for (stream_slot slot = 1; slot <= core_.order_.count(); ++slot)
      replays.push_back(core_.order_.now(slot));
  }
  WEIR_TRY(progress_.wait_for_streams(driver));
  const bool over = std::all_of(replays.begin(), replays.end(), [&](stamp each) {
    core_.mutex_.assert_held();
    return core_.order_.completed(each);
  });
  if (!over) return bytes{};
  pool = core_.find_pool(id);  // its last handle may have gone during the wait, and it with that
  if (pool == nullptr) return bytes{};
  if (pool->where != residence::resident) return bytes{};  // it is suspended, or will be at once
  progress_.retire(*pool);
  auto released = pool->memory->release(bytes::max(), driver.enter());
  WEIR_TRY(core_.usable());
  WEIR_TRY(released);
  if (pool->holders == 0) pools_.sweep(driver);  // ends it where that was all
  return released;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

}}}  // namespace weir::v0::heap

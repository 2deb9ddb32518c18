// Releasing memory to the driver because somebody asks for it.
#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

result<bytes> central_heap::release_down_to(std::uint64_t keep, driver_access& driver) {
  const std::uint64_t before = placement_.reserved;
  result<void> source_trouble;  // must not keep the others from giving back
  pool_registry_.sweep(driver);
  WEIR_TRY(usable());
  for (pool_state* each = pools_.front().get(); each != nullptr; each = pool_behind(each->id)) {
    if (each->memory == nullptr || !each->may_release(order_)) continue;
    while (placement_.reserved > keep) {
      auto went = each->memory->release(bytes{placement_.reserved - keep}, driver.enter());
      WEIR_TRY(usable());
      if (!went && each->source == nullptr) return std::move(went).error();
      if (!went && source_trouble) source_trouble = std::move(went).error();
      if (!went || *went == bytes{}) break;
    }
  }
  WEIR_TRY(source_trouble);
  return bytes{before - std::min(before, placement_.reserved)};
}

result<bytes> central_heap::trim(bytes keep) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  notice_ended_graphs();
  driver_access driver{placement_.device};
  WEIR_TRY(driver.entered());
  return release_cached(keep, driver);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> central_heap::release_cached(bytes keep, driver_access& driver) {
  flush_caches();
  WEIR_TRY(poll_streams(driver, no_stream));
  return release_down_to(keep.count(), driver);
}

/// What is cheap first: cached memory, then the same after the work that may use it is done, then
/// memory that comes back.
result<bytes> central_heap::shrink(bytes keep) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  notice_ended_graphs();
  driver_access driver{placement_.device};
  WEIR_TRY(driver.entered());
  const std::uint64_t before = placement_.reserved;
  const auto released = [&] {
    mutex_.assert_held();
    return bytes{before - std::min(before, placement_.reserved)};
  };
  WEIR_TRY(release_cached(keep, driver));
  if (placement_.reserved <= keep.count()) return released();
  WEIR_TRY(wait_for_streams(driver));
  WEIR_TRY(release_cached(keep, driver));
  while (placement_.reserved > keep.count()) {
    WEIR_TRY_VALUE(made, residency_.evict(nullptr, {}, driver));
    if (!made) break;
  }
  return released();
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> central_heap::empty_cache() try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY(residency_.await_arrivals());
  notice_ended_graphs();
  driver_access driver{placement_.device};
  WEIR_TRY(driver.entered());
  flush_caches();
  WEIR_TRY(wait_for_streams(driver));
  notice_ended_graphs();  // those whose last replay was waited for
  auto released = release_down_to(0, driver);
  static_cast<void>(await_releases());  // what was cached is the driver's afterwards
  return released;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> central_heap::release_stream(const stream_ref& stream) try {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(caller, identify(stream, local()));
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  driver_access driver{placement_.device};
  WEIR_TRY_VALUE(slot, slot_of(caller, driver));
  WEIR_TRY(driver.entered());
  flush_stream(slot);
  return order_.end_stream(slot, driver.enter());
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void central_heap::flush_stream(stream_slot slot) noexcept {
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  caches_.for_each([&](thread_cache& each) {
    mutex_.assert_held();
    if (each.large != no_block && blocks_[each.large].stream == slot)
      static_cast<void>(flush_large(each));
    stream_bins* const bins = each.bins_of(slot);
    if (bins == nullptr) return;
    flush_bins(each, *bins);
    each.remove_bins(bins);
  });
}

/// Also while the heap is being closed, when it waits for streams without the lock.
void central_heap::stream_closing(const stream_ref& stream) noexcept {
  if (home_->forked()) return;
  const detail::mutex_lock lock{mutex_};
  if (stream.device() != device_) return foreign_uses_.stream_closing(stream);
  driver_access driver{device_};
  // Met or not: work on it may use memory that it never asked for.
  const stream_slot known = order_.known(stream.known_id());
  if (known != no_stream && !closed_.load(std::memory_order_relaxed)) flush_stream(known);
  detail::report_failure(order_.end_stream(stream, driver.enter()));
}

result<bytes> central_heap::empty_cache(pool_id id) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  pool_state* pool = find_pool(id);
  if (pool == nullptr) return errc::closed;
  if (pool->memory == nullptr || pool->of_capture) return bytes{};
  if (pool->where != residence::resident) return bytes{};
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  std::vector<stamp> replays;  // may have been queued on any stream
  if (pool->retains) {
    for (stream_slot slot = 1; slot <= order_.count(); ++slot) replays.push_back(order_.now(slot));
  }
  WEIR_TRY(wait_for_streams(driver));
  const bool over = std::all_of(replays.begin(), replays.end(), [&](stamp each) {
    mutex_.assert_held();
    return order_.completed(each);
  });
  if (!over) return bytes{};
  pool = find_pool(id);  // its last handle may have gone during the wait, and it with that
  if (pool == nullptr) return bytes{};
  retire(*pool);
  auto released = pool->memory->release(bytes::max(), driver.enter());
  WEIR_TRY(usable());
  WEIR_TRY(released);
  if (pool->holders == 0) pool_registry_.sweep(driver);  // ends it where that was all
  return released;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

}}}  // namespace weir::v0::heap

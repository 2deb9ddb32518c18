// Giving memory back to the driver, limits, callbacks and the observer.
#include <new>
#include <utility>

#include "heap/allocator_state.hpp"

namespace weir::inline v0::heap {

result<bytes> allocator_state::release_down_to(std::uint64_t keep, driver_access& driver) {
  const std::uint64_t before = core_.reserved;
  sweep_pools(driver);
  for (const auto& each : pools_) {
    if (each->memory == nullptr || !may_release(*each)) continue;
    while (core_.reserved > keep) {
      WEIR_TRY_VALUE(went, each->memory->release(bytes{core_.reserved - keep}, driver.enter()));
      if (went == bytes{}) break;
    }
  }
  return bytes{before - core_.reserved};
}

result<bytes> allocator_state::trim(bytes keep) {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  if (captures_.ended()) sweep_graphs();
  driver_access driver{core_.device};
  WEIR_TRY(driver.entered());
  take_back_caches();
  WEIR_TRY(poll_streams(driver, nobody));
  return release_down_to(keep.count(), driver);
}

result<bytes> allocator_state::empty_cache() {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  if (captures_.ended()) sweep_graphs();
  driver_access driver{core_.device};
  WEIR_TRY(driver.entered());
  take_back_caches();
  WEIR_TRY(wait_for_streams(driver));
  if (captures_.ended()) sweep_graphs();  // those whose last replay was waited for
  return release_down_to(0, driver);
}

result<void> allocator_state::release_stream(const stream_ref& stream) {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(who, identify(stream, local()));
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  driver_access driver{core_.device};
  // Met or not: work on it may use memory that it never asked for.
  WEIR_TRY_VALUE(slot, slot_of(who, driver));
  WEIR_TRY(driver.entered());
  {
    const thread_caches::stop stopped{caches_, own_cache()};
    settle_caches();
    caches_.for_each([&](thread_cache& each) {
      if (each.large != no_block && blocks_[each.large].stream == slot)
        static_cast<void>(hand_back_large(each));
      stream_bins* const bins = each.bins_of(slot);
      if (bins == nullptr) return;
      hand_back_bins(each, *bins);
      each.remove_bins(bins);
    });
  }
  return order_.end_stream(slot, driver.enter());
}

void allocator_state::stream_closing(const stream_ref& which) noexcept {
  try {
    detail::report_failure(release_stream(which));
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
  }
}

result<void> allocator_state::set_limit(bytes most) {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  core_.reserved_limit = most.count();
  limit_.store(most.count(), std::memory_order_relaxed);
  core_.tell({.kind = memory_event_kind::limit, .size = most.count()});
  return {};
}

result<void> allocator_state::set_limit(tag of, bytes most) try {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  accounts_.set_limit(of, most.count());
  caches_.for_each([&](thread_cache& each) {
    if (of.number() < each.delta_count) each.limits[of.number()] = accounts_.limited(of);
  });
  caches_.set_reason(thread_cache::limited, accounts_.any_limit());
  core_.tell({.kind = memory_event_kind::limit, .tag = of.number(), .size = most.count()});
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

std::uint64_t allocator_state::add_callback(out_of_memory_callback callback) {
  if (!usable()) return 0;
  auto shared = std::make_shared<out_of_memory_callback>(std::move(callback));
  const std::lock_guard lock{mutex_};
  callbacks_.emplace(next_callback_, std::move(shared));
  return next_callback_++;
}

void allocator_state::remove_callback(std::uint64_t key) noexcept {
  if (home_->forked()) return;
  std::shared_ptr<out_of_memory_callback> last;  // what it holds goes without the lock
  const std::lock_guard lock{mutex_};
  const auto found = callbacks_.find(key);
  if (found == callbacks_.end()) return;
  last = std::move(found->second);
  callbacks_.erase(found);
}

void allocator_state::set_observer(event_sink* sink) noexcept {
  if (!usable()) return;
  const std::lock_guard lock{mutex_};
  const thread_caches::stop stopped{caches_, own_cache()};
  core_.observer = sink;
  caches_.set_observer(sink);
}

}  // namespace weir::inline v0::heap

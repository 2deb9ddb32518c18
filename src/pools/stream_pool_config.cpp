// Stream pools: what one is to be, and making it so.
#include <algorithm>
#include <memory>
#include <utility>

#include "pools/stream_pool_state.hpp"

namespace weir::inline v0 {

using detail::device_state;
using driver::call;
using driver::check;

namespace {

error bad_config(bytes value, const char* why) {
  return {.code = errc::invalid_argument, .requested = value, .detail = why};
}

result<void> check_device(device where, const stream_pool_config& wanted) {
  const device_capabilities& can = where.capabilities();
  if (!can.memory_pools) {
    return error{.code = errc::not_supported, .detail = "the device has no stream-ordered pools"};
  }
  if (wanted.handles == stream_pool_handles::none) return {};
  if ((can.pool_handle_types & driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return {};
  return error{.code = errc::not_supported,
               .detail = "the device's pools cannot be sent as descriptors"};
}

driver::CUmemPoolProps properties(device where, const stream_pool_config& wanted) {
  driver::CUmemPoolProps made{};
  made.allocType = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  made.handleTypes = wanted.handles == stream_pool_handles::posix_descriptor
                         ? driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                         : driver::CU_MEM_HANDLE_TYPE_NONE;
  made.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, device_state::of(where).native};
  if (pools::driver_takes_maximum(where)) made.maxSize = wanted.max.count();
  return made;
}

result<void> set_threshold(const driver::table& calls, driver::CUmemoryPool pool, bytes value) {
  return pools::set_attribute(calls, pool, stream_pool_attribute::release_threshold, value.count());
}

/// Memory comes into a pool by being allocated, and stays by the threshold.
result<void> reserve_initial(device where, const driver::table& calls, driver::CUmemoryPool pool,
                             const stream_pool_config& wanted) {
  using attribute = stream_pool_attribute;
  WEIR_TRY_VALUE(on, stream::create(where));
  device_address memory = 0;
  WEIR_TRY(
      check(call::mem_alloc_from_pool_async,
            calls.mem_alloc_from_pool_async(&memory, wanted.initial.count(), pool, on.handle()),
            wanted.initial));
  const auto reserved = pools::get_attribute(calls, pool, attribute::reserved);
  // The driver reserves whole units and would give the last one back for a threshold inside it.
  const bytes stays = std::max(wanted.threshold, bytes{reserved ? *reserved : 0});
  const auto kept = set_threshold(calls, pool, stays);
  WEIR_TRY(check(call::mem_free_async, calls.mem_free_async(memory, on.handle())));
  WEIR_TRY(on.synchronize());  // from here on it is anybody's
  if (!reserved) return reserved.error();
  WEIR_TRY(kept);
  WEIR_TRY(pools::set_attribute(calls, pool, attribute::used_high, 0));
  return on.close();
}

result<void> set_up(device where, const driver::table& calls, driver::CUmemoryPool pool,
                    const stream_pool_config& wanted) {
  using attribute = stream_pool_attribute;
  const std::pair<attribute, bool> rules[] = {
      {attribute::reuse_follow_event_dependencies, wanted.reuse_follow_event_dependencies},
      {attribute::reuse_opportunistic, wanted.reuse_opportunistic},
      {attribute::reuse_internal_dependencies, wanted.reuse_internal_dependencies}};
  for (const auto& [rule, allowed] : rules) {
    if (!allowed) WEIR_TRY(pools::set_attribute(calls, pool, rule, 0));  // 1 is the driver's own
  }
  if (wanted.initial == bytes{}) return set_threshold(calls, pool, wanted.threshold);
  return reserve_initial(where, calls, pool, wanted);
}

}  // namespace

result<void> stream_pool_config::validate() const {
  if (initial > threshold) return bad_config(initial, "the initial size is above the threshold");
  if (max == bytes{}) return {};
  if (initial > max) return bad_config(initial, "the initial size is above the maximum");
  if (threshold > max && threshold != bytes::max()) {
    return bad_config(threshold, "the threshold is above the maximum");
  }
  return {};
}

result<stream_pool> stream_pool::create(weir::device where, stream_pool_config wanted) {
  WEIR_TRY(wanted.validate());
  WEIR_TRY(check_device(where, wanted));
  const context_scope bound{where};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{where};
  if (!relaxed) return relaxed.error();
  const auto& calls = bound.driver();
  const auto asked = properties(where, wanted);
  driver::CUmemoryPool handle = nullptr;
  WEIR_TRY(check(call::mem_pool_create, calls.mem_pool_create(&handle, &asked), wanted.max));
  if (const auto ready = set_up(where, calls, handle, wanted); !ready) {
    detail::report_failure(check(call::mem_pool_destroy, calls.mem_pool_destroy(handle)));
    return ready.error();
  }
  return stream_pool{
      std::make_shared<pools::stream_pool_state>(device_state::of(where), device_state::keep(where),
                                                 handle, pools::stream_pool_kind::created, wanted)};
}

}  // namespace weir::inline v0

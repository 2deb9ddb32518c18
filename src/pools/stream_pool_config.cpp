// SPDX-License-Identifier: Apache-2.0
// Stream pools: how one is configured, and how it is made so.
#include <algorithm>
#include <memory>
#include <utility>

#include "device/finished_work.hpp"
#include "pools/guarded.hpp"
#include "pools/stream_pool_state.hpp"
#include "pools/undo_allocation.hpp"

namespace weir { inline namespace v0 {

using detail::device_state;
using driver::call;
using driver::check;

namespace {

error bad_config(bytes value, const char* reason) {
  return {{.code = errc::invalid_argument, .requested = value, .detail = reason}};
}

result<void> check_device(device device, const stream_pool_config& config) {
  const device_capabilities& capabilities = device.capabilities();
  if (!capabilities.memory_pools) {
    return error{{.code = errc::not_supported,
                  .detail = "the device does not support stream-ordered pools; use bin_pool or "
                            "caching_allocator"}};
  }
  if (config.handles == stream_pool_handles::none) return {};
  if ((capabilities.pool_handle_types & driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return {};
  return error{{.code = errc::not_supported,
                .detail = "the device cannot export pools as file descriptors"}};
}

driver::CUmemPoolProps properties_of(device device, const stream_pool_config& config) {
  driver::CUmemPoolProps properties{};
  properties.allocType = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = config.handles == stream_pool_handles::posix_descriptor
                               ? driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                               : driver::CU_MEM_HANDLE_TYPE_NONE;
  properties.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, device_state::of(device).native};
  // Drivers refuse a maximum beyond the addresses they have; 0 is none.
  if (pools::driver_takes_maximum(device) && config.max < device.total_memory())
    properties.maxSize = config.max.count();
  return properties;
}

result<void> set_threshold(const driver::table& calls, driver::CUmemoryPool pool, bytes limit) {
  return pools::set_attribute(calls, pool, stream_pool_attribute::release_threshold, limit.count());
}

/// Memory comes into a pool by being allocated, and stays by the threshold.
result<void> reserve_initial(const context_scope& scope, driver::CUmemoryPool pool,
                             const stream_pool_config& config) {
  using attribute = stream_pool_attribute;
  const device device = scope.device();
  const auto& calls = scope.driver();
  WEIR_TRY_VALUE(stream, stream::create(device));
  device_address memory = 0;
  WEIR_TRY(
      check(call::mem_alloc_from_pool_async,
            calls.mem_alloc_from_pool_async(&memory, config.initial.count(), pool, stream.handle()),
            config.initial));
  const auto reserved = pools::get_attribute(calls, pool, attribute::reserved);
  // The driver reserves whole units and would give the last one back for a threshold inside it.
  const bytes threshold = std::max(config.threshold, bytes{reserved ? *reserved : 0});
  const auto raised = set_threshold(calls, pool, threshold);
  WEIR_TRY(check(call::mem_free_async, pools::undo_allocation(calls, memory, stream.handle())));
  WEIR_TRY(detail::wait_for_work(stream, scope));  // from here on any stream may have it
  if (!reserved) return reserved.error();
  WEIR_TRY(raised);
  WEIR_TRY(pools::set_attribute(calls, pool, attribute::used_peak, 0));
  return stream.close();
}

result<void> set_up(const context_scope& scope, driver::CUmemoryPool pool,
                    const stream_pool_config& config) {
  using attribute = stream_pool_attribute;
  const auto& calls = scope.driver();
  const std::pair<attribute, bool> rules[] = {
      {attribute::reuse_follow_event_dependencies, config.reuse_follow_event_dependencies},
      {attribute::reuse_opportunistic, config.reuse_opportunistic},
      {attribute::reuse_internal_dependencies, config.reuse_internal_dependencies}};
  for (const auto& [rule, allowed] : rules) {
    if (!allowed) WEIR_TRY(pools::set_attribute(calls, pool, rule, 0));  // 1 is the driver's own
  }
  if (config.initial == bytes{}) return set_threshold(calls, pool, config.threshold);
  return reserve_initial(scope, pool, config);
}

}  // namespace

result<void> stream_pool_config::validate() const {
  if (max == bytes{}) return {};
  if (initial > max) return bad_config(initial, "initial must not exceed maximum");
  if (threshold > max && threshold != bytes::max()) {
    return bad_config(threshold, "threshold must not exceed maximum");
  }
  return {};
}

result<stream_pool> stream_pool::create(weir::device device, stream_pool_config config) {
  WEIR_TRY(config.validate());
  WEIR_TRY(check_device(device, config));
  const context_scope scope{device};
  if (!scope) return scope.error();
  const thread_capture_mode_guard relaxed{device};
  if (!relaxed) return relaxed.error();
  const auto& calls = scope.driver();
  const auto properties = properties_of(device, config);
  driver::CUmemoryPool handle = nullptr;
  WEIR_TRY(check(call::mem_pool_create, calls.mem_pool_create(&handle, &properties), config.max));
  auto created = pools::guarded([&]() -> result<stream_pool> {
    WEIR_TRY(set_up(scope, handle, config));
    return stream_pool{std::make_shared<pools::stream_pool_state>(
        device_state::of(device), device_state::keep(device), handle,
        pools::stream_pool_kind::created, config)};
  });
  if (!created)
    detail::report_failure(check(call::mem_pool_destroy, calls.mem_pool_destroy(handle)));
  return created;
}

}}  // namespace weir::v0

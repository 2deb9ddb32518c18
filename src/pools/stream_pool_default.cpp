// SPDX-License-Identifier: Apache-2.0
// The devices' default pools, and the two functions that need no pool to be named.
#include <memory>
#include <mutex>

#include "pools/guarded.hpp"
#include "pools/stream_pool_state.hpp"

namespace weir { inline namespace v0 {

using detail::device_state;
using driver::call;
using driver::check;

result<stream_pool> stream_pool::default_of(weir::device device) {
  if (!device.capabilities().memory_pools) {
    return error{{.code = errc::not_supported,
                  .detail = "the device does not support stream-ordered pools; use bin_pool or "
                            "caching_allocator"}};
  }
  device_state& home = device_state::of(device);
  const context_scope scope{device};
  if (!scope) return scope.error();
  const std::lock_guard lock{home.default_pool_mutex};
  if (home.default_pool == nullptr) {
    driver::CUmemoryPool handle = nullptr;
    WEIR_TRY(check(call::device_get_default_mem_pool,
                   scope.driver().device_get_default_mem_pool(&handle, home.native)));
    WEIR_TRY(pools::guarded([&]() -> result<void> {
      home.default_pool = std::make_shared<pools::stream_pool_state>(
          home, nullptr, handle, pools::stream_pool_kind::standard,
          stream_pool_config{.threshold = {}});
      return {};
    }));
  }
  // The runtime owns the table, so that it lasts as long as the driver's pool; a handle owns the
  // runtime.
  return stream_pool{std::shared_ptr<pools::stream_pool_state>{
      device_state::keep(device), static_cast<pools::stream_pool_state*>(home.default_pool.get())}};
}

result<stream_allocation> stream_alloc(bytes size, const stream_ref& stream) {
  WEIR_TRY_VALUE(pool, stream_pool::default_of(stream.device()));
  return pool.allocate_owned(size, stream);
}

result<void> stream_free(stream_allocation& memory) { return memory.free(); }

result<void> stream_free(stream_allocation& memory, const stream_ref& stream) {
  return memory.free(stream);
}

}}  // namespace weir::v0

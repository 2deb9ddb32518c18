// SPDX-License-Identifier: Apache-2.0
// Where blocks come from: plain and pinned memory of the driver, and memory of somebody else.
#include "pools/block_source.hpp"

#include <utility>

#include "pools/guarded.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace pools {

block_source plain_memory() {
  return {.allocate = [](const context_scope& scope, bytes size) -> result<std::uint64_t> {
            WEIR_TRY_VALUE(base, allocate_plain(scope, size));
            return std::uint64_t{base};
          },
          .release = [](const context_scope& scope, std::uint64_t base,
                        bytes) { return free_plain(scope, base); },
          .host_touches = false};
}

block_source pinned_memory() {
  return {
      .allocate = [](const context_scope& scope, bytes size) -> result<std::uint64_t> {
        if (!scope) return scope.error();
        void* base = nullptr;
        constexpr auto flags = driver::host_alloc_portable | driver::host_alloc_device_map;
        WEIR_TRY(driver::check(driver::call::mem_host_alloc,
                               scope.driver().mem_host_alloc(&base, size.count(), flags), size));
        return reinterpret_cast<std::uintptr_t>(base);
      },
      .release = [](const context_scope& scope, std::uint64_t base, bytes) -> result<void> {
        if (!scope) return scope.error();
        return driver::check(driver::call::mem_free_host,
                             scope.driver().mem_free_host(reinterpret_cast<void*>(base)));
      },
      .host_touches = true};
}

block_source upstream_memory(std::shared_ptr<memory_source> upstream) {
  return {
      .allocate = [upstream](const context_scope& scope, bytes size) -> result<std::uint64_t> {
        if (!scope) return scope.error();
        const stream_ref legacy = stream_ref::legacy(scope.device());
        WEIR_TRY_VALUE(memory, guarded([&] { return upstream->allocate(size, legacy); }));
        const std::uint64_t base = reinterpret_cast<std::uintptr_t>(memory);
        if (base == 0) return error{{.code = errc::out_of_memory, .requested = size}};
        if (base % default_alignment.count() == 0) return base;
        WEIR_TRY(guarded([&] { return upstream->deallocate(memory, size); }));
        return error{{.code = errc::bad_alignment,
                      .requested = size,
                      .detail = "the memory_source must return memory aligned to 256 bytes"}};
      },
      .release = [upstream](const context_scope& scope, std::uint64_t base,
                            bytes size) -> result<void> {
        if (!scope) return scope.error();
        return guarded([&] { return upstream->deallocate(reinterpret_cast<void*>(base), size); });
      },
      .host_touches = false};
}

}  // namespace pools
}}  // namespace weir::v0

// SPDX-License-Identifier: Apache-2.0
// Blocks of a pool with an owner: allocated, filled and recorded.
#include "weir/pool/pooled_buffer.hpp"

#include <cstring>

#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"
#include "pools/queueable.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 {

namespace {

result<void> check_request(const std::shared_ptr<pools::block_cache>& cache, bytes size) {
  if (cache == nullptr) return errc::moved_from;
  if (size != bytes{}) return {};
  return error{{.code = errc::invalid_argument, .detail = "count must be greater than zero"}};
}

/// The host writes the zeros of memory that is its own at once; all other memory is filled in the
/// stream's order.
result<void> fill_initially(const pooled_memory& memory, contents initial, bool by_host) {
  if (initial == contents::undefined) return {};
  if (by_host) {
    std::memset(memory.data(), 0, memory.size().count());
    return {};
  }
  const stream_ref& stream = memory.stream();
  const context_scope scope{stream.device()};
  if (!scope) return scope.error();
  WEIR_TRY(pools::check_queueable(stream, scope));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return driver::check(
      driver::call::memset_d8_async,
      scope.driver().memset_d8_async(address, 0, memory.size().count(), stream.handle()),
      memory.size());
}

}  // namespace

pooled_memory::pooled_memory(const std::shared_ptr<pools::block_cache>& cache, void* data,
                             bytes size, const stream_ref& stream) noexcept
    : memory_owner{cache, data, size, stream} {}

result<pooled_memory> pooled_memory::create(const std::shared_ptr<pools::block_cache>& cache,
                                            bytes size, const stream_ref& stream, contents initial,
                                            bytes alignment) {
  WEIR_TRY(check_request(cache, size));
  WEIR_TRY_VALUE(data, pools::guarded([&] { return cache->allocate(size, stream, alignment); }));
  pooled_memory memory{cache, data, size, stream};
  WEIR_TRY(fill_initially(memory, initial, cache->host_touches()));
  return memory;
}

result<pooled_memory> pooled_memory::create_cached(const std::shared_ptr<pools::block_cache>& cache,
                                                   bytes size, const stream_ref& stream,
                                                   contents initial, bytes alignment) {
  WEIR_TRY(check_request(cache, size));
  WEIR_TRY_VALUE(data,
                 pools::guarded([&] { return cache->allocate_cached(size, stream, alignment); }));
  pooled_memory memory{cache, data, size, stream};
  WEIR_TRY(fill_initially(memory, initial, cache->host_touches()));
  return memory;
}

}}  // namespace weir::v0

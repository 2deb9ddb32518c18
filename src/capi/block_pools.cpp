// SPDX-License-Identifier: Apache-2.0
// The C ABI's pools of whole blocks: plain device memory, and pinned host memory.
#include <memory>
#include <utility>
#include <variant>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// Either pool, with the same interface.
struct block_pool_object {
  std::shared_ptr<runtime> machine;
  std::variant<bin_pool, pinned_pool> kind;

  [[nodiscard]] const block_pool& pool() const noexcept {
    if (const auto* const bins = std::get_if<bin_pool>(&kind)) return *bins;
    return *std::get_if<pinned_pool>(&kind);
  }
};
WEIR_HANDLE_KIND(block_pool)

namespace {

template <class Pool>
result<void> create_block_pool(weir_runtime* runtime, std::int32_t device, std::uint64_t threshold,
                               weir_block_pool** pool) {
  WEIR_NEEDS(pool);
  WEIR_TRY_VALUE(home, find_device(runtime, device));
  WEIR_TRY_VALUE(created, Pool::create(home.device, {.threshold = bytes{threshold}}));
  auto object =
      std::make_shared<block_pool_object>(block_pool_object{home.machine, std::move(created)});
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_block_pool>(std::move(object)));
  *pool = handle;
  return {};
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_bin_pool_create(weir_runtime* runtime, int32_t device, uint64_t threshold,
                                weir_block_pool** pool) {
  return guarded([&] { return create_block_pool<bin_pool>(runtime, device, threshold, pool); });
}

weir_error weir_pinned_pool_create(weir_runtime* runtime, int32_t device, uint64_t threshold,
                                   weir_block_pool** pool) {
  return guarded([&] { return create_block_pool<pinned_pool>(runtime, device, threshold, pool); });
}

weir_error weir_block_pool_close(weir_block_pool* pool) {
  return guarded([&]() -> result<void> {
    if (pool == nullptr) return {};
    WEIR_TRY_VALUE(object, take(pool));
    return object->pool().close();
  });
}

weir_error weir_block_pool_allocate(weir_block_pool* pool, uint64_t size, uint64_t alignment,
                                    weir_stream* stream, void** pointer) {
  return allocate_or_ask(size, pointer, [&](oom_handler&) -> result<void*> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool().device()));
    return object->pool().try_allocate(bytes{size}, target.ref,
                                       bytes{alignment == 0 ? 256 : alignment});
  });
}

weir_error weir_block_pool_deallocate(weir_block_pool* pool, void* pointer, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool().device()));
    return object->pool().try_deallocate(pointer, target.ref);
  });
}

weir_error weir_block_pool_free(weir_block_pool* pool, void* pointer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return object->pool().try_deallocate(pointer);
  });
}

weir_error weir_block_pool_record_stream(weir_block_pool* pool, void* pointer,
                                         weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool().device()));
    return object->pool().record_stream(pointer, target.ref);
  });
}

weir_error weir_block_pool_release_stream(weir_block_pool* pool, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool().device()));
    return object->pool().release_stream(target.ref);
  });
}

weir_error weir_block_pool_get_stats(weir_block_pool* pool, weir_block_pool_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    const block_pool_stats now = object->pool().stats();
    weir_block_pool_stats known{};
    known.requested = to_c(now.requested);
    known.allocated = to_c(now.allocated);
    known.reserved = to_c(now.reserved);
    known.blocks = to_c(now.blocks);
    known.cached = now.cached.count();
    known.pending = now.pending.count();
    known.allocations = now.allocations;
    known.frees = now.frees;
    known.hits = now.hits;
    known.misses = now.misses;
    known.failures = now.failures;
    known.waits = now.waits;
    known.events = now.events;
    return hand_out(known, stats);
  });
}

weir_error weir_block_pool_reset_peaks(weir_block_pool* pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    object->pool().reset_peaks();
    return {};
  });
}

weir_error weir_block_pool_reset_counters(weir_block_pool* pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    object->pool().reset_counters();
    return {};
  });
}

weir_error weir_block_pool_trim(weir_block_pool* pool, uint64_t keep, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return write_size(object->pool().trim(bytes{keep}), released);
  });
}

weir_error weir_block_pool_empty_cache(weir_block_pool* pool, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return write_size(object->pool().empty_cache(), released);
  });
}

weir_error weir_block_pool_set_threshold(weir_block_pool* pool, uint64_t most) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return object->pool().set_threshold(bytes{most});
  });
}
}

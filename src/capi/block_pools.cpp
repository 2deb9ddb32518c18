// SPDX-License-Identifier: Apache-2.0
// The C ABI's pools of whole blocks: plain device memory, and pinned host memory.
#include <memory>
#include <utility>

#include "capi/block_pools.hpp"
#include "capi/guard.hpp"
#include "capi/memory_source.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"

namespace weir { inline namespace v0 { namespace capi { namespace {

result<block_pool_options> options_of(const weir_block_pool_options* options) {
  const weir_block_pool_options initial = WEIR_BLOCK_POOL_OPTIONS_INIT;
  WEIR_TRY_VALUE(known, take_in(options, initial));
  WEIR_TRY(check_flags(known.flags, weir_block_pool_declared_uses));
  block_pool_options settings;
  settings.threshold = bytes{known.threshold};
  if ((known.flags & weir_block_pool_declared_uses) != 0)
    settings.crossing = crossing_rule::declared_uses;
  return settings;
}

template <class Pool, class... Source>
result<void> create_block_pool(weir_runtime* runtime, std::int32_t device,
                               const weir_block_pool_options* options, weir_block_pool** pool,
                               Source... source) {
  WEIR_NEEDS(pool);
  WEIR_TRY_VALUE(home, find_device(runtime, device));
  WEIR_TRY_VALUE(settings, options_of(options));
  WEIR_TRY_VALUE(created, Pool::create(home.device, settings, std::move(source)...));
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

weir_error weir_bin_pool_create(weir_runtime* runtime, int32_t device,
                                const weir_block_pool_options* options, weir_block_pool** pool) {
  return guarded([&] { return create_block_pool<bin_pool>(runtime, device, options, pool); });
}

weir_error weir_bin_pool_create_from_source(weir_runtime* runtime, int32_t device,
                                            const weir_block_pool_options* options,
                                            const weir_memory_source* source,
                                            weir_block_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(upstream, c_source::create(source));
    return create_block_pool<bin_pool>(runtime, device, options, pool, std::move(upstream));
  });
}

weir_error weir_pinned_pool_create(weir_runtime* runtime, int32_t device,
                                   const weir_block_pool_options* options, weir_block_pool** pool) {
  return guarded([&] { return create_block_pool<pinned_pool>(runtime, device, options, pool); });
}

weir_error weir_block_pool_get_device(weir_block_pool* pool, int32_t* device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(device);
    *device = object->pool().device().id().number();
    return {};
  });
}

weir_error weir_block_pool_rounded_size(uint64_t size, uint64_t* rounded) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(rounded);
    return write_size(block_pool::rounded_size(bytes{size}), rounded);
  });
}

weir_error weir_block_pool_get_threshold(weir_block_pool* pool, uint64_t* threshold) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(threshold);
    *threshold = object->pool().threshold().count();
    return {};
  });
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

weir_error weir_block_pool_set_threshold(weir_block_pool* pool, uint64_t threshold) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return object->pool().set_threshold(bytes{threshold});
  });
}
}

// SPDX-License-Identifier: Apache-2.0
// The C ABI's private pools of an allocator, and the memory of captured graphs.
#include <memory>
#include <mutex>
#include <utility>

#include "capi/guard.hpp"
#include "capi/memory_source.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "capi/thread_locals.hpp"
#include "weir.h"

namespace weir { inline namespace v0 { namespace capi {

struct capture_object {
  std::shared_ptr<allocator_object> owner;
  weir_allocator* owner_handle;
  std::mutex mutex;  // a graph_memory is one thread's at a time
  graph_memory memory;
};
WEIR_HANDLE_KIND(capture)

struct capture_guard_object {
  std::shared_ptr<allocator_object> owner;
  capture_guard notice;
};
WEIR_HANDLE_KIND(capture_guard)

namespace {

result<void> hand_out_pool(const std::shared_ptr<allocator_object>& owner,
                           weir_allocator* owner_handle, memory_pool pool, weir_pool** into) {
  auto object = std::make_shared<pool_object>(pool_object{owner, owner_handle, std::move(pool)});
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_pool>(std::move(object)));
  *into = handle;
  return {};
}

}  // namespace

result<void> create_pool(weir_allocator* allocator, const char* name, std::uint32_t flags,
                         std::optional<suspendable_options> suspendable, weir_pool** pool) {
  WEIR_TRY_VALUE(object, find(allocator));
  WEIR_NEEDS(name);
  WEIR_NEEDS(pool);
  WEIR_TRY(check_flags(flags, weir_pool_exportable | weir_pool_for_graphs));
  pool_options settings;
  settings.exportable = (flags & weir_pool_exportable) != 0;
  settings.for_graphs = (flags & weir_pool_for_graphs) != 0;
  settings.suspendable = std::move(suspendable);
  WEIR_TRY_VALUE(created, object->memory.create_pool(name, std::move(settings)));
  return hand_out_pool(object, allocator, std::move(created), pool);
}

}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

// --- Pools --------------------------------------------------------------------------------------

weir_error weir_pool_create(weir_allocator* allocator, const char* name, uint32_t flags,
                            weir_pool** pool) {
  return guarded([&] { return create_pool(allocator, name, flags, {}, pool); });
}

weir_error weir_pool_create_from_source(weir_allocator* allocator, const char* name,
                                        const weir_memory_source* source, int32_t one_block,
                                        weir_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(name);
    WEIR_NEEDS(pool);
    WEIR_TRY_VALUE(upstream, c_source::create(source));
    WEIR_TRY_VALUE(created,
                   object->memory.create_pool(name, {.one_block_per_segment = one_block != 0,
                                                     .source = std::move(upstream)}));
    return hand_out_pool(object, allocator, std::move(created), pool);
  });
}

weir_error weir_pool_close(weir_pool* pool) {
  return guarded([&]() -> result<void> {
    if (pool == nullptr) return {};
    WEIR_TRY(take(pool));
    return {};
  });
}

weir_error weir_pool_allocate(weir_pool* pool, uint64_t size, uint64_t alignment,
                              weir_stream* stream, void** pointer) {
  return allocate_or_ask(size, pointer, [&](oom_handler& handler) -> result<void*> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    auto memory =
        object->pool.try_allocate(bytes{size}, target.ref, bytes{alignment == 0 ? 512 : alignment});
    if (!memory) handler = oom_handler_of(*object->owner, object->owner_handle);
    return memory;
  });
}

weir_error weir_pool_allocate_at(weir_pool* pool, void* address, uint64_t size,
                                 weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    WEIR_TRY(object->pool.allocate_at(address, bytes{size}, target.ref));
    return {};
  });
}

weir_error weir_pool_get_id(weir_pool* pool, uint32_t* id) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(id);
    *id = object->pool.id().number();
    return {};
  });
}

weir_error weir_pool_set_fallback(weir_pool* pool, int32_t enabled) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return object->pool.set_fallback(enabled != 0);
  });
}

weir_error weir_pool_get_stats(weir_pool* pool, weir_memory_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return hand_out(to_c(object->pool.stats()), stats);
  });
}

weir_error weir_pool_empty_cache(weir_pool* pool, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return write_size(object->pool.empty_cache(), released);
  });
}

weir_error weir_pool_enter(weir_pool* pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    thread_locals* const locals = own_thread_locals();
    if (locals == nullptr) return error{{.code = errc::no_host_memory}};
    locals->entered.reserve(locals->entered.size() + 1);
    locals->entered.push_back(std::make_unique<pool_scope>(object->pool));
    return {};
  });
}

weir_error weir_pool_leave(void) {
  return guarded([&]() -> result<void> {
    thread_locals* const locals = existing_thread_locals();
    if (locals == nullptr || locals->entered.empty())
      return error{
          {.code = errc::invalid_argument, .detail = "this thread has not entered a pool"}};
    locals->entered.pop_back();
    return {};
  });
}

// --- Captured graphs ----------------------------------------------------------------------------

weir_error weir_capture_begin(weir_allocator* allocator, weir_stream* stream,
                              weir_capture** capture) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(owner, find(allocator));
    WEIR_NEEDS(capture);
    WEIR_TRY_VALUE(target, find_stream(stream, *owner));
    WEIR_TRY_VALUE(memory, owner->memory.begin_capture(target.ref));
    auto object = std::make_shared<capture_object>();
    object->owner = std::move(owner);
    object->owner_handle = allocator;
    object->memory = std::move(memory);
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_capture>(std::move(object)));
    *capture = handle;
    return {};
  });
}

weir_error weir_capture_end(weir_capture* capture) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(capture));
    const std::lock_guard lock{object->mutex};
    object->memory.end_capture();
    return {};
  });
}

weir_error weir_capture_tie_to_graph(weir_capture* capture, void* native_graph) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(capture));
    WEIR_NEEDS(native_graph);
    const std::lock_guard lock{object->mutex};
    return object->memory.tie_to_graph(static_cast<driver::CUgraph>(native_graph));
  });
}

weir_error weir_capture_get_pool(weir_capture* capture, weir_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(capture));
    WEIR_NEEDS(pool);
    const std::lock_guard lock{object->mutex};
    memory_pool own_pool = object->memory.pool();
    if (!own_pool) return error{{.code = errc::closed, .detail = "the allocator is closed"}};
    return hand_out_pool(object->owner, object->owner_handle, std::move(own_pool), pool);
  });
}

weir_error weir_capture_close(weir_capture* capture) {
  return guarded([&]() -> result<void> {
    if (capture == nullptr) return {};
    WEIR_TRY(take(capture));
    return {};
  });
}

weir_error weir_capture_guard_open(weir_allocator* allocator, weir_capture_guard** guard) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(owner, find(allocator));
    WEIR_NEEDS(guard);
    auto object = std::make_shared<capture_guard_object>();
    object->notice = owner->memory.guard_captures().value();
    object->owner = std::move(owner);
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_capture_guard>(std::move(object)));
    *guard = handle;
    return {};
  });
}

weir_error weir_capture_guard_close(weir_capture_guard* guard) {
  return guarded([&]() -> result<void> {
    if (guard == nullptr) return {};
    WEIR_TRY(take(guard));
    return {};
  });
}
}

// SPDX-License-Identifier: Apache-2.0
// The C ABI's caching allocator: creation, requests, frees and closing.
#include <memory>
#include <utility>

#include "base/environment.hpp"
#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "heap/fast_path.hpp"
#include "weir.h"

namespace weir { inline namespace v0 { namespace capi {

result<stream_argument> find_stream(weir_stream* handle, const allocator_object& home) {
  if (handle == nullptr) return stream_argument{nullptr, home.legacy};
  return find_stream(handle, home.legacy.device());
}

result<std::shared_ptr<allocator_object>> make_allocator(const device_argument& home,
                                                         const options& settings) {
  WEIR_TRY_VALUE(memory, caching_allocator::create(home.device, allocator_options::from(settings)));
  WEIR_TRY_VALUE(legacy, stream_ref::legacy(home.device).identified());
  return std::make_shared<allocator_object>(home.machine, std::move(memory), legacy);
}

bool lacks_memory(errc code) noexcept { return code == errc::out_of_memory; }

oom_handler oom_handler_of(allocator_object& object, weir_allocator* handle) {
  const std::lock_guard lock{object.mutex};
  return {handle, object.handler, object.handler_context};
}

namespace {

result<void> create_allocator(weir_runtime* runtime, std::int32_t device, const options& initial,
                              const char* list, weir_allocator** into) {
  WEIR_NEEDS(into);
  WEIR_TRY_VALUE(settings, read_options(initial, list));
  WEIR_TRY_VALUE(home, find_device(runtime, device));
  WEIR_TRY_VALUE(object, make_allocator(home, settings));
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_allocator>(std::move(object)));
  *into = handle;
  return {};
}

// The fast path takes no lock. What it cannot do, and whatever is wrong, goes to the slow path.

/// Calls `action(allocator, stream)` with what the handles stand for; `otherwise` if it is not
/// found.
template <class Answer, class Action>
[[nodiscard, gnu::always_inline]] inline Answer on_fast_path(weir_allocator* handle,
                                                             weir_stream* stream, Answer otherwise,
                                                             const Action& action) noexcept {
  table::reader* const reader = read_section::reader();
  if (reader == nullptr) [[unlikely]]
    return otherwise;
  const read_section section{*reader};
  const allocator_object* const object = peek(section, handle);
  if (object == nullptr) [[unlikely]]
    return otherwise;
  if (stream == nullptr) return action(*object->heap, object->legacy);
  const stream_object* const named = peek(section, stream);
  if (named == nullptr) [[unlikely]]
    return otherwise;
  return action(*object->heap, named->ref);
}

[[gnu::noinline]] weir_error allocate_on_slow_path(weir_allocator* handle, std::uint64_t size,
                                                   bytes alignment, weir_stream* stream,
                                                   void** pointer) {
  return allocate_or_ask(size, pointer, [&](oom_handler& handler) -> result<void*> {
    WEIR_TRY_VALUE(object, find(handle));
    WEIR_TRY_VALUE(target, find_stream(stream, *object));
    auto memory = object->memory.try_allocate(bytes{size}, target.ref, alignment);
    if (!memory) handler = oom_handler_of(*object, handle);
    return memory;
  });
}

[[gnu::noinline]] weir_error deallocate_on_slow_path(weir_allocator* handle, void* pointer,
                                                     weir_stream* stream) noexcept {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(handle));
    WEIR_TRY_VALUE(target, find_stream(stream, *object));
    return object->memory.try_deallocate(pointer, target.ref);
  });
}

[[nodiscard]] stream_ref native_ref(const allocator_object& home, void* native) noexcept {
  if (native == nullptr) return home.legacy;
  return {home.legacy.device(), static_cast<CUstream_st*>(native)};
}

template <class Register>
weir_error register_callback(weir_allocator* allocator, weir_reclaim_callback callback,
                             void* context, weir_callback** registration, Register add) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(owner, find(allocator));
    WEIR_NEEDS(callback);
    WEIR_NEEDS(registration);
    auto object = std::make_shared<callback_object>();
    WEIR_TRY_VALUE(registered, (owner->memory.*add)([callback, context](bytes needed) {
                     return callback(context, needed.count()) != 0;
                   }));
    object->registered = std::move(registered);
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_callback>(std::move(object)));
    *registration = handle;
    return {};
  });
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_allocator_create(weir_runtime* runtime, int32_t device, const char* list,
                                 weir_allocator** allocator) {
  return guarded([&] {
    return create_allocator(runtime, device, detail::environment_defaults(), list, allocator);
  });
}

weir_error weir_allocator_create_from_environment(weir_runtime* runtime, int32_t device,
                                                  const char* list, weir_allocator** allocator) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(settings, options_from_environment());
    return create_allocator(runtime, device, settings, list, allocator);
  });
}

weir_error weir_allocator_close(weir_allocator* allocator) {
  return guarded([&]() -> result<void> {
    if (allocator == nullptr) return {};
    WEIR_TRY_VALUE(object, find(allocator));
    if (object->permanent)
      return error{{.code = errc::not_permitted,
                    .detail = "the process's default allocator cannot be closed"}};
    WEIR_TRY(take(allocator));
    return object->memory.close();
  });
}

weir_error weir_allocator_assume_joined(weir_allocator* allocator, const void* pointer,
                                        int32_t* found) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(found);
    WEIR_TRY_VALUE(is_found, object->memory.assume_joined(pointer));
    *found = is_found ? 1 : 0;
    return {};
  });
}

weir_error weir_allocator_enable_peer(weir_allocator* allocator, int32_t device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(peer, object->machine->device(device_id{device}));
    return object->memory.enable_peer(peer);
  });
}

weir_error weir_allocator_get_device(weir_allocator* allocator, int32_t* device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(device);
    *device = object->legacy.device().id().number();
    return {};
  });
}

// --- Memory -------------------------------------------------------------------------------------

weir_error weir_allocator_allocate(weir_allocator* allocator, uint64_t size, weir_stream* stream,
                                   void** pointer) {
  if (pointer != nullptr) [[likely]] {
    void* const hit = on_fast_path<void*>(allocator, stream, nullptr,
                                          [&](heap::central_heap& from, const stream_ref& ref) {
                                            return from.fast_allocate(bytes{size}, ref);
                                          });
    if (hit != nullptr) [[likely]] {
      *pointer = hit;
      return weir_ok;
    }
  }
  return allocate_on_slow_path(allocator, size, default_alignment, stream, pointer);
}

weir_error weir_allocator_allocate_aligned(weir_allocator* allocator, uint64_t size,
                                           uint64_t alignment, weir_stream* stream,
                                           void** pointer) {
  return allocate_on_slow_path(allocator, size, bytes{alignment}, stream, pointer);
}

weir_error weir_allocator_deallocate(weir_allocator* allocator, void* pointer,
                                     weir_stream* stream) {
  const bool is_freed = on_fast_path(
      allocator, stream, false,
      [&](heap::central_heap& to, const stream_ref& ref) { return to.fast_free(pointer, ref); });
  if (is_freed) [[likely]]
    return weir_ok;
  return deallocate_on_slow_path(allocator, pointer, stream);
}

weir_error weir_allocator_deallocate_sized(weir_allocator* allocator, void* pointer, uint64_t size,
                                           weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(target, find_stream(stream, *object));
    return object->memory.try_deallocate(pointer, bytes{size}, target.ref);
  });
}

weir_error weir_allocator_free(weir_allocator* allocator, void* pointer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return object->memory.try_deallocate(pointer);
  });
}

weir_error weir_allocator_allocate_cached(weir_allocator* allocator, uint64_t size,
                                          weir_stream* stream, void** pointer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(pointer);
    *pointer = nullptr;
    WEIR_TRY_VALUE(target, find_stream(stream, *object));
    WEIR_TRY_VALUE(memory, object->memory.try_allocate_cached(bytes{size}, target.ref));
    *pointer = memory;
    return {};
  });
}

weir_error weir_allocator_rounded_size(uint64_t size, uint64_t* rounded) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(rounded);
    return write_size(caching_allocator::rounded_size(bytes{size}), rounded);
  });
}

weir_error weir_segment_size(uint64_t size, uint64_t* segment) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(segment);
    return write_size(segment_size(bytes{size}), segment);
  });
}

weir_error weir_allocator_record_stream(weir_allocator* allocator, void* pointer,
                                        weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(target, find_stream(stream, *object));
    return object->memory.record_stream(pointer, target.ref);
  });
}

weir_error weir_allocator_allocate_native(weir_allocator* allocator, uint64_t size,
                                          void* native_stream, void** pointer) {
  return allocate_or_ask(size, pointer, [&](oom_handler& handler) -> result<void*> {
    WEIR_TRY_VALUE(object, find(allocator));
    auto memory = object->memory.try_allocate(bytes{size}, native_ref(*object, native_stream));
    if (!memory) handler = oom_handler_of(*object, allocator);
    return memory;
  });
}

weir_error weir_allocator_deallocate_native(weir_allocator* allocator, void* pointer,
                                            void* native_stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return object->memory.try_deallocate(pointer, native_ref(*object, native_stream));
  });
}

weir_error weir_allocator_record_stream_native(weir_allocator* allocator, void* pointer,
                                               void* native_stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return object->memory.record_stream(pointer, native_ref(*object, native_stream));
  });
}

// --- Out of memory ------------------------------------------------------------------------------

weir_error weir_allocator_set_out_of_memory_handler(weir_allocator* allocator,
                                                    weir_out_of_memory_handler handler,
                                                    void* context) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    const std::lock_guard lock{object->mutex};
    object->handler = handler;
    object->handler_context = context;
    return {};
  });
}

weir_error weir_allocator_on_out_of_memory(weir_allocator* allocator,
                                           weir_reclaim_callback callback, void* context,
                                           weir_callback** registration) {
  return register_callback(allocator, callback, context, registration,
                           &caching_allocator::on_out_of_memory);
}

weir_error weir_allocator_before_growth(weir_allocator* allocator, weir_reclaim_callback callback,
                                        void* context, weir_callback** registration) {
  return register_callback(allocator, callback, context, registration,
                           &caching_allocator::before_growth);
}

weir_error weir_callback_close(weir_callback* registration) {
  return guarded([&]() -> result<void> {
    if (registration == nullptr) return {};
    WEIR_TRY(take(registration));
    return {};
  });
}
}

// The C ABI's caching allocator: made, asked for memory, and closed.
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "weir.h"

namespace weir::inline v0::capi {

result<stream_argument> find_stream(weir_stream* handle, const allocator_object& home) {
  if (handle == nullptr) return stream_argument{nullptr, home.legacy};
  return find_stream(handle, home.legacy.device());
}

result<std::shared_ptr<allocator_object>> make_allocator(const device_argument& where,
                                                         const options& settings) {
  WEIR_TRY_VALUE(memory, caching_allocator::create(where.which, settings));
  WEIR_TRY_VALUE(legacy, stream_ref::legacy(where.which).identified());
  return std::make_shared<allocator_object>(where.machine, std::move(memory), legacy);
}

bool lacks_memory(errc code) noexcept {
  return code == errc::out_of_memory || code == errc::limit_exceeded;
}

last_word last_word_of(allocator_object& object, weir_allocator* handle) {
  const std::lock_guard lock{object.mutex};
  return {handle, object.handler, object.handler_context};
}

namespace {

result<void> create_allocator(weir_runtime* runtime, std::int32_t device, const options& initial,
                              const char* list, weir_allocator** into) {
  WEIR_NEEDS(into);
  WEIR_TRY_VALUE(settings, read_options(initial, list));
  WEIR_TRY_VALUE(where, find_device(runtime, device));
  WEIR_TRY_VALUE(made, make_allocator(where, settings));
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_allocator>(std::move(made)));
  *into = handle;
  return {};
}

// The path without a lock. What it cannot do, and whatever is wrong, is the slow one's.

/// Calls `action(allocator, stream)` with what the handles stand for; `otherwise` if it is not
/// found.
template <class Answer, class Action>
[[nodiscard, gnu::always_inline]] inline Answer quickly(weir_allocator* handle, weir_stream* stream,
                                                        Answer otherwise,
                                                        const Action& action) noexcept {
  table::reader* const mine = look::reader();
  if (mine == nullptr) [[unlikely]]
    return otherwise;
  const look here{*mine};
  const allocator_object* const found = peek(here, handle);
  if (found == nullptr) [[unlikely]]
    return otherwise;
  if (stream == nullptr) return action(*found->inside, found->legacy);
  const stream_object* const named = peek(here, stream);
  if (named == nullptr) [[unlikely]]
    return otherwise;
  return action(*found->inside, named->ref);
}

[[gnu::noinline]] weir_error allocate_slowly(weir_allocator* handle, std::uint64_t size,
                                             bytes alignment, weir_stream* stream, void** pointer) {
  return allocate_or_ask(size, pointer, [&](last_word& asked) -> result<void*> {
    WEIR_TRY_VALUE(from, find(handle));
    WEIR_TRY_VALUE(where, find_stream(stream, *from));
    auto made = from->memory.try_allocate(bytes{size}, where.ref, alignment);
    if (!made) asked = last_word_of(*from, handle);
    return made;
  });
}

[[gnu::noinline]] weir_error deallocate_slowly(weir_allocator* handle, void* pointer,
                                               weir_stream* stream) noexcept {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(to, find(handle));
    WEIR_TRY_VALUE(where, find_stream(stream, *to));
    return to->memory.try_deallocate(pointer, where.ref);
  });
}

constexpr bytes usual_alignment{512};

[[nodiscard]] stream_ref native_ref(const allocator_object& of, void* native) noexcept {
  if (native == nullptr) return of.legacy;
  return {of.legacy.device(), static_cast<CUstream_st*>(native)};
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_allocator_create(weir_runtime* runtime, int32_t device, const char* list,
                                 weir_allocator** allocator) {
  return guarded([&] { return create_allocator(runtime, device, {}, list, allocator); });
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
    WEIR_TRY_VALUE(found, find(allocator));
    if (found->permanent)
      return error{.code = errc::not_permitted, .detail = "this allocator is the process's own"};
    WEIR_TRY(take(allocator));
    return found->memory.close();
  });
}

weir_error weir_allocator_get_device(weir_allocator* allocator, int32_t* device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_NEEDS(device);
    *device = found->legacy.device().id().number();
    return {};
  });
}

// --- Memory -------------------------------------------------------------------------------------

weir_error weir_allocator_allocate(weir_allocator* allocator, uint64_t size, weir_stream* stream,
                                   void** pointer) {
  if (pointer != nullptr) [[likely]] {
    void* const hit = quickly<void*>(allocator, stream, nullptr,
                                     [&](heap::allocator_state& from, const stream_ref& ref) {
                                       return from.allocate_quickly(bytes{size}, ref);
                                     });
    if (hit != nullptr) [[likely]] {
      *pointer = hit;
      return weir_ok;
    }
  }
  return allocate_slowly(allocator, size, usual_alignment, stream, pointer);
}

weir_error weir_allocator_allocate_aligned(weir_allocator* allocator, uint64_t size,
                                           uint64_t alignment, weir_stream* stream,
                                           void** pointer) {
  return allocate_slowly(allocator, size, bytes{alignment}, stream, pointer);
}

weir_error weir_allocator_deallocate(weir_allocator* allocator, void* pointer,
                                     weir_stream* stream) {
  const bool taken =
      quickly(allocator, stream, false, [&](heap::allocator_state& to, const stream_ref& ref) {
        return to.deallocate_quickly(pointer, ref);
      });
  if (taken) [[likely]]
    return weir_ok;
  return deallocate_slowly(allocator, pointer, stream);
}

weir_error weir_allocator_deallocate_sized(weir_allocator* allocator, void* pointer, uint64_t size,
                                           weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(to, find(allocator));
    WEIR_TRY_VALUE(where, find_stream(stream, *to));
    return to->memory.try_deallocate(pointer, bytes{size}, where.ref);
  });
}

weir_error weir_allocator_free(weir_allocator* allocator, void* pointer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(to, find(allocator));
    return to->memory.try_deallocate(pointer);
  });
}

weir_error weir_allocator_record_stream(weir_allocator* allocator, void* pointer,
                                        weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(to, find(allocator));
    WEIR_TRY_VALUE(where, find_stream(stream, *to));
    return to->memory.record_stream(pointer, where.ref);
  });
}

weir_error weir_allocator_allocate_native(weir_allocator* allocator, uint64_t size,
                                          void* native_stream, void** pointer) {
  return allocate_or_ask(size, pointer, [&](last_word& asked) -> result<void*> {
    WEIR_TRY_VALUE(from, find(allocator));
    auto made = from->memory.try_allocate(bytes{size}, native_ref(*from, native_stream));
    if (!made) asked = last_word_of(*from, allocator);
    return made;
  });
}

weir_error weir_allocator_deallocate_native(weir_allocator* allocator, void* pointer,
                                            void* native_stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(to, find(allocator));
    return to->memory.try_deallocate(pointer, native_ref(*to, native_stream));
  });
}

weir_error weir_allocator_record_stream_native(weir_allocator* allocator, void* pointer,
                                               void* native_stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(to, find(allocator));
    return to->memory.record_stream(pointer, native_ref(*to, native_stream));
  });
}

// --- Out of memory ------------------------------------------------------------------------------

weir_error weir_allocator_set_out_of_memory_handler(weir_allocator* allocator,
                                                    weir_out_of_memory_handler handler,
                                                    void* context) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    const std::lock_guard lock{found->mutex};
    found->handler = handler;
    found->handler_context = context;
    return {};
  });
}

weir_error weir_allocator_on_out_of_memory(weir_allocator* allocator,
                                           weir_reclaim_callback callback, void* context,
                                           weir_callback** registration) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_NEEDS(callback);
    WEIR_NEEDS(registration);
    auto object = std::make_shared<callback_object>();
    object->registered = found->memory.on_out_of_memory(
        [callback, context](bytes needed) { return callback(context, needed.count()) != 0; });
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_callback>(std::move(object)));
    *registration = handle;
    return {};
  });
}

weir_error weir_callback_close(weir_callback* registration) {
  return guarded([&]() -> result<void> {
    if (registration == nullptr) return {};
    WEIR_TRY(take(registration));
    return {};
  });
}
}

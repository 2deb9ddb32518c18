// SPDX-License-Identifier: Apache-2.0
// The C ABI's buffers of every kind, and copies between any two places.
#include "capi/buffers.hpp"

#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "capi/block_pools.hpp"
#include "capi/guard.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/buffer/copy.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir { inline namespace v0 { namespace capi { namespace {

result<buffer_argument<device_buffer>> find_device_buffer(weir_buffer* handle) {
  return find_buffer<device_buffer>(
      handle,
      {{.code = errc::not_supported,
        .detail = "only buffers created from an allocator, and plain ones, support this call"}});
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_buffer_create(weir_allocator* allocator, uint64_t size, uint32_t flags,
                              weir_stream* stream, weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(owner, find(allocator));
    WEIR_NEEDS(buffer);
    WEIR_TRY_VALUE(target, find_stream(stream, *owner));
    WEIR_TRY_VALUE(initial, contents_from(flags));
    WEIR_TRY_VALUE(memory, device_buffer::create(owner->memory, bytes{size}, target.ref, initial));
    return hand_out_buffer(owner->machine, target.held, std::move(memory), buffer);
  });
}

weir_error weir_buffer_create_copy(weir_allocator* allocator, const void* data, uint64_t size,
                                   weir_stream* stream, weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(owner, find(allocator));
    WEIR_NEEDS(data);
    WEIR_NEEDS(buffer);
    WEIR_TRY_VALUE(target, find_stream(stream, *owner));
    WEIR_TRY_VALUE(memory, device_buffer::create(owner->memory, bytes{size}, target.ref));
    WEIR_TRY(copy_bytes(memory.data(), data, bytes{size}, target.ref));
    return hand_out_buffer(owner->machine, target.held, std::move(memory), buffer);
  });
}

weir_error weir_buffer_create_pooled(weir_block_pool* pool, uint64_t size, uint32_t flags,
                                     weir_stream* stream, weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(owner, find(pool));
    WEIR_NEEDS(buffer);
    WEIR_TRY_VALUE(target, find_stream(stream, owner->pool().device()));
    WEIR_TRY_VALUE(initial, contents_from(flags));
    WEIR_TRY_VALUE(memory, pooled_memory::create(owner->pool(), bytes{size}, target.ref, initial));
    return hand_out_buffer(owner->machine, target.held, std::move(memory), buffer);
  });
}

weir_error weir_buffer_create_plain(weir_runtime* runtime, int32_t device, uint64_t size,
                                    weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(buffer);
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    WEIR_TRY_VALUE(resource, plain_resource::create(home.device));
    WEIR_TRY_VALUE(memory,
                   device_buffer::create(resource, bytes{size}, stream_ref::legacy(home.device)));
    return hand_out_buffer(home.machine, nullptr, std::move(memory), buffer);
  });
}

weir_error weir_buffer_create_pinned(weir_runtime* runtime, int32_t device, uint64_t size,
                                     weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(buffer);
    if (size == 0)
      return error{{.code = errc::invalid_argument, .detail = "size must be greater than zero"}};
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    WEIR_TRY_VALUE(memory, buffer_object::pinned::create(home.device, bytes{size}, bytes{64}, {}));
    return hand_out_buffer(home.machine, nullptr, std::move(memory), buffer);
  });
}

weir_error weir_buffer_close(weir_buffer* buffer) {
  return guarded([&]() -> result<void> {
    if (buffer == nullptr) return {};
    WEIR_TRY_VALUE(object, take(buffer));
    const auto lock = object->lock_open();
    if (!lock) return lock.error();
    object->is_closed = true;
    object->views.clear();
    return std::visit(
        [](auto& memory) -> result<void> {
          if constexpr (std::is_same_v<decltype(memory), pooled_memory&>)
            return memory.free();
          else
            return memory.close();
        },
        object->memory);
  });
}

weir_error weir_buffer_get_info(weir_buffer* buffer, weir_buffer_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(buffer));
    const auto lock = object->lock_open();
    if (!lock) return lock.error();
    weir_buffer_info known{};
    if (const auto* const pinned = std::get_if<buffer_object::pinned>(&object->memory)) {
      known.kind = weir_buffer_pinned;
      known.size = pinned->size().count();
      known.data = pinned->host();
      known.device_address = pinned->on_device();
      return hand_out(known, info);
    }
    known.kind = std::holds_alternative<buffer_object::managed>(object->memory)
                     ? weir_buffer_managed
                     : weir_buffer_device;
    std::visit(
        [&](const auto& memory) {
          if constexpr (!std::is_same_v<decltype(memory), const buffer_object::pinned&>) {
            known.size = memory.size().count();
            known.data = memory.data();
            known.device_address = reinterpret_cast<std::uintptr_t>(memory.data());
          }
        },
        object->memory);
    return hand_out(known, info);
  });
}

weir_error weir_buffer_record_stream(weir_buffer* buffer, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(buffer));
    const auto lock = object->lock_open();
    if (!lock) return lock.error();
    const auto record = [&](auto& memory, weir::device home) -> result<void> {
      WEIR_TRY_VALUE(target, find_stream(stream, home));
      return memory.record_stream(target.ref);
    };
    if (auto* const owned = std::get_if<device_buffer>(&object->memory))
      return record(*owned, owned->device());
    if (auto* const pooled = std::get_if<pooled_memory>(&object->memory))
      return record(*pooled, pooled->stream().device());
    if (std::holds_alternative<buffer_object::managed>(object->memory))
      return error{{.code = errc::not_supported,
                    .detail = "a managed buffer records no streams; call weir_buffer_use_on() "
                              "before each piece of work"}};
    return error{{.code = errc::not_supported,
                  .detail = "pinned buffers are not stream-ordered; wait for the stream before "
                            "closing them"}};
  });
}

weir_error weir_buffer_join(weir_buffer* buffer, weir_stream* other) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_device_buffer(buffer));
    WEIR_TRY_VALUE(target, find_stream(other, argument.memory->device()));
    return argument.memory->join(target.ref);
  });
}

// --- Device buffers -----------------------------------------------------------------------------

weir_error weir_buffer_resize(weir_buffer* buffer, uint64_t size) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_device_buffer(buffer));
    return argument.memory->resize(bytes{size});
  });
}

weir_error weir_buffer_hand_over(weir_buffer* buffer, weir_stream* next) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_device_buffer(buffer));
    WEIR_TRY_VALUE(target, find_stream(next, argument.memory->device()));
    WEIR_TRY(argument.memory->hand_over(target.ref));
    argument.object->stream = target.held;
    return {};
  });
}

// --- Copies -------------------------------------------------------------------------------------

weir_error weir_copy(void* to, const void* from, uint64_t size, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(target, find(stream));
    return copy_bytes(to, from, bytes{size}, target->ref);
  });
}

weir_error weir_fill(void* to, uint8_t value, uint64_t size, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(target, find(stream));
    return fill_bytes(to, value, bytes{size}, target->ref);
  });
}
}

// The C ABI's buffers, and copies between any two places.
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/host_memory.hpp"
#include "weir/buffer/unified_buffer.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir::inline v0::capi {

/// One of the three kinds of memory, with an owner. Each is one thread's at a time, hence the lock.
struct buffer_object {
  using managed = weir::detail::managed_block;
  using pinned = weir::detail::mapped_block;

  std::shared_ptr<runtime> machine;
  std::mutex mutex;
  std::shared_ptr<stream_object> stream;  // what a device buffer is freed on, if it has a handle
  std::variant<device_buffer, managed, pinned> memory;
  std::vector<weir::detail::view_hold> views;  // of managed memory: the host has it
};
WEIR_HANDLE_KIND(buffer)

namespace {

/// A buffer of the kind that the call is for, locked.
template <class Kind>
struct buffer_argument {
  std::shared_ptr<buffer_object> object;
  std::unique_lock<std::mutex> lock;
  Kind* memory;
};

template <class Kind>
result<buffer_argument<Kind>> find_buffer(weir_buffer* handle) {
  WEIR_TRY_VALUE(found, find(handle));
  std::unique_lock lock{found->mutex};
  Kind* const memory = std::get_if<Kind>(&found->memory);
  if (memory == nullptr) {
    return error{.code = errc::not_supported,
                 .detail = std::is_same_v<Kind, device_buffer> ? "this is no device buffer"
                                                               : "this is no managed buffer"};
  }
  return buffer_argument<Kind>{found, std::move(lock), memory};
}

template <class Kind>
result<void> hand_out_buffer(std::shared_ptr<runtime> machine,
                             std::shared_ptr<stream_object> stream, Kind memory,
                             weir_buffer** into) {
  auto object = std::make_shared<buffer_object>();
  object->machine = std::move(machine);
  object->stream = std::move(stream);
  object->memory = std::move(memory);
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_buffer>(std::move(object)));
  *into = handle;
  return {};
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_buffer_create(weir_allocator* allocator, uint64_t size, weir_stream* stream,
                              weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(from, find(allocator));
    WEIR_NEEDS(buffer);
    WEIR_TRY_VALUE(where, find_stream(stream, *from));
    WEIR_TRY_VALUE(made, device_buffer::create(from->memory, bytes{size}, where.ref));
    return hand_out_buffer(from->machine, where.held, std::move(made), buffer);
  });
}

weir_error weir_buffer_create_plain(weir_runtime* runtime, int32_t device, uint64_t size,
                                    weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(buffer);
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    WEIR_TRY_VALUE(memory, plain_resource::create(where.which));
    WEIR_TRY_VALUE(made,
                   device_buffer::create(memory, bytes{size}, stream_ref::legacy(where.which)));
    return hand_out_buffer(where.machine, nullptr, std::move(made), buffer);
  });
}

weir_error weir_buffer_create_managed(weir_runtime* runtime, int32_t device, uint64_t size,
                                      weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(buffer);
    if (size == 0) return error{.code = errc::invalid_argument, .detail = "the size is zero"};
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    WEIR_TRY_VALUE(
        made, buffer_object::managed::create(bytes{size}, bytes{256}, nullptr,
                                             stream_ref::legacy(where.which), attachment::global));
    return hand_out_buffer(where.machine, nullptr, std::move(made), buffer);
  });
}

weir_error weir_buffer_create_pinned(weir_runtime* runtime, int32_t device, uint64_t size,
                                     weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(buffer);
    if (size == 0) return error{.code = errc::invalid_argument, .detail = "the size is zero"};
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    WEIR_TRY_VALUE(made, buffer_object::pinned::create(where.which, bytes{size}, bytes{64}, {}));
    return hand_out_buffer(where.machine, nullptr, std::move(made), buffer);
  });
}

weir_error weir_buffer_close(weir_buffer* buffer) {
  return guarded([&]() -> result<void> {
    if (buffer == nullptr) return {};
    WEIR_TRY_VALUE(closed, take(buffer));
    const std::lock_guard lock{closed->mutex};
    closed->views.clear();
    return std::visit([](auto& memory) { return memory.close(); }, closed->memory);
  });
}

weir_error weir_buffer_get_info(weir_buffer* buffer, weir_buffer_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(buffer));
    const std::lock_guard lock{found->mutex};
    weir_buffer_info known{};
    if (const auto* const memory = std::get_if<device_buffer>(&found->memory)) {
      known.kind = weir_buffer_device;
      known.size = memory->size().count();
      known.data = memory->data();
      known.device_address = reinterpret_cast<std::uintptr_t>(memory->data());
    } else if (const auto* const seen = std::get_if<buffer_object::managed>(&found->memory)) {
      known.kind = weir_buffer_managed;
      known.size = seen->size().count();
      known.data = seen->data();
      known.device_address = reinterpret_cast<std::uintptr_t>(seen->data());
    } else if (const auto* const host = std::get_if<buffer_object::pinned>(&found->memory)) {
      known.kind = weir_buffer_pinned;
      known.size = host->size().count();
      known.data = host->host();
      known.device_address = host->on_device();
    }
    return hand_out(known, info);
  });
}

// --- Device buffers -----------------------------------------------------------------------------

weir_error weir_buffer_resize(weir_buffer* buffer, uint64_t size) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_buffer<device_buffer>(buffer));
    return found.memory->resize(bytes{size});
  });
}

weir_error weir_buffer_hand_over(weir_buffer* buffer, weir_stream* next) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_buffer<device_buffer>(buffer));
    WEIR_TRY_VALUE(where, find_stream(next, found.memory->device()));
    WEIR_TRY(found.memory->hand_over(where.ref));
    found.object->stream = where.held;
    return {};
  });
}

weir_error weir_buffer_join(weir_buffer* buffer, weir_stream* other) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_buffer<device_buffer>(buffer));
    WEIR_TRY_VALUE(where, find_stream(other, found.memory->device()));
    return found.memory->join(where.ref);
  });
}

// --- Managed buffers ----------------------------------------------------------------------------

weir_error weir_buffer_use_on(weir_buffer* buffer, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_buffer<buffer_object::managed>(buffer));
    WEIR_TRY_VALUE(where, find_stream(stream, found.memory->device()));
    return found.memory->use_on(where.ref);
  });
}

weir_error weir_buffer_begin_host(weir_buffer* buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_buffer<buffer_object::managed>(buffer));
    auto& views = found.object->views;
    views.reserve(views.size() + 1);
    WEIR_TRY_VALUE(view, found.memory->view());
    views.push_back(std::move(view));
    return {};
  });
}

weir_error weir_buffer_end_host(weir_buffer* buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_buffer<buffer_object::managed>(buffer));
    auto& views = found.object->views;
    if (views.empty())
      return error{.code = errc::invalid_argument, .detail = "the host does not have the buffer"};
    views.pop_back();
    return {};
  });
}

weir_error weir_buffer_prefetch(weir_buffer* buffer, int32_t device, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_buffer<buffer_object::managed>(buffer));
    WEIR_TRY_VALUE(where, find_stream(stream, found.memory->device()));
    const buffer_object::managed::part all{.offset = {}, .size = found.memory->size()};
    if (device == -1) return found.memory->prefetch(all, managed_place::host(), where.ref);
    WEIR_TRY_VALUE(to, found.object->machine->device(device_id{device}));
    return found.memory->prefetch(all, managed_place{to}, where.ref);
  });
}

// --- Copies -------------------------------------------------------------------------------------

weir_error weir_copy(void* to, const void* from, uint64_t size, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(where, find(stream));
    return copy_bytes(to, from, bytes{size}, where->ref);
  });
}

weir_error weir_fill(void* to, uint8_t value, uint64_t size, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(where, find(stream));
    return fill_bytes(to, value, bytes{size}, where->ref);
  });
}
}

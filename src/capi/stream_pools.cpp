// The C ABI's pools of the driver.
#include <cstring>
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/pool/stream_pool.hpp"

namespace weir::inline v0::capi {
namespace {

constexpr std::uint32_t stream_pool_flags =
    weir_stream_pool_posix_descriptor | weir_stream_pool_no_event_dependencies |
    weir_stream_pool_no_opportunistic | weir_stream_pool_no_internal_dependencies;

result<stream_pool_config> config_from(const weir_stream_pool_config& wanted) {
  if ((wanted.flags & ~stream_pool_flags) != 0)
    return error{.code = errc::invalid_argument, .detail = "a flag is unknown"};
  const auto has = [&](std::uint32_t flag) { return (wanted.flags & flag) != 0; };
  stream_pool_config known;
  known.initial = bytes{wanted.initial};
  known.max = bytes{wanted.max};
  known.threshold = bytes{wanted.threshold};
  if (has(weir_stream_pool_posix_descriptor)) known.handles = stream_pool_handles::posix_descriptor;
  known.reuse_follow_event_dependencies = !has(weir_stream_pool_no_event_dependencies);
  known.reuse_opportunistic = !has(weir_stream_pool_no_opportunistic);
  known.reuse_internal_dependencies = !has(weir_stream_pool_no_internal_dependencies);
  return known;
}

result<void> hand_out_stream_pool(std::shared_ptr<runtime> machine, stream_pool made,
                                  weir_stream_pool** into) {
  auto object =
      std::make_shared<stream_pool_object>(stream_pool_object{std::move(machine), std::move(made)});
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_stream_pool>(std::move(object)));
  *into = handle;
  return {};
}

result<stream_pool_attribute> attribute_from(std::int32_t number) {
  if (number < weir_stream_pool_reuse_follow_event_dependencies ||
      number > weir_stream_pool_used_high)
    return error{.code = errc::invalid_argument, .detail = "there is no such attribute"};
  return static_cast<stream_pool_attribute>(number);
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_stream_pool_create(weir_runtime* runtime, int32_t device,
                                   const weir_stream_pool_config* config, weir_stream_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(pool);
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    const weir_stream_pool_config initial = WEIR_STREAM_POOL_CONFIG_INIT;
    WEIR_TRY_VALUE(given, take_in(config, initial));
    WEIR_TRY_VALUE(wanted, config_from(given));
    WEIR_TRY_VALUE(made, stream_pool::create(where.which, wanted));
    return hand_out_stream_pool(where.machine, std::move(made), pool);
  });
}

weir_error weir_stream_pool_open_default(weir_runtime* runtime, int32_t device,
                                         weir_stream_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(pool);
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    WEIR_TRY_VALUE(made, stream_pool::default_of(where.which));
    return hand_out_stream_pool(where.machine, std::move(made), pool);
  });
}

weir_error weir_stream_pool_import(weir_runtime* runtime, int32_t device, int32_t descriptor,
                                   weir_stream_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(pool);
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    WEIR_TRY_VALUE(made, stream_pool::import_descriptor(where.which, descriptor));
    return hand_out_stream_pool(where.machine, std::move(made), pool);
  });
}

weir_error weir_stream_pool_close(weir_stream_pool* pool, uint64_t* remaining) {
  return guarded([&]() -> result<void> {
    if (pool == nullptr) return {};
    WEIR_TRY_VALUE(closed, take(pool));
    if (closed->pool.is_default()) {
      if (remaining != nullptr) *remaining = 0;
      return {};
    }
    WEIR_TRY_VALUE(left, closed->pool.close());
    if (remaining != nullptr) *remaining = left.size.count();
    return {};
  });
}

weir_error weir_stream_pool_allocate(weir_stream_pool* pool, uint64_t size, uint64_t alignment,
                                     weir_stream* stream, void** pointer) {
  return allocate_or_ask(size, pointer, [&](last_word&) -> result<void*> {
    WEIR_TRY_VALUE(from, find(pool));
    WEIR_TRY_VALUE(where, find_stream(stream, from->pool.device()));
    return from->pool.try_allocate(bytes{size}, where.ref, bytes{alignment == 0 ? 256 : alignment});
  });
}

weir_error weir_stream_pool_deallocate(weir_stream_pool* pool, void* pointer, uint64_t size,
                                       weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(to, find(pool));
    WEIR_TRY_VALUE(where, find_stream(stream, to->pool.device()));
    return to->pool.try_deallocate(pointer, bytes{size}, where.ref);
  });
}

weir_error weir_stream_pool_get_native(weir_stream_pool* pool, void** native) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_NEEDS(native);
    *native = found->pool.handle();
    return {};
  });
}

weir_error weir_stream_pool_get_usage(weir_stream_pool* pool, weir_stream_pool_usage* usage) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_TRY(check_size(usage, "usage"));
    WEIR_TRY_VALUE(now, found->pool.usage());
    weir_stream_pool_usage known{};
    known.reserved = {now.reserved.count(), now.reserved_high.count()};
    known.used = {now.used.count(), now.used_high.count()};
    known.allocations = {now.active_allocations, now.peak_allocations};
    known.allocated = now.active_bytes.count();
    return hand_out(known, usage);
  });
}

weir_error weir_stream_pool_get_attribute(weir_stream_pool* pool, int32_t attribute,
                                          uint64_t* value) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_NEEDS(value);
    WEIR_TRY_VALUE(which, attribute_from(attribute));
    WEIR_TRY_VALUE(now, found->pool.attribute(which));
    *value = now;
    return {};
  });
}

weir_error weir_stream_pool_set_attribute(weir_stream_pool* pool, int32_t attribute,
                                          uint64_t value) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_TRY_VALUE(which, attribute_from(attribute));
    return found->pool.set_attribute(which, value);
  });
}

weir_error weir_stream_pool_reset_peaks(weir_stream_pool* pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    return found->pool.reset_highs();
  });
}

weir_error weir_stream_pool_trim(weir_stream_pool* pool, uint64_t keep, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_TRY_VALUE(went, found->pool.trim(bytes{keep}));
    if (released != nullptr) *released = went.count();
    return {};
  });
}

weir_error weir_stream_pool_set_peer(weir_stream_pool* pool, int32_t device, int32_t on) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_TRY_VALUE(other, found->machine->device(device_id{device}));
    return on != 0 ? found->pool.enable_peer(other) : found->pool.disable_peer(other);
  });
}

// --- Other processes ----------------------------------------------------------------------------

weir_error weir_stream_pool_export(weir_stream_pool* pool, int32_t* descriptor) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_NEEDS(descriptor);
    WEIR_TRY_VALUE(made, found->pool.export_descriptor());
    *descriptor = made.release();
    return {};
  });
}

weir_error weir_stream_pool_export_pointer(weir_stream_pool* pool, const void* pointer,
                                           uint8_t into[64]) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_NEEDS(into);
    WEIR_TRY_VALUE(made, found->pool.export_pointer(pointer));
    static_assert(sizeof(made.data) == 64);
    std::memcpy(into, made.data.data(), sizeof(made.data));
    return {};
  });
}

weir_error weir_stream_pool_import_pointer(weir_stream_pool* pool, const uint8_t from[64],
                                           weir_stream* stream, void** pointer, uint64_t* size) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_NEEDS(from);
    WEIR_NEEDS(pointer);
    WEIR_NEEDS(size);
    WEIR_TRY_VALUE(where, find_stream(stream, found->pool.device()));
    stream_pool_pointer told;
    std::memcpy(told.data.data(), from, sizeof(told.data));
    WEIR_TRY_VALUE(made, found->pool.import_pointer(told, where.ref));
    *size = made.size().count();
    *pointer = made.release();
    return {};
  });
}
}

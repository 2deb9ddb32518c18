// SPDX-License-Identifier: Apache-2.0
// The C ABI's pools of the driver.
#include <cstring>
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/pool/stream_pool.hpp"

namespace weir { inline namespace v0 { namespace capi { namespace {

constexpr std::uint32_t stream_pool_flags =
    weir_stream_pool_posix_descriptor | weir_stream_pool_no_event_dependencies |
    weir_stream_pool_no_opportunistic | weir_stream_pool_no_internal_dependencies;

result<stream_pool_config> config_from(const weir_stream_pool_config& from) {
  WEIR_TRY(check_flags(from.flags, stream_pool_flags));
  const auto has = [&](std::uint32_t flag) { return (from.flags & flag) != 0; };
  stream_pool_config known;
  known.initial = bytes{from.initial};
  known.max = bytes{from.max};
  known.threshold = bytes{from.threshold};
  if (has(weir_stream_pool_posix_descriptor)) known.handles = stream_pool_handles::posix_descriptor;
  known.reuse_follow_event_dependencies = !has(weir_stream_pool_no_event_dependencies);
  known.reuse_opportunistic = !has(weir_stream_pool_no_opportunistic);
  known.reuse_internal_dependencies = !has(weir_stream_pool_no_internal_dependencies);
  return known;
}

result<void> hand_out_stream_pool(std::shared_ptr<runtime> machine, stream_pool pool,
                                  weir_stream_pool** into) {
  auto object =
      std::make_shared<stream_pool_object>(stream_pool_object{std::move(machine), std::move(pool)});
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_stream_pool>(std::move(object)));
  *into = handle;
  return {};
}

result<stream_pool_attribute> attribute_from(std::int32_t number) {
  if (number < weir_stream_pool_reuse_follow_event_dependencies ||
      number > weir_stream_pool_used_peak)
    return error{{.code = errc::invalid_argument, .detail = "attribute: unknown value"}};
  return static_cast<stream_pool_attribute>(number);
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_stream_pool_create(weir_runtime* runtime, int32_t device,
                                   const weir_stream_pool_config* config, weir_stream_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(pool);
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    const weir_stream_pool_config initial = WEIR_STREAM_POOL_CONFIG_INIT;
    WEIR_TRY_VALUE(known, take_in(config, initial));
    WEIR_TRY_VALUE(settings, config_from(known));
    WEIR_TRY_VALUE(created, stream_pool::create(home.device, settings));
    return hand_out_stream_pool(home.machine, std::move(created), pool);
  });
}

weir_error weir_stream_pool_config_validate(const weir_stream_pool_config* config) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(config);
    const weir_stream_pool_config initial = WEIR_STREAM_POOL_CONFIG_INIT;
    WEIR_TRY_VALUE(known, take_in(config, initial));
    WEIR_TRY_VALUE(settings, config_from(known));
    return settings.validate();
  });
}

weir_error weir_stream_pool_get_device(weir_stream_pool* pool, int32_t* device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(device);
    *device = object->pool.device().id().number();
    return {};
  });
}

weir_error weir_stream_pool_open_default(weir_runtime* runtime, int32_t device,
                                         weir_stream_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(pool);
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    WEIR_TRY_VALUE(standard, stream_pool::default_of(home.device));
    return hand_out_stream_pool(home.machine, std::move(standard), pool);
  });
}

weir_error weir_stream_pool_import(weir_runtime* runtime, int32_t device, int32_t descriptor,
                                   weir_stream_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(pool);
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    WEIR_TRY_VALUE(imported, stream_pool::import_descriptor(home.device, descriptor));
    return hand_out_stream_pool(home.machine, std::move(imported), pool);
  });
}

weir_error weir_stream_pool_close(weir_stream_pool* pool, uint64_t* remaining) {
  return guarded([&]() -> result<void> {
    if (pool == nullptr) return {};
    WEIR_TRY_VALUE(object, take(pool));
    if (object->pool.is_default()) {
      if (remaining != nullptr) *remaining = 0;
      return {};
    }
    WEIR_TRY_VALUE(remains, object->pool.close());
    if (remaining != nullptr) *remaining = remains.size.count();
    return {};
  });
}

weir_error weir_stream_pool_allocate(weir_stream_pool* pool, uint64_t size, uint64_t alignment,
                                     weir_stream* stream, void** pointer) {
  return allocate_or_ask(size, pointer, [&](oom_handler&) -> result<void*> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool.device()));
    return object->pool.try_allocate(bytes{size}, target.ref,
                                     bytes{alignment == 0 ? 256 : alignment});
  });
}

weir_error weir_stream_pool_deallocate(weir_stream_pool* pool, void* pointer, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool.device()));
    return object->pool.try_deallocate(pointer, target.ref);
  });
}

weir_error weir_stream_pool_deallocate_sized(weir_stream_pool* pool, void* pointer, uint64_t size,
                                             weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool.device()));
    return object->pool.try_deallocate(pointer, bytes{size}, target.ref);
  });
}

weir_error weir_stream_pool_record_stream(weir_stream_pool* pool, void* pointer,
                                          weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool.device()));
    return object->pool.record_stream(pointer, target.ref);
  });
}

weir_error weir_stream_pool_get_native(weir_stream_pool* pool, void** native) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(native);
    *native = object->pool.handle();
    return {};
  });
}

weir_error weir_stream_pool_get_stats(weir_stream_pool* pool, weir_stream_pool_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY(check_size(stats, "stats"));
    WEIR_TRY_VALUE(now, object->pool.stats());
    weir_stream_pool_stats known{};
    known.reserved = {now.reserved.count(), now.reserved_peak.count()};
    known.used = {now.used.count(), now.used_peak.count()};
    known.allocations = {now.active_allocations, now.active_allocations_peak};
    known.allocated = now.active_bytes.count();
    return hand_out(known, stats);
  });
}

weir_error weir_stream_pool_get_attribute(weir_stream_pool* pool, int32_t attribute,
                                          uint64_t* value) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(value);
    WEIR_TRY_VALUE(known, attribute_from(attribute));
    WEIR_TRY_VALUE(now, object->pool.attribute(known));
    *value = now;
    return {};
  });
}

weir_error weir_stream_pool_set_attribute(weir_stream_pool* pool, int32_t attribute,
                                          uint64_t value) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(known, attribute_from(attribute));
    return object->pool.set_attribute(known, value);
  });
}

weir_error weir_stream_pool_reset_peaks(weir_stream_pool* pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return object->pool.reset_peaks();
  });
}

weir_error weir_stream_pool_trim(weir_stream_pool* pool, uint64_t keep, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    return write_size(object->pool.trim(bytes{keep}), released);
  });
}

weir_error weir_stream_pool_set_peer(weir_stream_pool* pool, int32_t device, int32_t on) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(other, object->machine->device(device_id{device}));
    return on != 0 ? object->pool.enable_peer(other) : object->pool.disable_peer(other);
  });
}

weir_error weir_stream_pool_get_peer(weir_stream_pool* pool, int32_t device, int32_t* rights) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(rights);
    WEIR_TRY_VALUE(peer, object->machine->device(device_id{device}));
    WEIR_TRY_VALUE(access, object->pool.peer_access(peer));
    *rights = static_cast<std::int32_t>(access);
    return {};
  });
}

// --- Other processes ----------------------------------------------------------------------------

weir_error weir_stream_pool_export(weir_stream_pool* pool, int32_t* descriptor) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(descriptor);
    WEIR_TRY_VALUE(exported, object->pool.export_descriptor());
    *descriptor = exported.release();
    return {};
  });
}

weir_error weir_stream_pool_export_pointer(weir_stream_pool* pool, const void* pointer,
                                           uint8_t into[64]) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(into);
    WEIR_TRY_VALUE(exported, object->pool.export_pointer(pointer));
    static_assert(sizeof(exported.data) == 64);
    std::memcpy(into, exported.data.data(), sizeof(exported.data));
    return {};
  });
}

weir_error weir_stream_pool_import_pointer(weir_stream_pool* pool, const uint8_t from[64],
                                           weir_stream* stream, void** pointer, uint64_t* size) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(from);
    WEIR_NEEDS(pointer);
    WEIR_NEEDS(size);
    WEIR_TRY_VALUE(target, find_stream(stream, object->pool.device()));
    stream_pool_pointer exported;
    std::memcpy(exported.data.data(), from, sizeof(exported.data));
    WEIR_TRY_VALUE(memory, object->pool.import_pointer(exported, target.ref));
    *size = memory.size().count();
    *pointer = memory.release();
    return {};
  });
}
}

// SPDX-License-Identifier: Apache-2.0
// Requests and frees of the hooks, and the stream that a thread's requests are for.
#include "capi/plugin_memory.hpp"

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "capi/guard.hpp"
#include "capi/thread_locals.hpp"
#include "weir/base/error.hpp"
#include "weir_plugins.h"

namespace weir { inline namespace v0 { namespace capi {
namespace {

/// The stream that the thread named for the device; null without thread locals, or for a device
/// beyond their table.
std::optional<stream_ref>* named_stream(thread_locals* locals, std::int32_t device) noexcept {
  const auto index = static_cast<std::size_t>(device);
  return locals == nullptr || device < 0 || index >= thread_locals::most_named
             ? nullptr
             : &locals->named_streams[index];
}

weir_error allocate_from_default(std::int32_t device, std::size_t size, plugin_stream stream,
                                 void** pointer) {
  return allocate_or_ask(size, pointer, [&](oom_handler& handler) -> result<void*> {
    WEIR_TRY_VALUE(source, default_allocator_of(device));
    auto memory = source.object->memory.try_allocate(bytes{size}, stream.on(*source.object));
    if (!memory) handler = oom_handler_of(*source.object, source.handle);
    return memory;
  });
}

[[noreturn]] void throw_failure_of(weir_error code, std::int32_t device, std::size_t size,
                                   plugin_stream stream) {
  error reason{{.code = static_cast<errc>(code),
                .native = weir_last_error_native(),
                .requested = bytes{size}}};
  const default_allocator source = existing_allocator_of(device);
  if (lacks_memory(reason.code()) && source.object != nullptr) {
    const stream_ref ref = stream.on(*source.object);
    throw out_of_memory{std::move(reason), source.object->memory.explain(bytes{size}, ref).text()};
  }
  reason.set_detail(weir_last_error_message());
  raise(std::move(reason));
}

}  // namespace

stream_ref plugin_stream::on(const allocator_object& home) const noexcept {
  const weir::device device = home.legacy.device();
  if (named_by_thread) {
    const auto* const set = named_stream(existing_thread_locals(), device.id().number());
    return set != nullptr && set->has_value() && (*set)->device() == device ? **set : home.legacy;
  }
  if (native == nullptr) return home.legacy;
  return {device, static_cast<CUstream_st*>(native)};
}

void* plugin_allocate(std::int32_t device, std::size_t size, plugin_stream stream) {
  void* pointer = nullptr;
  static_cast<void>(allocate_from_default(device, size, stream, &pointer));
  return pointer;
}

void* plugin_allocate_or_throw(std::int32_t device, std::size_t size, plugin_stream stream) {
  void* pointer = nullptr;
  const weir_error code = allocate_from_default(device, size, stream, &pointer);
  if (code != weir_ok) throw_failure_of(code, device, size, stream);
  return pointer;
}

void report_unless_gone(const result<void>& outcome) noexcept {
  if (!outcome && outcome.code() != errc::driver_gone) report_error(outcome.error());
}

void plugin_free(void* pointer, std::int32_t device) noexcept {
  if (pointer == nullptr) return;
  static_cast<void>(guarded([&]() -> result<void> {
    report_unless_gone(ask_owner(device, [&](const default_allocator& each) {
      return each.object->memory.try_deallocate(pointer);
    }));
    return {};
  }));
}

std::int32_t plugin_current_device() noexcept {
  const std::optional<device> first = first_default_device();
  if (!first) return 0;
  driver::CUdevice current = 0;
  return first->driver().ctx_get_device(&current) == driver::CUDA_SUCCESS ? current : 0;
}

std::int32_t plugin_requested_device() noexcept {
  static_cast<void>(guarded([] { return open_default_runtime_if_closed(); }));
  return plugin_current_device();
}

void plugin_empty_caches() noexcept {
  static_cast<void>(guarded([]() -> result<void> {
    any_default_allocator(0, [](const default_allocator& each) {
      const auto released = each.object->memory.empty_cache();
      if (!released) report_unless_gone(released.error());
      return false;
    });
    return {};
  }));
}

}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_plugin_set_stream(int32_t device, void* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, default_allocator_of(device));
    thread_locals* const locals = own_thread_locals();
    if (locals == nullptr)
      return error{{.code = errc::no_host_memory, .detail = "for a thread's streams"}};
    auto* const set = named_stream(locals, device);
    if (set == nullptr)
      return error{{.code = errc::limit_exceeded,
                    .detail = "thread streams are supported on the first 64 devices only"}};
    if (stream == nullptr) {
      set->reset();
      return {};
    }
    const stream_ref bare{home.object->legacy.device(), static_cast<CUstream_st*>(stream)};
    WEIR_TRY(bare.validate());
    WEIR_TRY_VALUE(ref, bare.identified());
    set->emplace(ref);
    return {};
  });
}

weir_error weir_plugin_release_stream(int32_t device, void* stream) {
  return guarded([&]() -> result<void> {
    const default_allocator home = existing_allocator_of(device);
    if (home.object == nullptr) return {};
    const stream_ref released = plugin_stream{.native = stream}.on(*home.object);
    WEIR_TRY(home.object->memory.release_stream(released));
    if (auto* const set = named_stream(existing_thread_locals(), device);
        set != nullptr && *set == released)
      set->reset();
    return {};
  });
}

weir_error weir_plugin_get_memory(int32_t device, size_t* free, size_t* total) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, default_allocator_of(device));
    WEIR_TRY_VALUE(now, home.object->legacy.device().memory_info());
    if (free != nullptr) *free = now.free.count() + home.object->memory.stats().cached.count();
    if (total != nullptr) *total = now.total.count();
    return {};
  });
}

weir_error weir_plugin_base_range(const void* pointer, void** base, size_t* size) {
  return guarded([&]() -> result<void> {
    return ask_owner(plugin_current_device(), [&](const default_allocator& each) -> result<void> {
      WEIR_TRY_VALUE(block, each.object->memory.block_at(pointer));
      if (base != nullptr) *base = reinterpret_cast<void*>(block.address);
      if (size != nullptr) *size = block.size.count();
      return {};
    });
  });
}
}

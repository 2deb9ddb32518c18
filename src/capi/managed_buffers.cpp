// SPDX-License-Identifier: Apache-2.0
// The C ABI's managed buffers: who may use them, where they are, and what was advised.
#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "capi/buffers.hpp"
#include "capi/guard.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/buffer/managed_memory.hpp"

namespace weir { inline namespace v0 { namespace capi { namespace {

using managed_argument = buffer_argument<buffer_object::managed>;

static_assert(static_cast<int>(attachment::global) == weir_attach_global &&
              static_cast<int>(attachment::host) == weir_attach_host &&
              static_cast<int>(attachment::single) == weir_attach_single);

result<managed_argument> find_managed_buffer(weir_buffer* handle) {
  return find_buffer<buffer_object::managed>(
      handle, {{.code = errc::not_supported, .detail = "only managed buffers support this call"}});
}

result<attachment> attachment_from(std::int32_t number) {
  if (number < weir_attach_global || number > weir_attach_single)
    return error{{.code = errc::invalid_argument, .detail = "attachment: unknown value"}};
  return static_cast<attachment>(number);
}

result<managed_place> place_from(std::int32_t number, const runtime& machine) {
  if (number == WEIR_PLACE_NONE)
    return error{{.code = errc::invalid_argument, .detail = "location is missing"}};
  if (number == WEIR_PLACE_HOST) return managed_place::host();
  if (number < WEIR_PLACE_HOST) return managed_place::host_node(-2 - number);
  WEIR_TRY_VALUE(device, machine.device(device_id{number}));
  return managed_place{device};
}

std::int32_t number_of(const std::optional<managed_place>& place) noexcept {
  if (!place) return WEIR_PLACE_NONE;
  if (place->is_host()) return WEIR_PLACE_HOST;
  return place->is_host_node() ? WEIR_PLACE_HOST_NODE(place->number()) : place->number();
}

/// The bytes that a call is about; a size of 0 is up to the end.
result<buffer_object::managed::part> range_of(const managed_argument& argument,
                                              std::uint64_t offset, std::uint64_t size) {
  const std::uint64_t end = argument.memory->size().count();
  if (offset >= end || size > end - offset)
    return error{{.code = errc::invalid_argument, .detail = "the range exceeds the buffer"}};
  return buffer_object::managed::part{.offset = bytes{offset},
                                      .size = bytes{size == 0 ? end - offset : size}};
}

/// `data` may be null.
result<void> create_managed(weir_runtime* runtime, std::int32_t device, const void* data,
                            std::uint64_t size, contents initial, std::int32_t attachment,
                            weir_stream* stream, weir_buffer** into) {
  if (into == nullptr) return missing("buffer");
  if (size == 0)
    return error{{.code = errc::invalid_argument, .detail = "size must be greater than zero"}};
  WEIR_TRY_VALUE(mode, attachment_from(attachment));
  WEIR_TRY_VALUE(home, find_device(runtime, device));
  WEIR_TRY_VALUE(target, find_stream(stream, home.device));
  if (target.ref.device() != home.device)
    return error{{.code = errc::bad_stream, .detail = "the stream belongs to another device"}};
  WEIR_TRY_VALUE(memory, buffer_object::managed::create(bytes{size}, default_alignment, initial,
                                                        data, target.ref, mode));
  return hand_out_buffer(home.machine, nullptr, std::move(memory), into);
}

/// The host has the buffer from now on, if `view(memory)` says so.
template <class View>
result<void> begin_host(weir_buffer* buffer, const View& view) {
  WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
  auto& views = argument.object->views;
  views.reserve(views.size() + 1);
  WEIR_TRY_VALUE(hold, view(*argument.memory));
  views.push_back(std::move(hold));
  return {};
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_buffer_create_managed(weir_runtime* runtime, int32_t device, uint64_t size,
                                      uint32_t flags, int32_t attachment, weir_stream* stream,
                                      weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(initial, contents_from(flags));
    return create_managed(runtime, device, nullptr, size, initial, attachment, stream, buffer);
  });
}

weir_error weir_buffer_create_managed_copy(weir_runtime* runtime, int32_t device, const void* data,
                                           uint64_t size, int32_t attachment, weir_stream* stream,
                                           weir_buffer** buffer) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(data);
    return create_managed(runtime, device, data, size, contents::undefined, attachment, stream,
                          buffer);
  });
}

// --- The host -----------------------------------------------------------------------------------

weir_error weir_buffer_use_on(weir_buffer* buffer, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY_VALUE(target, find_stream(stream, argument.memory->device()));
    return argument.memory->use_on(target.ref);
  });
}

weir_error weir_buffer_begin_host(weir_buffer* buffer) {
  return guarded(
      [&] { return begin_host(buffer, [](const auto& memory) { return memory.view(); }); });
}

weir_error weir_buffer_begin_host_after(weir_buffer* buffer, weir_event* event) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(behind, find(event));
    return begin_host(buffer, [&](const auto& memory) { return memory.view(behind->mark); });
  });
}

weir_error weir_buffer_try_begin_host(weir_buffer* buffer) {
  return guarded(
      [&] { return begin_host(buffer, [](const auto& memory) { return memory.try_view(); }); });
}

weir_error weir_buffer_end_host(weir_buffer* buffer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    auto& views = argument.object->views;
    if (views.empty())
      return error{
          {.code = errc::invalid_argument, .detail = "no host view of this buffer is open"}};
    views.pop_back();
    return {};
  });
}

// --- Placement ----------------------------------------------------------------------------------

weir_error weir_buffer_prefetch(weir_buffer* buffer, uint64_t offset, uint64_t size, int32_t place,
                                weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY_VALUE(range, range_of(argument, offset, size));
    WEIR_TRY_VALUE(destination, place_from(place, *argument.object->machine));
    WEIR_TRY_VALUE(target, find_stream(stream, argument.memory->device()));
    return argument.memory->prefetch(range, destination, target.ref);
  });
}

weir_error weir_buffer_advise_read_mostly(weir_buffer* buffer, uint64_t offset, uint64_t size,
                                          int32_t on) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY_VALUE(range, range_of(argument, offset, size));
    return argument.memory->read_mostly(range, on != 0);
  });
}

weir_error weir_buffer_advise_preferred(weir_buffer* buffer, uint64_t offset, uint64_t size,
                                        int32_t place) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY_VALUE(range, range_of(argument, offset, size));
    if (place == WEIR_PLACE_NONE) return argument.memory->prefer(range, std::nullopt);
    WEIR_TRY_VALUE(preferred, place_from(place, *argument.object->machine));
    return argument.memory->prefer(range, preferred);
  });
}

weir_error weir_buffer_advise_accessed_by(weir_buffer* buffer, uint64_t offset, uint64_t size,
                                          int32_t place, int32_t on) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY_VALUE(range, range_of(argument, offset, size));
    WEIR_TRY_VALUE(accessor, place_from(place, *argument.object->machine));
    return argument.memory->accessed_by(range, accessor, on != 0);
  });
}

weir_error weir_buffer_get_managed_info(weir_buffer* buffer, uint64_t offset, uint64_t size,
                                        weir_managed_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY(check_size(info));
    WEIR_TRY_VALUE(range, range_of(argument, offset, size));
    WEIR_TRY_VALUE(record, argument.memory->info(range));
    weir_managed_info known{};
    known.attachment = static_cast<std::int32_t>(argument.memory->attached());
    known.read_mostly = record.read_mostly ? 1 : 0;
    known.preferred = number_of(record.preferred);
    known.last_prefetch = number_of(record.last_prefetch);
    known.accessed_by_count = static_cast<std::uint32_t>(record.accessed_by.size());
    const std::size_t count = std::min(record.accessed_by.size(), std::size(known.accessed_by));
    std::transform(record.accessed_by.begin(), record.accessed_by.begin() + count,
                   known.accessed_by, [](managed_place place) { return number_of(place); });
    return hand_out(known, info);
  });
}

weir_error weir_buffer_attach(weir_buffer* buffer, int32_t attachment, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY_VALUE(mode, attachment_from(attachment));
    WEIR_TRY_VALUE(target, find_stream(stream, argument.memory->device()));
    return argument.memory->attach(mode, target.ref);
  });
}

weir_error weir_buffer_resize_managed(weir_buffer* buffer, uint64_t size, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(argument, find_managed_buffer(buffer));
    WEIR_TRY_VALUE(target, find_stream(stream, argument.memory->device()));
    return argument.memory->resize(bytes{size}, target.ref);
  });
}
}

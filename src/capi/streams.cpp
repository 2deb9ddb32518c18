// SPDX-License-Identifier: Apache-2.0
// The C ABI's streams and events.
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "weir.h"
#include "weir/device/stream_watch.hpp"

namespace weir { inline namespace v0 { namespace capi {

result<stream_argument> find_stream(weir_stream* handle, weir::device home) {
  if (handle == nullptr) return stream_argument{nullptr, stream_ref::legacy(home)};
  WEIR_TRY_VALUE(object, find(handle));
  const stream_ref ref = object->ref;
  return stream_argument{std::move(object), ref};
}

namespace {

result<void> hand_out_stream(stream_object object, weir_stream** into) {
  WEIR_TRY_VALUE(handle,
                 hand_out_handle<weir_stream>(std::make_shared<stream_object>(std::move(object))));
  *into = handle;
  return {};
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

// --- Streams ------------------------------------------------------------------------------------

weir_error weir_stream_create(weir_runtime* runtime, int32_t device, uint32_t flags,
                              int32_t priority, weir_stream** stream) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(stream);
    WEIR_TRY(check_flags(flags, weir_stream_blocking));
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    const bool non_blocking = (flags & weir_stream_blocking) == 0;
    WEIR_TRY_VALUE(owned, weir::stream::create(
                              home.device, {.non_blocking = non_blocking, .priority = priority}));
    const stream_ref ref = owned.ref();
    return hand_out_stream({home.machine, ref, std::move(owned)}, stream);
  });
}

weir_error weir_stream_wrap(weir_runtime* runtime, int32_t device, void* native,
                            weir_stream** stream) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(stream);
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    const stream_ref bare{home.device, static_cast<CUstream_st*>(native)};
    WEIR_TRY(bare.validate());
    WEIR_TRY_VALUE(ref, bare.identified());
    return hand_out_stream({home.machine, ref, {}}, stream);
  });
}

weir_error weir_stream_duplicate(weir_stream* stream, weir_stream** duplicate) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    WEIR_NEEDS(duplicate);
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_stream>(std::move(object)));
    *duplicate = handle;
    return {};
  });
}

weir_error weir_stream_close(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    if (stream == nullptr) return {};
    WEIR_TRY_VALUE(object, take(stream));
    // Nobody can find it any more: if nobody else holds it either, nobody ever will.
    if (object.use_count() == 1 && object->owned) return object->owned->close();
    return {};
  });
}

weir_error weir_stream_get_native(weir_stream* stream, void** native) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    WEIR_NEEDS(native);
    *native = object->ref.handle();
    return {};
  });
}

weir_error weir_stream_get_id(weir_stream* stream, uint64_t* id) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    WEIR_NEEDS(id);
    WEIR_TRY_VALUE(number, object->ref.id());
    *id = number.number();
    return {};
  });
}

weir_error weir_stream_synchronize(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    return object->ref.synchronize();
  });
}

weir_error weir_stream_is_complete(weir_stream* stream, int32_t* complete) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    WEIR_NEEDS(complete);
    WEIR_TRY_VALUE(done, object->ref.is_complete());
    *complete = done ? 1 : 0;
    return {};
  });
}

weir_error weir_stream_get_capture(weir_stream* stream, int32_t* status, uint64_t* id) {
  static_assert(static_cast<int>(capture_status::none) == weir_capture_none &&
                static_cast<int>(capture_status::active) == weir_capture_active &&
                static_cast<int>(capture_status::invalidated) == weir_capture_invalidated &&
                static_cast<int>(capture_status::implicit) == weir_capture_implicit);
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    WEIR_NEEDS(status);
    WEIR_TRY_VALUE(now, object->ref.capture());
    *status = static_cast<int32_t>(now.status);
    if (id != nullptr) *id = now.id.number();
    return {};
  });
}

weir_error weir_watch_stream(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    return watch_stream(object->ref);
  });
}

weir_error weir_unwatch_stream(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(stream));
    return unwatch_stream(object->ref);
  });
}

// --- Events -------------------------------------------------------------------------------------

weir_error weir_event_create(weir_runtime* runtime, int32_t device, uint32_t flags,
                             weir_event** event) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(event);
    WEIR_TRY(
        check_flags(flags, weir_event_timing | weir_event_interprocess | weir_event_blocking_sync));
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    WEIR_TRY_VALUE(created,
                   weir::event::create(home.device,
                                       {.timing = (flags & weir_event_timing) != 0,
                                        .interprocess = (flags & weir_event_interprocess) != 0,
                                        .blocking_sync = (flags & weir_event_blocking_sync) != 0}));
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_event>(
                               std::make_shared<event_object>(event_object{std::move(created)})));
    *event = handle;
    return {};
  });
}

weir_error weir_event_close(weir_event* event) {
  return guarded([&]() -> result<void> {
    if (event == nullptr) return {};
    WEIR_TRY_VALUE(object, take(event));
    if (object.use_count() == 1) return object->mark.close();
    return {};
  });
}

weir_error weir_event_record(weir_event* event, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(event));
    WEIR_TRY_VALUE(target, find_stream(stream, object->mark.device()));
    return object->mark.record(target.ref);
  });
}

weir_error weir_event_record_all(weir_event* event) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(event));
    const context_scope bound{object->mark.device()};
    return object->mark.record_all(bound);
  });
}

weir_error weir_event_is_complete(weir_event* event, int32_t* complete) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(event));
    WEIR_NEEDS(complete);
    WEIR_TRY_VALUE(done, object->mark.is_complete());
    *complete = done ? 1 : 0;
    return {};
  });
}

weir_error weir_event_synchronize(weir_event* event) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(event));
    return object->mark.synchronize();
  });
}

weir_error weir_event_get_elapsed(weir_event* from, weir_event* to, float* milliseconds) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(begin, find(from));
    WEIR_TRY_VALUE(end, find(to));
    WEIR_NEEDS(milliseconds);
    WEIR_TRY_VALUE(between, weir::event::elapsed(begin->mark, end->mark));
    *milliseconds = between.count();
    return {};
  });
}

weir_error weir_event_get_native(weir_event* event, void** native) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(event));
    WEIR_NEEDS(native);
    *native = object->mark.handle();
    return {};
  });
}

weir_error weir_stream_wait(weir_stream* stream, weir_event* event) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(event));
    WEIR_TRY_VALUE(target, find_stream(stream, object->mark.device()));
    return target.ref.wait(object->mark);
  });
}
}

// The C ABI's streams and events.
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "weir.h"
#include "weir/device/stream_watch.hpp"

namespace weir::inline v0::capi {

result<stream_argument> find_stream(weir_stream* handle, weir::device home) {
  if (handle == nullptr) return stream_argument{nullptr, stream_ref::legacy(home)};
  WEIR_TRY_VALUE(found, find(handle));
  const stream_ref ref = found->ref;
  return stream_argument{std::move(found), ref};
}

namespace {

result<void> make_stream(stream_object made, weir_stream** into) {
  WEIR_TRY_VALUE(handle,
                 hand_out_handle<weir_stream>(std::make_shared<stream_object>(std::move(made))));
  *into = handle;
  return {};
}

result<void> unknown_flags(std::uint32_t flags, std::uint32_t known) {
  if ((flags & ~known) == 0) return {};
  return error{.code = errc::invalid_argument, .detail = "a flag is unknown"};
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

// --- Streams ------------------------------------------------------------------------------------

weir_error weir_stream_create(weir_runtime* runtime, int32_t device, uint32_t flags,
                              int32_t priority, weir_stream** stream) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(stream);
    WEIR_TRY(unknown_flags(flags, weir_stream_blocking));
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    const bool beside = (flags & weir_stream_blocking) == 0;
    WEIR_TRY_VALUE(
        made, weir::stream::create(where.which, {.non_blocking = beside, .priority = priority}));
    const stream_ref ref = made.ref();
    return make_stream({where.machine, ref, std::move(made)}, stream);
  });
}

weir_error weir_stream_wrap(weir_runtime* runtime, int32_t device, void* native,
                            weir_stream** stream) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(stream);
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    const stream_ref bare{where.which, static_cast<CUstream_st*>(native)};
    WEIR_TRY(bare.validate());
    WEIR_TRY_VALUE(ref, bare.identified());
    return make_stream({where.machine, ref, {}}, stream);
  });
}

weir_error weir_stream_close(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    if (stream == nullptr) return {};
    WEIR_TRY_VALUE(closed, take(stream));
    // Nobody can find it any more: if nobody else holds it either, nobody ever will.
    if (closed.use_count() == 1 && closed->owned) return closed->owned->close();
    return {};
  });
}

weir_error weir_stream_get_native(weir_stream* stream, void** native) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(stream));
    WEIR_NEEDS(native);
    *native = found->ref.handle();
    return {};
  });
}

weir_error weir_stream_get_id(weir_stream* stream, uint64_t* id) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(stream));
    WEIR_NEEDS(id);
    WEIR_TRY_VALUE(number, found->ref.id());
    *id = number.number();
    return {};
  });
}

weir_error weir_stream_synchronize(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(stream));
    return found->ref.synchronize();
  });
}

weir_error weir_stream_query(weir_stream* stream, int32_t* done) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(stream));
    WEIR_NEEDS(done);
    WEIR_TRY_VALUE(ready, found->ref.ready());
    *done = ready ? 1 : 0;
    return {};
  });
}

weir_error weir_stream_get_capture(weir_stream* stream, int32_t* status, uint64_t* id) {
  static_assert(static_cast<int>(capture_status::none) == weir_capture_none &&
                static_cast<int>(capture_status::active) == weir_capture_active &&
                static_cast<int>(capture_status::invalidated) == weir_capture_invalidated &&
                static_cast<int>(capture_status::implicit) == weir_capture_implicit);
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(stream));
    WEIR_NEEDS(status);
    WEIR_TRY_VALUE(now, found->ref.capture());
    *status = static_cast<int32_t>(now.status);
    if (id != nullptr) *id = now.id.number();
    return {};
  });
}

weir_error weir_watch_stream(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(stream));
    return watch_stream(found->ref);
  });
}

weir_error weir_unwatch_stream(weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(stream));
    return unwatch_stream(found->ref);
  });
}

// --- Events -------------------------------------------------------------------------------------

weir_error weir_event_create(weir_runtime* runtime, int32_t device, uint32_t flags,
                             weir_event** event) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(event);
    WEIR_TRY(unknown_flags(flags,
                           weir_event_timing | weir_event_interprocess | weir_event_blocking_sync));
    WEIR_TRY_VALUE(where, find_device(runtime, device));
    WEIR_TRY_VALUE(made,
                   weir::event::create(where.which,
                                       {.timing = (flags & weir_event_timing) != 0,
                                        .interprocess = (flags & weir_event_interprocess) != 0,
                                        .blocking_sync = (flags & weir_event_blocking_sync) != 0}));
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_event>(
                               std::make_shared<event_object>(event_object{std::move(made)})));
    *event = handle;
    return {};
  });
}

weir_error weir_event_close(weir_event* event) {
  return guarded([&]() -> result<void> {
    if (event == nullptr) return {};
    WEIR_TRY_VALUE(closed, take(event));
    if (closed.use_count() == 1) return closed->mark.close();
    return {};
  });
}

weir_error weir_event_record(weir_event* event, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(event));
    WEIR_TRY_VALUE(behind, find_stream(stream, found->mark.device()));
    return found->mark.record(behind.ref);
  });
}

weir_error weir_event_query(weir_event* event, int32_t* reached) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(event));
    WEIR_NEEDS(reached);
    WEIR_TRY_VALUE(done, found->mark.reached());
    *reached = done ? 1 : 0;
    return {};
  });
}

weir_error weir_event_synchronize(weir_event* event) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(event));
    return found->mark.synchronize();
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
    WEIR_TRY_VALUE(found, find(event));
    WEIR_NEEDS(native);
    *native = found->mark.handle();
    return {};
  });
}

weir_error weir_stream_wait(weir_stream* stream, weir_event* event) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(event));
    WEIR_TRY_VALUE(waiting, find_stream(stream, found->mark.device()));
    return waiting.ref.wait(found->mark);
  });
}
}

// SPDX-License-Identifier: Apache-2.0
// The C ABI's recorder: one allocator's events to a file.
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/trace/recorder.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// Observes its allocator until it is stopped.
struct recorder_object {
  std::shared_ptr<allocator_object> observed;
  std::unique_ptr<recorder> writer;
  observer_registration registration;  // ends before the writer does
};
WEIR_HANDLE_KIND(recorder)

namespace {

constexpr std::uint32_t recorder_flags =
    weir_recorder_drop_when_full | weir_recorder_stacks | weir_recorder_uncompressed;

result<recorder_options> options_from(const weir_recorder_options& from, weir::device device) {
  WEIR_TRY(check_flags(from.flags, recorder_flags));
  recorder_options settings;
  if (from.ring_events != 0) settings.ring_events = from.ring_events;
  settings.drop_when_full = (from.flags & weir_recorder_drop_when_full) != 0;
  settings.stacks = (from.flags & weir_recorder_stacks) != 0;
  if (from.level != 0) settings.level = from.level;
  if ((from.flags & weir_recorder_uncompressed) != 0) settings.level = 0;
  if (from.flush_every != 0) settings.flush_every = std::chrono::milliseconds{from.flush_every};
  if (from.program != nullptr) settings.program = from.program;
  settings.device = device.name();
  settings.device_capacity = device.total_memory();
  return settings;
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_recorder_start(weir_allocator* allocator, const char* path,
                               const weir_recorder_options* options, weir_recorder** recorder) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(observed, find(allocator));
    WEIR_NEEDS(path);
    WEIR_NEEDS(recorder);
    WEIR_TRY_VALUE(known, take_in(options, weir_recorder_options{}));
    WEIR_TRY_VALUE(settings, options_from(known, observed->legacy.device()));
    WEIR_TRY_VALUE(writer, weir::recorder::start(path, settings));
    auto object = std::make_shared<recorder_object>();
    object->observed = std::move(observed);
    object->writer = std::move(writer);
    object->registration = object->observed->memory.add_observer(*object->writer).value();
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_recorder>(std::move(object)));
    *recorder = handle;
    return {};
  });
}

weir_error weir_recorder_marker(weir_recorder* recorder, const char* text) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(recorder));
    WEIR_NEEDS(text);
    object->writer->marker(text);
    return {};
  });
}

weir_error weir_recorder_flush(weir_recorder* recorder) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(recorder));
    return object->writer->flush();
  });
}

weir_error weir_recorder_get_stats(weir_recorder* recorder, weir_recorder_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(recorder));
    const recorder_stats now = object->writer->stats();
    return hand_out({0, 0, now.written, now.dropped, now.threads, now.file_size.count()}, stats);
  });
}

weir_error weir_recorder_close(weir_recorder* recorder) {
  return guarded([&]() -> result<void> {
    if (recorder == nullptr) return {};
    WEIR_TRY_VALUE(object, take(recorder));
    object->registration.close();
    return object->writer->close();
  });
}
}

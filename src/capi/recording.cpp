// The C ABI's recorder: one allocator's events to a file.
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/trace/recorder.hpp"

namespace weir::inline v0::capi {

/// Listens to its allocator until it is stopped, or another recorder takes its place.
struct recorder_object {
  std::shared_ptr<allocator_object> of;
  std::unique_ptr<recorder> tape;

  ~recorder_object() { let_go(); }
  void listen() {
    const std::lock_guard lock{of->mutex};
    of->memory.set_observer(tape.get());
    of->recorded_by = this;
  }
  void let_go() noexcept {
    const std::lock_guard lock{of->mutex};
    if (of->recorded_by != this) return;
    of->memory.set_observer(nullptr);
    of->recorded_by = nullptr;
  }
};
WEIR_HANDLE_KIND(recorder)

namespace {

constexpr std::uint32_t recorder_flags =
    weir_recorder_drop_when_full | weir_recorder_stacks | weir_recorder_uncompressed;

result<recorder_options> recording_as(const weir_recorder_options& wanted, weir::device where) {
  if ((wanted.flags & ~recorder_flags) != 0)
    return error{.code = errc::invalid_argument, .detail = "a flag is unknown"};
  recorder_options how;
  if (wanted.ring_events != 0) how.ring_events = wanted.ring_events;
  how.drop_when_full = (wanted.flags & weir_recorder_drop_when_full) != 0;
  how.stacks = (wanted.flags & weir_recorder_stacks) != 0;
  if (wanted.level != 0) how.level = wanted.level;
  if ((wanted.flags & weir_recorder_uncompressed) != 0) how.level = 0;
  if (wanted.flush_every != 0) how.flush_every = std::chrono::milliseconds{wanted.flush_every};
  if (wanted.program != nullptr) how.program = wanted.program;
  how.device = where.name();
  how.device_capacity = where.total_memory();
  return how;
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_recorder_start(weir_allocator* allocator, const char* path,
                               const weir_recorder_options* how, weir_recorder** recorder) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_NEEDS(path);
    WEIR_NEEDS(recorder);
    WEIR_TRY_VALUE(wanted, take_in(how, weir_recorder_options{}));
    WEIR_TRY_VALUE(settings, recording_as(wanted, found->legacy.device()));
    WEIR_TRY_VALUE(tape, weir::recorder::start(path, settings));
    auto object = std::make_shared<recorder_object>();
    object->of = std::move(found);
    object->tape = std::move(tape);
    object->listen();
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_recorder>(std::move(object)));
    *recorder = handle;
    return {};
  });
}

weir_error weir_recorder_marker(weir_recorder* recorder, const char* text) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(recorder));
    WEIR_NEEDS(text);
    found->tape->marker(text);
    return {};
  });
}

weir_error weir_recorder_flush(weir_recorder* recorder) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(recorder));
    return found->tape->flush();
  });
}

weir_error weir_recorder_get_stats(weir_recorder* recorder, weir_recorder_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(recorder));
    const recorder_stats now = found->tape->stats();
    return hand_out({0, 0, now.written, now.dropped, now.threads, now.file_bytes}, stats);
  });
}

weir_error weir_recorder_stop(weir_recorder* recorder) {
  return guarded([&]() -> result<void> {
    if (recorder == nullptr) return {};
    WEIR_TRY_VALUE(stopped, take(recorder));
    stopped->let_go();
    return stopped->tape->stop();
  });
}
}

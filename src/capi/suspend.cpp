// SPDX-License-Identifier: Apache-2.0
// The C ABI's suspended memory: of a tag, of a pool, of everything.
#include <cstdint>
#include <string>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/allocator/suspend.hpp"

namespace weir { inline namespace v0 { namespace capi { namespace {

/// A choice of the caller's, which are numbered as ours are.
template <class Choice>
result<Choice> choice_from(std::int32_t number, Choice last, const char* parameter) {
  if (number >= 0 && number <= static_cast<std::int32_t>(last)) return static_cast<Choice>(number);
  return error{{.code = errc::invalid_argument,
                .detail = std::string{parameter} + " must be from 0 to " +
                          std::to_string(static_cast<std::int32_t>(last)) + ", got " +
                          std::to_string(number)}};
}

suspend_progress progress_from(weir_progress_callback function, void* context) {
  if (function == nullptr) return {};
  return [function, context](bytes done, bytes total) {
    function(context, done.count(), total.count());
  };
}

result<suspend_options> options_from(const weir_suspend_options* from,
                                     const suspend_options& initial) {
  if (from == nullptr) return initial;
  WEIR_TRY_VALUE(known, take_in(from, weir_suspend_options{}));
  suspend_options settings;
  WEIR_TRY_VALUE(contents, choice_from(known.contents, suspended_contents::discard, "contents"));
  WEIR_TRY_VALUE(kind, choice_from(known.backup, host_memory_kind::pageable, "backup"));
  WEIR_TRY_VALUE(requests, choice_from(known.requests, suspended_requests::resume, "requests"));
  WEIR_TRY_VALUE(streams, choice_from(known.streams, awaited_streams::known, "streams"));
  settings.contents = contents;
  settings.to = kind;
  settings.requests = requests;
  settings.streams = streams;
  if (known.chunk != 0) settings.chunk = bytes{known.chunk};
  settings.progress = progress_from(known.progress, known.context);
  return settings;
}

result<resume_options> options_from(const weir_resume_options* from) {
  WEIR_TRY_VALUE(known, take_in(from, weir_resume_options{}));
  return resume_options{.progress = progress_from(known.progress, known.context)};
}

result<suspendable_options> options_from(const weir_suspendable_options* from) {
  WEIR_TRY_VALUE(known, take_in(from, weir_suspendable_options{}));
  suspendable_options settings;
  settings.evictable = known.evictable != 0;
  settings.priority = known.priority;
  WEIR_TRY_VALUE(eviction, options_from(known.eviction, settings.eviction));
  settings.eviction = std::move(eviction);
  return settings;
}

weir_suspend_outcome to_c(const suspend_outcome& from) noexcept {
  return {.struct_size = 0,
          .reserved_0 = 0,
          .released = from.released.count(),
          .saved = from.saved.count(),
          .not_suspended = from.not_suspended.count()};
}

weir_resume_outcome to_c(const resume_outcome& from) noexcept {
  return {.struct_size = 0,
          .reserved_0 = 0,
          .reserved = from.reserved.count(),
          .restored = from.restored.count()};
}

weir_suspend_stats suspend_stats_of(const memory_stats& from) noexcept {
  return {.struct_size = 0,
          .reserved_0 = 0,
          .suspended = from.suspended.count(),
          .backup = capi::to_c(from.backup),
          .reserved_and_suspended = capi::to_c(from.reserved_and_suspended)};
}

/// The outcome of `move` for a caller that may not care: nothing is done if it cannot be written.
template <class Outcome, class Move>
result<void> move_and_tell(Outcome* into, const Move& move) {
  if (into != nullptr) WEIR_TRY(check_size(into, "outcome"));
  WEIR_TRY_VALUE(outcome, move());
  if (into == nullptr) return {};
  return hand_out(to_c(outcome), into);
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_allocator_declare_suspendable(weir_allocator* allocator, uint32_t tag,
                                              const weir_suspendable_options* options) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(declared, find_tag(tag));
    WEIR_TRY_VALUE(settings, options_from(options));
    return object->memory.declare_suspendable(declared, settings);
  });
}

weir_error weir_pool_create_suspendable(weir_allocator* allocator, const char* name, uint32_t flags,
                                        const weir_suspendable_options* options, weir_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(settings, options_from(options));
    return create_pool(allocator, name, flags, std::move(settings), pool);
  });
}

// --- Suspending and resuming --------------------------------------------------------------------

weir_error weir_allocator_suspend_tag(weir_allocator* allocator, uint32_t tag,
                                      const weir_suspend_options* options,
                                      weir_suspend_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(meant, find_tag(tag));
    WEIR_TRY_VALUE(settings, options_from(options, {}));
    return move_and_tell(outcome, [&] { return object->memory.suspend(meant, settings); });
  });
}

weir_error weir_pool_suspend(weir_pool* pool, const weir_suspend_options* options,
                             weir_suspend_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(settings, options_from(options, {}));
    return move_and_tell(outcome, [&] { return object->pool.suspend(settings); });
  });
}

weir_error weir_allocator_suspend(weir_allocator* allocator, const weir_suspend_options* options,
                                  weir_suspend_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(settings, options_from(options, {}));
    return move_and_tell(outcome, [&] { return object->memory.suspend(settings); });
  });
}

weir_error weir_allocator_resume_tag(weir_allocator* allocator, uint32_t tag,
                                     const weir_resume_options* options,
                                     weir_resume_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(meant, find_tag(tag));
    WEIR_TRY_VALUE(settings, options_from(options));
    return move_and_tell(outcome, [&] { return object->memory.resume(meant, settings); });
  });
}

weir_error weir_pool_resume(weir_pool* pool, const weir_resume_options* options,
                            weir_resume_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(settings, options_from(options));
    return move_and_tell(outcome, [&] { return object->pool.resume(settings); });
  });
}

weir_error weir_allocator_resume(weir_allocator* allocator, const weir_resume_options* options,
                                 weir_resume_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(settings, options_from(options));
    return move_and_tell(outcome, [&] { return object->memory.resume(settings); });
  });
}

weir_error weir_allocator_suspend_tag_async(weir_allocator* allocator, uint32_t tag,
                                            const weir_suspend_options* options) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(meant, find_tag(tag));
    WEIR_TRY_VALUE(settings, options_from(options, {}));
    return object->memory.suspend_async(meant, settings);
  });
}

weir_error weir_pool_suspend_async(weir_pool* pool, const weir_suspend_options* options) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(settings, options_from(options, {}));
    return object->pool.suspend_async(settings);
  });
}

weir_error weir_allocator_suspend_async(weir_allocator* allocator,
                                        const weir_suspend_options* options) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(settings, options_from(options, {}));
    return object->memory.suspend_async(settings);
  });
}

weir_error weir_allocator_resume_tag_async(weir_allocator* allocator, uint32_t tag,
                                           weir_stream* stream, weir_resume_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(meant, find_tag(tag));
    WEIR_TRY_VALUE(waiting, find_stream(stream, *object));
    return move_and_tell(outcome, [&] { return object->memory.resume_async(meant, waiting.ref); });
  });
}

weir_error weir_pool_resume_async(weir_pool* pool, weir_stream* stream,
                                  weir_resume_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(waiting, find_stream(stream, *object->owner));
    return move_and_tell(outcome, [&] { return object->pool.resume_async(waiting.ref); });
  });
}

weir_error weir_allocator_resume_async(weir_allocator* allocator, weir_stream* stream,
                                       weir_resume_outcome* outcome) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(waiting, find_stream(stream, *object));
    return move_and_tell(outcome, [&] { return object->memory.resume_async(waiting.ref); });
  });
}

weir_error weir_allocator_is_tag_suspended(weir_allocator* allocator, uint32_t tag,
                                           int32_t* suspended) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(meant, find_tag(tag));
    WEIR_NEEDS(suspended);
    *suspended = object->memory.is_suspended(meant) ? 1 : 0;
    return {};
  });
}

weir_error weir_pool_is_suspended(weir_pool* pool, int32_t* suspended) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(suspended);
    *suspended = object->pool.is_suspended() ? 1 : 0;
    return {};
  });
}

weir_error weir_allocator_is_address_suspended(weir_allocator* allocator, const void* address,
                                               int32_t* suspended) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(suspended);
    WEIR_TRY_VALUE(around, object->memory.block_at(address));
    *suspended = around.suspended ? 1 : 0;
    return {};
  });
}

// --- Counters and host memory -------------------------------------------------------------------

weir_error weir_allocator_get_suspend_stats(weir_allocator* allocator, weir_suspend_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY(check_size(stats, "stats"));
    return hand_out(suspend_stats_of(object->memory.stats()), stats);
  });
}

weir_error weir_allocator_get_tag_suspend_stats(weir_allocator* allocator, uint32_t tag,
                                                weir_suspend_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(counted, find_tag(tag));
    WEIR_TRY(check_size(stats, "stats"));
    return hand_out(suspend_stats_of(object->memory.stats(counted)), stats);
  });
}

weir_error weir_pool_get_suspend_stats(weir_pool* pool, weir_suspend_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY(check_size(stats, "stats"));
    return hand_out(suspend_stats_of(object->pool.stats()), stats);
  });
}

weir_error weir_allocator_reserve_backup(weir_allocator* allocator, uint64_t size, int32_t backup) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(kind, choice_from(backup, host_memory_kind::pageable, "backup"));
    return object->memory.reserve_backup(bytes{size}, kind);
  });
}

weir_error weir_allocator_trim_backup(weir_allocator* allocator, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return write_size(object->memory.trim_backup(), released);
  });
}
}

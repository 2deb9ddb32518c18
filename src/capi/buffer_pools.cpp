// SPDX-License-Identifier: Apache-2.0
// The C ABI's pools of buffers on all devices.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "capi/buffers.hpp"
#include "capi/guard.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/pool/buffer_pool.hpp"

namespace weir { inline namespace v0 { namespace capi {

struct buffer_pool_object {
  buffer_pool pool;
};
WEIR_HANDLE_KIND(buffer_pool)

namespace {

result<buffer_pool_options> options_from(const weir_buffer_pool_options& from) {
  WEIR_TRY(check_flags(from.flags, weir_buffer_pool_declared_uses));
  buffer_pool_options settings;
  settings.max_cached = bytes{from.max_cached};
  constexpr std::uint64_t forever = std::numeric_limits<std::int64_t>::max();
  settings.max_idle_time =
      std::chrono::nanoseconds{static_cast<std::int64_t>(std::min(from.max_idle_time, forever))};
  if ((from.flags & weir_buffer_pool_declared_uses) != 0)
    settings.crossing = crossing_rule::declared_uses;
  return settings;
}

/// The device that a call is about; empty, for all of them, where the runtime is null.
result<std::optional<weir::device>> find_device_or_all(weir_runtime* runtime, std::int32_t number) {
  if (runtime == nullptr) return std::optional<weir::device>{};
  WEIR_TRY_VALUE(home, find_device(runtime, number));
  return std::optional{home.device};
}

/// Hands out what `take(pool, stream, contents)` returns.
template <class Take>
result<void> take_buffer(weir_buffer_pool* pool, std::uint32_t flags, weir_stream* stream,
                         weir_buffer** into, const Take& take) {
  if (into == nullptr) return missing("buffer");
  WEIR_TRY_VALUE(initial, contents_from(flags));
  WEIR_TRY_VALUE(object, find(pool));
  WEIR_TRY_VALUE(target, find(stream));
  WEIR_TRY_VALUE(memory, take(object->pool, target->ref, initial));
  return hand_out_buffer(target->machine, nullptr, std::move(memory), into);
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_buffer_pool_create(const weir_buffer_pool_options* options,
                                   weir_buffer_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(pool);
    const weir_buffer_pool_options initial = WEIR_BUFFER_POOL_OPTIONS_INIT;
    WEIR_TRY_VALUE(known, take_in(options, initial));
    WEIR_TRY_VALUE(settings, options_from(known));
    WEIR_TRY_VALUE(created, buffer_pool::create(std::move(settings)));
    auto object = std::make_shared<buffer_pool_object>(buffer_pool_object{std::move(created)});
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_buffer_pool>(std::move(object)));
    *pool = handle;
    return {};
  });
}

weir_error weir_buffer_pool_close(weir_buffer_pool* pool) {
  return guarded([&]() -> result<void> {
    if (pool == nullptr) return {};
    WEIR_TRY_VALUE(object, take(pool));
    return object->pool.close();
  });
}

// --- Buffers ------------------------------------------------------------------------------------

weir_error weir_buffer_pool_take(weir_buffer_pool* pool, uint64_t size, uint32_t flags,
                                 weir_stream* stream, weir_buffer** buffer) {
  return guarded([&] {
    return take_buffer(pool, flags, stream, buffer,
                       [&](const buffer_pool& from, const stream_ref& ref, contents initial) {
                         return from.take(bytes{size}, ref, initial);
                       });
  });
}

weir_error weir_buffer_pool_take_cached(weir_buffer_pool* pool, uint64_t size, uint32_t flags,
                                        weir_stream* stream, weir_buffer** buffer) {
  return guarded([&] {
    return take_buffer(pool, flags, stream, buffer,
                       [&](const buffer_pool& from, const stream_ref& ref, contents initial) {
                         return from.try_take_cached(bytes{size}, ref, initial);
                       });
  });
}

weir_error weir_buffer_pool_free(weir_buffer_pool* pool, weir_buffer* buffer, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(target, find(stream));
    WEIR_TRY_VALUE(argument,
                   find_buffer<pooled_memory>(
                       buffer, {{.code = errc::foreign_pointer,
                                 .detail = "the buffer was not taken from a buffer pool"}}));
    WEIR_TRY(object->pool.free(std::move(*argument.memory), target->ref));
    argument.object->is_closed = true;
    // A weir_buffer_close that waits for the lock has taken the handle, and will be told `closed`.
    static_cast<void>(take(buffer));
    return {};
  });
}

// --- One device, or all -------------------------------------------------------------------------

weir_error weir_buffer_pool_get_stats(weir_buffer_pool* pool, weir_runtime* runtime, int32_t device,
                                      weir_buffer_pool_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY(check_size(stats, "stats"));
    WEIR_TRY_VALUE(home, find_device_or_all(runtime, device));
    const buffer_pool_stats now = home ? object->pool.stats(*home) : object->pool.stats();
    weir_buffer_pool_stats known{};
    known.hits = now.hits;
    known.misses = now.misses;
    known.returns = now.returns;
    known.cached = now.cached.count();
    known.taken = {now.taken.count(), now.taken_peak.count()};
    return hand_out(known, stats);
  });
}

weir_error weir_buffer_pool_reset_peaks(weir_buffer_pool* pool, weir_runtime* runtime,
                                        int32_t device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(home, find_device_or_all(runtime, device));
    home ? object->pool.reset_peaks(*home) : object->pool.reset_peaks();
    return {};
  });
}

weir_error weir_buffer_pool_reset_counters(weir_buffer_pool* pool, weir_runtime* runtime,
                                           int32_t device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(home, find_device_or_all(runtime, device));
    home ? object->pool.reset_counters(*home) : object->pool.reset_counters();
    return {};
  });
}

weir_error weir_buffer_pool_trim(weir_buffer_pool* pool, weir_runtime* runtime, int32_t device,
                                 uint64_t keep, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(home, find_device_or_all(runtime, device));
    return write_size(home ? object->pool.trim(*home, bytes{keep}) : object->pool.trim(bytes{keep}),
                      released);
  });
}

weir_error weir_buffer_pool_empty_cache(weir_buffer_pool* pool, weir_runtime* runtime,
                                        int32_t device, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_TRY_VALUE(home, find_device_or_all(runtime, device));
    return write_size(home ? object->pool.empty_cache(*home) : object->pool.empty_cache(),
                      released);
  });
}
}

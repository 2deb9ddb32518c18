// SPDX-License-Identifier: Apache-2.0
// The C ABI's growable memory.
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/growable/growable_memory.hpp"

namespace weir { inline namespace v0 { namespace capi {

struct growable_object {
  std::shared_ptr<allocator_object> owner;
  growable_memory memory;
};
WEIR_HANDLE_KIND(growable)

struct growable_plan_object {
  std::shared_ptr<growable_object> of;
  std::mutex mutex;  // a plan is one thread's at a time
  growable_plan plan;
};
WEIR_HANDLE_KIND(growable_plan)

struct growable_hold_object {
  std::shared_ptr<growable_object> of;
  growable_hold hold;
};
WEIR_HANDLE_KIND(growable_hold)

namespace {

result<growable_options> options_of(const weir_growable_options* options) {
  const weir_growable_options initial = WEIR_GROWABLE_OPTIONS_INIT;
  WEIR_TRY_VALUE(known, take_in(options, initial));
  growable_options settings;
  settings.page = bytes{known.page};
  if (known.tag != 0) {
    WEIR_TRY_VALUE(tag, find_tag(known.tag));
    settings.tag = tag;
  }
  if (known.name != nullptr) settings.name = known.name;
  return settings;
}

result<std::vector<byte_range>> ranges_of(const weir_byte_range* ranges, std::uint64_t count) {
  if (count != 0) WEIR_NEEDS(ranges);
  std::vector<byte_range> all;
  all.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i)
    all.push_back({bytes{ranges[i].offset}, bytes{ranges[i].size}});
  return all;
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_growable_reserve(weir_allocator* allocator, uint64_t size,
                                 const weir_growable_options* options, weir_growable** growable) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(growable);
    WEIR_TRY_VALUE(settings, options_of(options));
    WEIR_TRY_VALUE(reserved, growable_memory::reserve(object->memory, bytes{size}, settings));
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_growable>(std::make_shared<growable_object>(
                               growable_object{object, std::move(reserved)})));
    *growable = handle;
    return {};
  });
}

weir_error weir_growable_close(weir_growable* growable) {
  return guarded([&]() -> result<void> {
    if (growable == nullptr) return {};
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_TRY(object->memory.close());
    WEIR_TRY(take(growable));
    return {};
  });
}

weir_error weir_growable_get_address(weir_growable* growable, void** address) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_NEEDS(address);
    *address = object->memory.data();
    return {};
  });
}

weir_error weir_growable_get_stats(weir_growable* growable, weir_growable_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    const growable_stats now = object->memory.stats();
    return hand_out(weir_growable_stats{.struct_size = sizeof(weir_growable_stats),
                                        .reserved_0 = 0,
                                        .reserved = now.reserved.count(),
                                        .size = now.size.count(),
                                        .page = now.page.count(),
                                        .committed = {.current = now.committed.count(),
                                                      .peak = now.committed_peak.count()},
                                        .ahead = now.ahead.count(),
                                        .held = now.held.count(),
                                        .suspended = now.suspended.count(),
                                        .commits = now.commits,
                                        .decommits = now.decommits},
                    stats);
  });
}

weir_error weir_growable_is_committed(weir_growable* growable, uint64_t offset, uint64_t size,
                                      int32_t* committed) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_NEEDS(committed);
    *committed = object->memory.is_committed(bytes{offset}, bytes{size}) ? 1 : 0;
    return {};
  });
}

weir_error weir_growable_commit(weir_growable* growable, const weir_byte_range* ranges,
                                uint64_t count, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    WEIR_TRY_VALUE(all, ranges_of(ranges, count));
    return object->memory.commit(all, target.ref);
  });
}

weir_error weir_growable_decommit(weir_growable* growable, const weir_byte_range* ranges,
                                  uint64_t count, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    WEIR_TRY_VALUE(all, ranges_of(ranges, count));
    return object->memory.decommit(all, target.ref);
  });
}

weir_error weir_growable_commit_ahead(weir_growable* growable, uint64_t watermark,
                                      weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    return object->memory.commit_ahead(bytes{watermark}, target.ref);
  });
}

weir_error weir_growable_resize(weir_growable* growable, uint64_t size, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    return object->memory.resize(bytes{size}, target.ref);
  });
}

weir_error weir_growable_trim(weir_growable* growable, uint64_t* returned) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    return write_size(object->memory.trim(), returned);
  });
}

weir_error weir_growable_suspend(weir_growable* growable, int32_t keep, uint64_t* returned) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    return write_size(
        object->memory.suspend(keep != 0 ? suspended_contents::keep : suspended_contents::discard),
        returned);
  });
}

weir_error weir_growable_resume(weir_growable* growable, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    return object->memory.resume(target.ref);
  });
}

weir_error weir_growable_tie_to_graph(weir_growable* growable, void* native_graph) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    return object->memory.tie_to_graph(static_cast<driver::CUgraph>(native_graph));
  });
}

weir_error weir_growable_hold_pages(weir_growable* growable, weir_growable_hold** hold) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_NEEDS(hold);
    WEIR_TRY_VALUE(kept, object->memory.hold());
    WEIR_TRY_VALUE(handle,
                   hand_out_handle<weir_growable_hold>(std::make_shared<growable_hold_object>(
                       growable_hold_object{object, std::move(kept)})));
    *hold = handle;
    return {};
  });
}

weir_error weir_growable_hold_close(weir_growable_hold* hold) {
  return guarded([&]() -> result<void> {
    if (hold == nullptr) return {};
    WEIR_TRY_VALUE(object, take(hold));
    object->hold.close();
    return {};
  });
}

weir_error weir_growable_prepare(weir_growable* growable, const weir_byte_range* commits,
                                 uint64_t commit_count, const weir_byte_range* decommits,
                                 uint64_t decommit_count, weir_stream* stream,
                                 weir_growable_plan** plan) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(growable));
    WEIR_NEEDS(plan);
    WEIR_TRY_VALUE(target, find_stream(stream, *object->owner));
    WEIR_TRY_VALUE(in, ranges_of(commits, commit_count));
    WEIR_TRY_VALUE(out, ranges_of(decommits, decommit_count));
    WEIR_TRY_VALUE(prepared, object->memory.prepare(in, out, target.ref));
    auto holder = std::make_shared<growable_plan_object>();
    holder->of = object;
    holder->plan = std::move(prepared);
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_growable_plan>(std::move(holder)));
    *plan = handle;
    return {};
  });
}

weir_error weir_growable_plan_commit(weir_growable_plan* plan) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, take(plan));
    const std::lock_guard lock{object->mutex};
    object->plan.commit();
    return {};
  });
}

weir_error weir_growable_plan_abort(weir_growable_plan* plan) {
  return guarded([&]() -> result<void> {
    if (plan == nullptr) return {};
    WEIR_TRY_VALUE(object, take(plan));
    const std::lock_guard lock{object->mutex};
    object->plan.abort();
    return {};
  });
}

}  // extern "C"

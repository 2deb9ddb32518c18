// SPDX-License-Identifier: Apache-2.0
// The C ABI's view of an allocator: tags, counters, reports, limits, and release to the driver.
#include <algorithm>
#include <cstdint>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "observe/current_tag.hpp"
#include "weir.h"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace capi {

weir_memory_stats to_c(const memory_stats& from) noexcept {
  weir_memory_stats known{};
  known.struct_size = sizeof(known);
  known.requested = to_c(from.requested);
  known.allocated = to_c(from.allocated);
  known.active = to_c(from.active);
  known.reserved = to_c(from.reserved);
  known.blocks = to_c(from.blocks);
  known.cached = from.cached.count();
  known.thread_cached = from.thread_cached.count();
  known.pending = from.pending.count();
  known.stream_bound = from.stream_bound.count();
  known.allocations = from.allocations;
  known.frees = from.frees;
  known.hits = from.hits;
  known.failures = from.failures;
  known.handles_created = from.handles_created;
  known.handles_moved = from.handles_moved;
  known.handles_returned = from.handles_returned;
  known.handles_released = from.handles_released;
  known.waits = from.waits;
  known.events = from.events;
  known.metadata = from.metadata.count();
  known.heap_hits = from.heap_hits;
  known.misses = from.misses;
  known.active_requested = to_c(from.active_requested);
  known.active_blocks = to_c(from.active_blocks);
  return known;
}

result<tag> find_tag(std::uint32_t number) {
  if (number > tag::most)
    return error{{.code = errc::not_found, .detail = "tag: no tag has this number"}};
  return tag::numbered(static_cast<std::uint16_t>(number));
}

}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

// --- Tags ---------------------------------------------------------------------------------------

weir_error weir_tag_named(const char* name, uint32_t* number) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(name);
    WEIR_NEEDS(number);
    WEIR_TRY_VALUE(named, tag::named(name));
    *number = named.number();
    return {};
  });
}

const char* weir_tag_name(uint32_t number) {
  const auto numbered = find_tag(number);
  if (!numbered) return nullptr;
  return numbered->number() == 0 ? "" : numbered->name().data();  // ends with a null character
}

weir_error weir_tag_set_current(uint32_t number, uint32_t* previous) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(current, find_tag(number));
    if (previous != nullptr) *previous = observe::thread_tag.number();
    observe::thread_tag = current;
    return {};
  });
}

// --- Counters and reports -----------------------------------------------------------------------

weir_error weir_allocator_size_of(weir_allocator* allocator, const void* pointer, uint64_t* size) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(size);
    WEIR_TRY_VALUE(requested, object->memory.size_of(pointer));
    *size = requested.count();
    return {};
  });
}

weir_error weir_allocator_get_stats(weir_allocator* allocator, weir_memory_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY(check_size(stats, "stats"));
    return hand_out(to_c(object->memory.stats()), stats);
  });
}

weir_error weir_allocator_get_tag_stats(weir_allocator* allocator, uint32_t number,
                                        weir_memory_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(counted, find_tag(number));
    WEIR_TRY(check_size(stats, "stats"));
    return hand_out(to_c(object->memory.stats(counted)), stats);
  });
}

weir_error weir_allocator_get_stats_by_tag(weir_allocator* allocator, weir_tag_stats* tags,
                                           uint64_t capacity, uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(count);
    WEIR_TRY_VALUE(into, array_argument<weir_tag_stats>::of(tags, capacity));
    auto all = object->memory.stats_by_tag();
    std::stable_sort(all.begin(), all.end(), [](const tag_stats& a, const tag_stats& b) {
      return a.stats.allocated.current > b.stats.allocated.current;
    });
    *count = all.size();
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(capacity, all.size()); ++i)
      into.write(i, {0, all[i].tag.number(), to_c(all[i].stats)});
    return {};
  });
}

weir_error weir_allocator_reset_peaks(weir_allocator* allocator) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    object->memory.reset_peaks();
    return {};
  });
}

weir_error weir_allocator_reset_counters(weir_allocator* allocator) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    object->memory.reset_counters();
    return {};
  });
}

weir_error weir_allocator_get_block_streams(weir_allocator* allocator, const void* address,
                                            uint64_t* streams, uint64_t capacity, uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(count);
    if (streams == nullptr && capacity != 0)
      return error{{.code = errc::invalid_argument, .detail = "streams is null"}};
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    for (const pool_snapshot& pool : object->memory.snapshot().pools) {
      for (const block_info& block : pool.blocks) {
        if (block.address != wanted ||
            (block.state != block_state::live && block.state != block_state::pending))
          continue;
        const auto& known = block.state == block_state::live ? block.recorded : block.waits_for;
        for (std::size_t i = 0; i < std::min<std::uint64_t>(known.size(), capacity); ++i)
          streams[i] = known[i].number();
        *count = known.size();
        return {};
      }
    }
    return error{{.code = errc::foreign_pointer, .detail = "no block begins at this address"}};
  });
}

weir_error weir_allocator_explain(weir_allocator* allocator, uint64_t size, weir_stream* stream,
                                  char* text, uint64_t capacity, uint64_t* length) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(target, find_stream(stream, *object));
    return hand_out_text(object->memory.explain(bytes{size}, target.ref).text(), text, capacity,
                         length);
  });
}

weir_error weir_allocator_describe_address(weir_allocator* allocator, const void* address,
                                           char* text, uint64_t capacity, uint64_t* length) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(words, object->memory.describe_address(address));
    return hand_out_text(words, text, capacity, length);
  });
}

// --- Release to the driver, limits --------------------------------------------------------------

weir_error weir_allocator_trim(weir_allocator* allocator, uint64_t keep, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return write_size(object->memory.trim(bytes{keep}), released);
  });
}

weir_error weir_allocator_shrink(weir_allocator* allocator, uint64_t keep, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return write_size(object->memory.shrink(bytes{keep}), released);
  });
}

weir_error weir_allocator_empty_cache(weir_allocator* allocator, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return write_size(object->memory.empty_cache(), released);
  });
}

weir_error weir_allocator_release_stream(weir_allocator* allocator, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(target, find_stream(stream, *object));
    return object->memory.release_stream(target.ref);
  });
}

weir_error weir_allocator_set_limit(weir_allocator* allocator, uint64_t most) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return object->memory.set_limit(bytes{most});
  });
}

weir_error weir_allocator_set_limit_fraction(weir_allocator* allocator, double of_device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    return object->memory.set_limit_fraction(of_device);
  });
}

weir_error weir_allocator_get_limit(weir_allocator* allocator, uint64_t* most) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(most);
    *most = object->memory.limit().count();
    return {};
  });
}

weir_error weir_allocator_set_tag_limit(weir_allocator* allocator, uint32_t number, uint64_t most) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY_VALUE(counted, find_tag(number));
    return object->memory.set_limit(counted, bytes{most});
  });
}
}

// The C ABI's view of an allocator: blocks, counters, reports, limits, giving back, tags.
#include <algorithm>
#include <cstdint>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "observe/current_tag.hpp"
#include "weir.h"
#include "weir/observe/tag.hpp"

namespace weir::inline v0::capi {

weir_memory_stats to_c(const memory_stats& from) noexcept {
  weir_memory_stats known{};
  known.struct_size = sizeof(known);
  known.requested = to_c(from.requested);
  known.allocated = to_c(from.allocated);
  known.active = to_c(from.active);
  known.reserved = to_c(from.reserved);
  known.blocks = to_c(from.blocks);
  known.cached = from.cached;
  known.thread_cached = from.thread_cached;
  known.pending = from.pending;
  known.stream_bound = from.stream_bound;
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
  known.metadata = from.metadata;
  return known;
}

namespace {

result<tag> find_tag(std::uint32_t number) {
  if (number > tag::most) return error{.code = errc::not_found, .detail = "no tag has this number"};
  return tag::numbered(static_cast<std::uint16_t>(number));
}

result<void> tell_how_much(const result<bytes>& went, std::uint64_t* released) {
  if (!went) return went.error();
  if (released != nullptr) *released = went->count();
  return {};
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

// --- Tags ---------------------------------------------------------------------------------------

weir_error weir_tag_named(const char* name, uint32_t* number) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(name);
    WEIR_NEEDS(number);
    WEIR_TRY_VALUE(found, tag::named(name));
    *number = found.number();
    return {};
  });
}

const char* weir_tag_name(uint32_t number) {
  const auto found = find_tag(number);
  if (!found) return nullptr;
  return found->number() == 0 ? "" : found->name().data();  // ends with a null character
}

weir_error weir_tag_set_current(uint32_t number, uint32_t* previous) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_tag(number));
    if (previous != nullptr) *previous = observe::thread_tag.number();
    observe::thread_tag = found;
    return {};
  });
}

// --- Counters and reports -----------------------------------------------------------------------

weir_error weir_allocator_size_of(weir_allocator* allocator, const void* pointer, uint64_t* size) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_NEEDS(size);
    WEIR_TRY_VALUE(asked, found->memory.size_of(pointer));
    *size = asked.count();
    return {};
  });
}

weir_error weir_allocator_get_stats(weir_allocator* allocator, weir_memory_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_TRY(check_size(stats, "stats"));
    return hand_out(to_c(found->memory.stats()), stats);
  });
}

weir_error weir_allocator_get_tag_stats(weir_allocator* allocator, uint32_t number,
                                        weir_memory_stats* stats) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_TRY_VALUE(which, find_tag(number));
    WEIR_TRY(check_size(stats, "stats"));
    return hand_out(to_c(found->memory.stats(which)), stats);
  });
}

weir_error weir_allocator_get_stats_by_tag(weir_allocator* allocator, weir_tag_stats* tags,
                                           uint64_t capacity, uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_NEEDS(count);
    WEIR_TRY_VALUE(into, array_argument<weir_tag_stats>::of(tags, capacity));
    auto all = found->memory.stats_by_tag();
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
    WEIR_TRY_VALUE(found, find(allocator));
    found->memory.reset_peaks();
    return {};
  });
}

weir_error weir_allocator_explain(weir_allocator* allocator, uint64_t size, weir_stream* stream,
                                  char* text, uint64_t capacity, uint64_t* length) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_TRY_VALUE(where, find_stream(stream, *found));
    return hand_out_text(found->memory.explain(bytes{size}, where.ref).text(), text, capacity,
                         length);
  });
}

// --- Giving back and limits ---------------------------------------------------------------------

weir_error weir_allocator_trim(weir_allocator* allocator, uint64_t keep, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    return tell_how_much(found->memory.trim(bytes{keep}), released);
  });
}

weir_error weir_allocator_empty_cache(weir_allocator* allocator, uint64_t* released) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    return tell_how_much(found->memory.empty_cache(), released);
  });
}

weir_error weir_allocator_release_stream(weir_allocator* allocator, weir_stream* stream) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_TRY_VALUE(where, find_stream(stream, *found));
    return found->memory.release_stream(where.ref);
  });
}

weir_error weir_allocator_set_limit(weir_allocator* allocator, uint64_t most) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    return found->memory.set_limit(bytes{most});
  });
}

weir_error weir_allocator_set_limit_fraction(weir_allocator* allocator, double of_device) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    return found->memory.set_limit_fraction(of_device);
  });
}

weir_error weir_allocator_get_limit(weir_allocator* allocator, uint64_t* most) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_NEEDS(most);
    *most = found->memory.limit().count();
    return {};
  });
}

weir_error weir_allocator_set_tag_limit(weir_allocator* allocator, uint32_t number, uint64_t most) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_TRY_VALUE(which, find_tag(number));
    return found->memory.set_limit(which, bytes{most});
  });
}
}

// SPDX-License-Identifier: Apache-2.0
// The C ABI's snapshots of an allocator, and the block that an address lies in.
#include <algorithm>
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"

namespace weir { inline namespace v0 { namespace capi {

struct snapshot_object {
  allocator_snapshot snapshot;
};
WEIR_HANDLE_KIND(snapshot)

namespace {

static_assert(static_cast<int>(block_state::live) == weir_block_live &&
              static_cast<int>(block_state::thread_cached) == weir_block_thread_cached &&
              static_cast<int>(block_state::pending) == weir_block_pending &&
              static_cast<int>(block_state::stream_bound) == weir_block_stream_bound &&
              static_cast<int>(block_state::free) == weir_block_free &&
              static_cast<int>(block_state::hole) == weir_block_hole);

weir_block_info block_to_c(const block_info& from, pool_id pool) noexcept {
  weir_block_info known{};
  known.state = static_cast<std::int32_t>(from.state);
  known.address = from.address;
  known.size = from.size.count();
  known.requested = from.requested.count();
  known.stream = from.stream.number();
  known.pool = pool.number();
  known.tag = from.tag.number();
  return known;
}

result<void> hand_out_snapshot(allocator_snapshot snapshot, weir_snapshot** into) {
  auto object = std::make_shared<snapshot_object>(snapshot_object{std::move(snapshot)});
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_snapshot>(std::move(object)));
  *into = handle;
  return {};
}

result<const pool_snapshot*> pool_at(const snapshot_object& object, std::uint64_t index) {
  if (index >= object.snapshot.pools.size())
    return error{
        {.code = errc::not_found, .detail = "index exceeds the number of pools of the snapshot"}};
  return &object.snapshot.pools[index];
}

/// Copies the elements of `from`, through `convert`, from number `first` on.
template <class Info, class Element, class Convert>
result<void> copy_array(const std::vector<Element>& from, std::uint64_t first, Info* into,
                        std::uint64_t capacity, std::uint64_t* count, const Convert& convert) {
  if (count == nullptr) return missing("count");
  WEIR_TRY_VALUE(to, array_argument<Info>::of(into, capacity));
  const std::uint64_t rest = first < from.size() ? from.size() - first : 0;
  *count = std::min(rest, capacity);
  for (std::uint64_t i = 0; i < *count; ++i) to.write(i, convert(from[first + i]));
  return {};
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_allocator_find_block(weir_allocator* allocator, const void* address,
                                     weir_block_info* block) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_TRY(check_size(block, "block"));
    WEIR_TRY_VALUE(around, object->memory.block_at(address));
    return hand_out(block_to_c(around, around.pool), block);
  });
}

weir_error weir_snapshot_take(weir_allocator* allocator, weir_snapshot** snapshot) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(snapshot);
    return hand_out_snapshot(object->memory.snapshot(), snapshot);
  });
}

weir_error weir_snapshot_take_pool(weir_pool* pool, weir_snapshot** snapshot) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(pool));
    WEIR_NEEDS(snapshot);
    pool_snapshot one = object->pool.snapshot();
    allocator_snapshot of_pool;
    of_pool.device = object->owner->legacy.device().id();
    of_pool.stats = one.stats;
    of_pool.pools.push_back(std::move(one));
    return hand_out_snapshot(std::move(of_pool), snapshot);
  });
}

weir_error weir_snapshot_close(weir_snapshot* snapshot) {
  return guarded([&]() -> result<void> {
    if (snapshot == nullptr) return {};
    WEIR_TRY(take(snapshot));
    return {};
  });
}

weir_error weir_snapshot_get_info(weir_snapshot* snapshot, weir_snapshot_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(snapshot));
    weir_snapshot_info known{};
    known.device = object->snapshot.device.number();
    known.pool_count = object->snapshot.pools.size();
    known.stats = capi::to_c(object->snapshot.stats);
    return hand_out(known, info);
  });
}

weir_error weir_snapshot_get_pool(weir_snapshot* snapshot, uint64_t pool, weir_pool_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(snapshot));
    WEIR_TRY_VALUE(shown, pool_at(*object, pool));
    weir_pool_info known{};
    known.id = shown->id.number();
    known.block_count = shown->blocks.size();
    known.physical_count = shown->physical.size();
    known.stats = capi::to_c(shown->stats);
    copy_text(known.name, shown->name);
    return hand_out(known, info);
  });
}

weir_error weir_snapshot_get_blocks(weir_snapshot* snapshot, uint64_t pool, uint64_t first,
                                    weir_block_info* blocks, uint64_t capacity, uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(snapshot));
    WEIR_TRY_VALUE(shown, pool_at(*object, pool));
    return copy_array(shown->blocks, first, blocks, capacity, count,
                      [&](const block_info& each) { return block_to_c(each, shown->id); });
  });
}

weir_error weir_snapshot_get_physical(weir_snapshot* snapshot, uint64_t pool, uint64_t first,
                                      weir_physical_info* physical, uint64_t capacity,
                                      uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(snapshot));
    WEIR_TRY_VALUE(shown, pool_at(*object, pool));
    return copy_array(shown->physical, first, physical, capacity, count,
                      [](const physical_info& each) {
                        return weir_physical_info{0, 0, each.address, each.size.count()};
                      });
  });
}
}

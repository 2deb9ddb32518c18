// The C ABI's snapshots of an allocator, and the block that an address lies in.
#include <algorithm>
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"

namespace weir::inline v0::capi {

struct snapshot_object {
  allocator_snapshot seen;
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

result<void> hand_out_snapshot(allocator_snapshot seen, weir_snapshot** into) {
  auto object = std::make_shared<snapshot_object>(snapshot_object{std::move(seen)});
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_snapshot>(std::move(object)));
  *into = handle;
  return {};
}

result<const pool_snapshot*> pool_at(const snapshot_object& of, std::uint64_t index) {
  if (index >= of.seen.pools.size())
    return error{.code = errc::not_found, .detail = "the snapshot has no such pool"};
  return &of.seen.pools[index];
}

/// Copies what is in `from`, as `convert` makes it, from number `first` on.
template <class Info, class Element, class Convert>
result<void> copy_array(const std::vector<Element>& from, std::uint64_t first, Info* into,
                        std::uint64_t capacity, std::uint64_t* count, const Convert& convert) {
  if (count == nullptr) return missing("count");
  WEIR_TRY_VALUE(to, array_argument<Info>::of(into, capacity));
  const std::uint64_t left = first < from.size() ? from.size() - first : 0;
  *count = std::min(left, capacity);
  for (std::uint64_t i = 0; i < *count; ++i) to.write(i, convert(from[first + i]));
  return {};
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_allocator_find_block(weir_allocator* allocator, const void* address,
                                     weir_block_info* block) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_TRY(check_size(block, "block"));
    WEIR_TRY_VALUE(around, found->memory.block_at(address));
    return hand_out(block_to_c(around, around.pool), block);
  });
}

weir_error weir_snapshot_take(weir_allocator* allocator, weir_snapshot** snapshot) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(allocator));
    WEIR_NEEDS(snapshot);
    return hand_out_snapshot(found->memory.snapshot(), snapshot);
  });
}

weir_error weir_snapshot_take_pool(weir_pool* pool, weir_snapshot** snapshot) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(pool));
    WEIR_NEEDS(snapshot);
    pool_snapshot one = found->pool.snapshot();
    allocator_snapshot seen;
    seen.device = found->owner->legacy.device().id();
    seen.stats = one.stats;
    seen.pools.push_back(std::move(one));
    return hand_out_snapshot(std::move(seen), snapshot);
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
    WEIR_TRY_VALUE(found, find(snapshot));
    weir_snapshot_info known{};
    known.device = found->seen.device.number();
    known.pool_count = found->seen.pools.size();
    known.stats = capi::to_c(found->seen.stats);
    return hand_out(known, info);
  });
}

weir_error weir_snapshot_get_pool(weir_snapshot* snapshot, uint64_t pool, weir_pool_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(snapshot));
    WEIR_TRY_VALUE(which, pool_at(*found, pool));
    weir_pool_info known{};
    known.id = which->id.number();
    known.block_count = which->blocks.size();
    known.physical_count = which->physical.size();
    known.stats = capi::to_c(which->stats);
    copy_text(known.name, which->name);
    return hand_out(known, info);
  });
}

weir_error weir_snapshot_get_blocks(weir_snapshot* snapshot, uint64_t pool, uint64_t first,
                                    weir_block_info* blocks, uint64_t capacity, uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(snapshot));
    WEIR_TRY_VALUE(which, pool_at(*found, pool));
    return copy_array(which->blocks, first, blocks, capacity, count,
                      [&](const block_info& each) { return block_to_c(each, which->id); });
  });
}

weir_error weir_snapshot_get_physical(weir_snapshot* snapshot, uint64_t pool, uint64_t first,
                                      weir_physical_info* physical, uint64_t capacity,
                                      uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(snapshot));
    WEIR_TRY_VALUE(which, pool_at(*found, pool));
    return copy_array(which->physical, first, physical, capacity, count,
                      [](const physical_info& each) {
                        return weir_physical_info{0, 0, each.address, each.size.count()};
                      });
  });
}
}

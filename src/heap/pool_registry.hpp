// SPDX-License-Identifier: Apache-2.0
// The private pools of a heap: who holds them, what lies under their blocks, and when they end.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "base/mutex.hpp"
#include "heap/heap_backup.hpp"
#include "heap/heap_core.hpp"
#include "heap/private_pools.hpp"
#include "heap/stream_progress.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What the pool registry asks of the rest of the heap. Implemented by the central heap. Called
/// with the heap's lock.
class pool_registry_host {
 public:
  /// The record of a live block, or why the address is not that of one.
  [[nodiscard]] virtual result<block_index> find_live(const void* pointer) = 0;

 protected:
  ~pool_registry_host() = default;
};

/// The part of a heap that creates private pools, shares them and ends them.
///
/// The pools themselves are in the core. Always true, with the lock: a pool that has holders or
/// blocks stays. One that has neither ends in the next sweep (`pools_to_sweep_` is set), or in a
/// later one if work that uses its memory is not completed. Pools of captures end here as well
/// (capture_pools creates them).
///
/// Owned by the central heap. Any thread may call what takes the lock; the rest is for other parts
/// of the heap, which hold it. A sweep makes a driver call for each handle that it releases, and
/// none if no pool has ended.
class pool_registry {
 public:
  pool_registry(heap_core& core, stream_progress& progress, heap_backup& backup,
                pool_registry_host& host) noexcept
      : core_{core}, progress_{progress}, backup_{backup}, host_{host} {}
  pool_registry(const pool_registry&) = delete;
  pool_registry& operator=(const pool_registry&) = delete;

  [[nodiscard]] result<std::shared_ptr<pool>> create(std::string_view name, pool_options options)
      WEIR_EXCLUDES(core_.mutex_);
  /// Another handle to the pool; null if no pool has that number.
  [[nodiscard]] std::shared_ptr<pool> share(pool_id id) WEIR_EXCLUDES(core_.mutex_);
  /// A holder has gone: a handle or a claim.
  void release(pool_id id) noexcept WEIR_EXCLUDES(core_.mutex_);
  result<void> set_fallback(pool_id id, bool value) WEIR_EXCLUDES(core_.mutex_);
  /// The physical memory under any block, or only under one of that pool.
  [[nodiscard]] result<block_handles> handles_under(const void* pointer,
                                                    std::optional<pool_id> owner = {})
      WEIR_EXCLUDES(core_.mutex_);

  // With the lock.

  /// Releases the pools that nobody holds and that have no blocks, as far as streams have passed
  /// them. What cannot go now goes at the next look for room, trim or wait. Lets go of the lock
  /// where memory goes whose free waits for the device.
  void sweep(order::driver_access& driver) noexcept;
  /// The same for a request to a pool, which is kept. `closed`: the heap was closed meanwhile.
  [[nodiscard]] result<void> sweep(pool_state& asking, order::driver_access& driver);

 private:
  heap_core& core_;
  stream_progress& progress_;
  heap_backup& backup_;
  pool_registry_host& host_;
};

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// Releasing memory to the driver because somebody asks for it.
#pragma once

#include <cstdint>

#include "base/mutex.hpp"
#include "heap/cache_flusher.hpp"
#include "heap/heap_core.hpp"
#include "heap/pool_registry.hpp"
#include "heap/residency.hpp"
#include "heap/stream_progress.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The part of a heap that releases free memory to the driver because the user asks for it.
///
/// Never touches live blocks, and changes nothing that memory could be found by: what is released
/// is quiescent, and its pools know. Has no state of its own.
///
/// Owned by the central heap. Any thread. Makes a driver call for each handle that it releases.
/// Each function says what it waits for. The lock is released during waits and during driver calls
/// that wait for the device.
class trimming {
 public:
  trimming(heap_core& core, cache_flusher& flusher, stream_progress& progress, pool_registry& pools,
           residency& suspended) noexcept
      : core_{core}, flusher_{flusher}, progress_{progress}, pools_{pools}, residency_{suspended} {}
  trimming(const trimming&) = delete;
  trimming& operator=(const trimming&) = delete;

  /// Releases what is quiescent now until no more than `keep` is reserved. Waits for nobody.
  /// Returns how much less is reserved, as the others do.
  result<bytes> trim(bytes keep) WEIR_EXCLUDES(core_.mutex_);
  /// The same; if that is not enough, waits for the streams, and then suspends what is evictable.
  result<bytes> shrink(bytes keep) WEIR_EXCLUDES(core_.mutex_);
  /// Releases all free memory, after the streams are waited for.
  result<bytes> empty_cache() WEIR_EXCLUDES(core_.mutex_);
  /// The same of one pool. Of a pool for graphs, nothing if replays may be under way afterwards.
  [[nodiscard]] result<bytes> empty_cache(pool_id id) WEIR_EXCLUDES(core_.mutex_);

 private:
  [[nodiscard]] result<bytes> release_down_to(std::uint64_t keep, order::driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  /// The same with what threads hold and what streams have completed by now.
  [[nodiscard]] result<bytes> release_cached(bytes keep, order::driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);

  heap_core& core_;
  cache_flusher& flusher_;
  stream_progress& progress_;
  pool_registry& pools_;
  residency& residency_;
};

}}}  // namespace weir::v0::heap

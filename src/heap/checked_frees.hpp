// SPDX-License-Identifier: Apache-2.0
// Frees under heap_debug: the block is inspected once the streams that may use it are done.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "heap/heap_core.hpp"
#include "heap/inspector.hpp"
#include "heap/pool_registry.hpp"
#include "heap/stream_progress.hpp"
#include "heap/vocabulary.hpp"
#include "order/driver_access.hpp"
#include "placement/backing_store.hpp"
#include "weir/base/error.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// Frees blocks of stores that inspect them, and tells what was damaged.
///
/// A checked free waits for the stream that it names and for the recorded ones, so that the store
/// can look at the block before the call returns. What cannot be waited for now (a capture, a
/// driver in trouble, no host memory) is inspected in a later call, or when the allocator is
/// closed. Damage of a block whose free is under way is the error of that free. All other damage
/// goes to the error handler.
///
/// Owned by the central heap. The caller holds the heap's lock. A free costs a wait for the streams
/// without the lock, and a copy of the block's surroundings to the host.
class checked_frees final : private placement::damage_sink {
 public:
  /// The stores of the core report damage to it as long as it lives.
  checked_frees(heap_core& core, stream_progress& progress, const inspector& inspector,
                pool_registry& pools) noexcept;
  ~checked_frees();
  checked_frees(const checked_frees&) = delete;
  checked_frees& operator=(const checked_frees&) = delete;

  /// Sees to it that free() needs no host memory for its own record. May throw std::bad_alloc.
  void prepare();
  /// Frees a live block, counted as freed, on the stream. Whatever fails in here, the block is
  /// freed. Lets go of the lock while it waits for the streams that were declared.
  [[nodiscard]] result<void> free(block_index index, stream_slot slot, driver_access& driver);
  /// Has the stores look at what was freed and is not in use any more.
  result<void> inspect_freed(driver_access& driver);

 private:
  /// A free whose caller waits to learn whether the block was damaged.
  struct awaited_free {
    std::uint64_t address = 0;
    std::optional<error> damaged{};
  };

  [[nodiscard]] result<void> wait_for(const std::vector<stamp>& declared, driver_access& driver)
      WEIR_REQUIRES(core_.mutex_);
  void on_damage(const placement::damage& found) noexcept override;

  heap_core& core_;
  stream_progress& progress_;
  const inspector& inspector_;
  pool_registry& pools_;
  std::vector<awaited_free*> awaited_ WEIR_GUARDED_BY(core_.mutex_);
};

}}}  // namespace weir::v0::heap

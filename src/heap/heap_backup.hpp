// SPDX-License-Identifier: Apache-2.0
// The host memory of a heap for the contents of suspended pools.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "heap/backup.hpp"
#include "heap/heap_core.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The part of a heap that keeps contents of suspended pools on the host.
///
/// Has an arena of pinned and one of pageable memory, and the copiers that no move uses now. Always
/// true, with the lock: a piece of an arena is in pool_state::saved of one pool, in the move that
/// copies it, or free.
///
/// Owned by the central heap. Any thread. Memory is taken from the system and returned to it
/// without the heap's lock, which takes long.
class heap_backup {
 public:
  explicit heap_backup(heap_core& core) noexcept
      : core_{core},
        pinned_{core.device_, host_memory_kind::pinned, held_},
        pageable_{core.device_, host_memory_kind::pageable, held_} {}
  heap_backup(const heap_backup&) = delete;
  heap_backup& operator=(const heap_backup&) = delete;

  // --- For users --------------------------------------------------------------------------------

  result<void> reserve(bytes size, host_memory_kind kind) WEIR_EXCLUDES(core_.mutex_);
  /// Returns what is free to the system.
  result<bytes> trim() WEIR_EXCLUDES(core_.mutex_);

  // --- For the heap -----------------------------------------------------------------------------

  /// How much is held, of both kinds together. With or without the lock.
  [[nodiscard]] byte_gauge held() const noexcept { return held_.read(); }
  void reset_peak() noexcept { held_.reset_peak(); }
  /// With or without the lock.
  [[nodiscard]] backup_memory& of(host_memory_kind kind) noexcept {
    return kind == host_memory_kind::pinned ? pinned_ : pageable_;
  }

  // With the lock.

  /// A copier for one move.
  [[nodiscard]] std::unique_ptr<backup_copies> take_copies();
  void keep_copies(std::unique_ptr<backup_copies> idle) noexcept;
  /// The pool's contents on the host are not needed any more.
  void drop(pool_state& pool) noexcept;
  /// Of these addresses, where a block was freed.
  void drop(pool_state& pool, std::uint64_t start, std::uint64_t end) noexcept;
  /// Once the heap is closed: drops all contents and returns the memory. Lets go of the lock.
  [[nodiscard]] result<bytes> release();

 private:
  heap_core& core_;
  backup_gauge held_;
  backup_memory pinned_;
  backup_memory pageable_;
  std::vector<std::unique_ptr<backup_copies>> idle_copies_ WEIR_GUARDED_BY(core_.mutex_);
};

}}}  // namespace weir::v0::heap

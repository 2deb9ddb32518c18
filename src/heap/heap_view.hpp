// SPDX-License-Identifier: Apache-2.0
// What other components ask of a heap, without the definition of the central heap.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "heap/card_shares.hpp"
#include "heap/rung.hpp"
#include "weir/allocator/allocator_options.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace heap {

class central_heap;

/// The heap of a new allocator.
[[nodiscard]] result<std::shared_ptr<central_heap>> create_heap(weir::device device,
                                                                const allocator_options& options);

/// The heap of an allocator, for who calls its fast path (heap/fast_path.hpp).
[[nodiscard]] central_heap& heap_of(const caching_allocator& allocator) noexcept;

/// A handle to the heap of an allocator, for components that watch it, limit it or end with it.
///
/// Keeps the heap alive, as a copy of the allocator does. An empty one is false, and nothing else
/// may be asked of it. Any thread.
class heap_view {
 public:
  heap_view() noexcept = default;
  explicit heap_view(std::shared_ptr<central_heap> heap) noexcept;
  explicit heap_view(const caching_allocator& allocator);

  explicit operator bool() const noexcept { return heap_ != nullptr; }

  [[nodiscard]] std::vector<tag_stats> stats_by_tag() const;
  [[nodiscard]] allocator_snapshot snapshot() const;
  /// What the allocator's stats count as reserved, for the price of the lock.
  [[nodiscard]] bytes reserved() const;
  /// The smaller of the user's own limit and the lowest ceiling of a share.
  [[nodiscard]] bytes limit() const noexcept;
  [[nodiscard]] result<bytes> shrink(bytes keep) const;

  // Shares of the card's budget, each named by its holder.

  result<void> add_share(const void* holder, bytes ceiling, neighbourhood known) const;
  result<void> set_ceiling(const void* holder, bytes most) const;
  void remove_share(const void* holder) const noexcept;
  /// The numbers of the members that have them.
  [[nodiscard]] std::vector<std::int32_t> members() const;

  /// Expires when the heap, which is being destroyed, has told its last event.
  [[nodiscard]] std::weak_ptr<const void> events() const noexcept;
  /// How the latest requests went. For who knows that no other thread is inside. Valid as long as
  /// the heap.
  [[nodiscard]] const search_trail& trail() const noexcept;

 private:
  std::shared_ptr<central_heap> heap_;
};

/// The same without keeping the heap alive.
class weak_heap_view {
 public:
  explicit weak_heap_view(const caching_allocator& allocator) noexcept;

  /// Empty: the heap is gone.
  [[nodiscard]] heap_view lock() const noexcept { return heap_view{heap_.lock()}; }
  [[nodiscard]] bool expired() const noexcept { return heap_.expired(); }

 private:
  std::weak_ptr<central_heap> heap_;
};

}}}  // namespace weir::v0::heap

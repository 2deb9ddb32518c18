// SPDX-License-Identifier: Apache-2.0
// Where blocks lie in the segments of a host arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/block.hpp"
#include "host/size_tree.hpp"

namespace weir { inline namespace v0 { namespace host {

/// Best fit over all segments: sizes are rounded to 64 bytes and to nothing else, and free
/// neighbours are joined at once.
///
/// Always true: the blocks of a segment cover it without gap or overlap, no two free ones adjoin,
/// and exactly the free blocks of serving segments are in the tree. Owned by an arena, whose lock
/// every call needs. take() and give() are O(log free blocks).
class best_fit {
 public:
  best_fit() = default;
  best_fit(const best_fit&) = delete;
  best_fit& operator=(const best_fit&) = delete;

  /// A new segment, all free. Throws std::bad_alloc; then nothing has changed.
  segment& add(const pinned_memory& memory);
  /// A new segment that serves nobody else: one live block of that size, which must have room.
  /// Throws std::bad_alloc.
  block& add_live(const pinned_memory& memory, std::uint64_t size, std::uint64_t alignment);
  /// Needs an idle segment.
  void remove(segment& idle) noexcept;
  /// Whether requests are served from the segment.
  void set_serves(segment& home, bool serves) noexcept;

  /// A live block of the smallest free run that has room; null: none has. `size` is a multiple of
  /// 64, `alignment` a power of two. Throws std::bad_alloc; then nothing has changed.
  [[nodiscard]] block* take(std::uint64_t size, std::uint64_t alignment);
  /// Whether take() would find room.
  [[nodiscard]] bool fits(std::uint64_t size, std::uint64_t alignment) const noexcept {
    return find(size, alignment) != nullptr;
  }
  /// Nothing uses the block any more.
  void give(block& gone) noexcept;
  /// The block over an address; null: no segment that holds anything has it. Walks over them.
  [[nodiscard]] block* block_at(std::uint64_t address) const noexcept;
  /// Free bytes of serving segments.
  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return free_bytes_; }
  [[nodiscard]] std::uint64_t largest_free() const noexcept {
    const block* const largest = free_.largest();
    return largest == nullptr ? 0 : largest->size;
  }
  [[nodiscard]] const std::vector<std::unique_ptr<segment>>& segments() const noexcept {
    return segments_;
  }
  [[nodiscard]] std::size_t footprint() const noexcept;
  /// What contradicts the invariants; empty if nothing.
  [[nodiscard]] std::string check() const;

 private:
  [[nodiscard]] block* find(std::uint64_t size, std::uint64_t alignment) const noexcept;
  /// Room for two new records is left.
  segment& insert_segment(const pinned_memory& memory);
  /// The live part of a block that was taken out of the tree. Needs room for two records.
  [[nodiscard]] block& cut(block& whole, std::uint64_t size, std::uint64_t alignment) noexcept;
  /// Cuts `size` bytes off the block's low end, which keep the record; the rest is a new free one.
  void split(block& low, std::uint64_t size) noexcept;
  void set_free(block& run) noexcept;
  void leave_tree(block& run) noexcept;

  std::vector<std::unique_ptr<segment>> segments_;
  block_records records_;
  size_tree free_;
  std::uint64_t free_bytes_ = 0;
};

}}}  // namespace weir::v0::host

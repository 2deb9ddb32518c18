// SPDX-License-Identifier: Apache-2.0
// Blocks in a given order, linked through their own records.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "placement/block.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// A search tree of runs or holes, streams apart.
///
/// Links its members through block.in.left and .right, so that taking one in and letting it go need
/// no memory and cannot fail; a block is in one tree at a time, and its key does not change
/// meanwhile. Balanced by chance: a heap over a mix of the record numbers. Every step is
/// O(log size). Owned by a store, under the heap's lock.
class block_tree {
 public:
  enum class order : std::uint8_t {
    size,    ///< by length, then by the rank in block.in.older, then by address
    address  ///< by address
  };

  /// Where a block stands. With order::address, units and rank are 0.
  struct key {
    stream_slot stream = no_stream;
    unit_count units;
    std::uint32_t rank = 0;
    std::uint64_t address = 0;

    friend auto operator<=>(const key&, const key&) = default;
  };

  block_tree(block_store& blocks, order by) noexcept : blocks_{blocks}, order_{by} {}

  void insert(block_index index) noexcept;
  /// Needs a block that is in the tree.
  void remove(block_index index) noexcept;
  [[nodiscard]] bool contains(block_index index) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  /// The stream's first block whose key is not below {stream, units}; no_block if none.
  [[nodiscard]] block_index first(stream_slot stream, std::uint64_t units = 0) const noexcept;
  /// The stream's last block; no_block if none.
  [[nodiscard]] block_index last(stream_slot stream) const noexcept;
  /// The one behind `which`, of the same stream; no_block if none.
  [[nodiscard]] block_index next(block_index index) const noexcept;

 private:
  [[nodiscard]] key key_of(block_index index) const noexcept;
  /// Either the link to the block or where it would be.
  [[nodiscard]] block_index* link_to(block_index index) noexcept;
  /// The first block whose key is above `low`, or equal to it where that counts.
  [[nodiscard]] block_index above(const key& low, bool or_equal) const noexcept;

  block_store& blocks_;
  order order_;
  block_index root_ = no_block;
  std::size_t size_ = 0;
};

}}}  // namespace weir::v0::placement

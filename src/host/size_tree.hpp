// SPDX-License-Identifier: Apache-2.0
// Free blocks in order of size.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/block.hpp"

namespace weir { inline namespace v0 { namespace host {

/// A search tree of free blocks by (size, address): the first that is large enough is the best fit,
/// at the lowest address among equals.
///
/// Links its members through their own records, so that adding and removing need no memory and
/// cannot fail. A member's size and address do not change while it is in the tree. Balanced by
/// chance (a treap): every step is O(log size). Owned by a best_fit, under the lock of its arena.
class size_tree {
 public:
  void insert(block& added) noexcept;
  /// Needs a member.
  void remove(block& gone) noexcept;
  /// The first of at least `size` bytes; null: there is none.
  [[nodiscard]] block* at_least(std::uint64_t size) const noexcept;
  /// The one behind a member; null: it is the last.
  [[nodiscard]] block* next(const block& member) const noexcept;
  [[nodiscard]] block* largest() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  [[nodiscard]] static bool precedes(const block& a, const block& b) noexcept {
    return a.size != b.size ? a.size < b.size : a.address < b.address;
  }

  block* root_ = nullptr;
  std::size_t size_ = 0;
};

}}}  // namespace weir::v0::host

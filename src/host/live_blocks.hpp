// SPDX-License-Identifier: Apache-2.0
// The live blocks of a host arena, by address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/block.hpp"

namespace weir { inline namespace v0 { namespace host {

/// A hash table with open addressing: a hit reads one or two cache lines.
///
/// Owned by an arena, under its lock. insert() needs prepare() before; nothing else needs memory.
class live_blocks {
 public:
  /// The next insert() cannot fail. Throws std::bad_alloc.
  void prepare() {
    if ((size_ + 1) * 2 > places_.size()) grow();
  }
  void insert(block& live) noexcept {
    std::size_t at = home_of(live.address);
    while (places_[at] != nullptr) at = next(at);
    places_[at] = &live;
    ++size_;
  }
  /// The block that starts there; null: there is none.
  [[nodiscard]] block* find(std::uint64_t address) const noexcept {
    if (places_.empty()) return nullptr;
    for (std::size_t at = home_of(address); places_[at] != nullptr; at = next(at))
      if (places_[at]->address == address) return places_[at];
    return nullptr;
  }
  /// Needs a member.
  void erase(const block& gone) noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t footprint() const noexcept {
    return places_.capacity() * sizeof(block*);
  }

 private:
  [[nodiscard]] std::size_t home_of(std::uint64_t address) const noexcept {
    return static_cast<std::size_t>((address / granularity * 0x9e37'79b9'7f4a'7c15U) >> 20) &
           (places_.size() - 1);
  }
  [[nodiscard]] std::size_t next(std::size_t at) const noexcept {
    return (at + 1) & (places_.size() - 1);
  }
  void grow();

  std::vector<block*> places_;  // a power of two; at most half full
  std::size_t size_ = 0;
};

}}}  // namespace weir::v0::host

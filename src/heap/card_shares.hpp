// SPDX-License-Identifier: Apache-2.0
// The shares of a card's budget that an allocator takes part with.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "observe/shortage.hpp"
#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// The other processes on the device, as one share knows them.
struct neighbourhood {
  /// The number of the share's member in this process.
  std::int32_t member = 0;
  /// For reports. Called with the heap's lock: it must not call the heap.
  std::function<std::vector<observe::neighbour>()> list{};
  /// Asks them to give way to memory that is being resumed; requests ask by a callback. Returns
  /// whether they did. Called without the lock.
  std::function<bool(bytes)> ask{};
  /// The heap was closed. Called once, without the lock; must not throw.
  std::function<void()> closed{};
};

/// The shares of one heap: each limits what the heap reserves, and knows its neighbours.
///
/// Most heaps have none, few have more than one. Owned by heap_limits, guarded by the heap's lock.
class card_shares {
 public:
  struct share {
    const void* holder = nullptr;  // names it
    std::uint64_t ceiling = 0;
    neighbourhood known{};
  };

  void add(share added) { shares_.push_back(std::move(added)); }
  void set_ceiling(const void* holder, std::uint64_t most) noexcept;
  /// The share, which was there or is empty.
  [[nodiscard]] share remove(const void* holder) noexcept;
  [[nodiscard]] std::vector<share> remove_all() noexcept { return std::exchange(shares_, {}); }

  /// The lowest; bytes::max() without a share.
  [[nodiscard]] std::uint64_t ceiling() const noexcept;
  /// Of the share that came last; empty without one.
  [[nodiscard]] neighbourhood latest() const;
  /// The numbers of the members whose shares these are.
  [[nodiscard]] std::vector<std::int32_t> members() const;

 private:
  std::vector<share> shares_;
};

}}}  // namespace weir::v0::heap

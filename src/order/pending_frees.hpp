// SPDX-License-Identifier: Apache-2.0
// Blocks that were freed while other streams than the free's may still use them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "order/stream_order.hpp"

namespace weir { inline namespace v0 { namespace order {

/// The caller's number of a block. 0 is none.
using block_index = std::uint32_t;
constexpr block_index no_block = 0;

/// Which further streams use live blocks, and the blocks that wait for them after their free.
///
/// A recorded block is in `uses` while it is live, in the list of waiting ones from its free until
/// every stream has completed its stamp. Owned by the central heap.
class pending_frees {
 public:
  struct waiting {
    block_index index = no_block;
    stamp freed;                // of the stream that freed it
    std::vector<stamp> others;  // of the streams that were recorded
  };

  /// The block is used on the stream, too.
  void record(block_index index, stream_slot stream);
  /// The streams that were recorded for a live block.
  [[nodiscard]] std::vector<stream_slot> recorded(block_index index) const {
    const auto entry = uses_.find(index);
    return entry == uses_.end() ? std::vector<stream_slot>{} : entry->second.recorded;
  }
  /// Sees to it that forget() and add() cannot fail for the block.
  void prepare(block_index index);
  /// The block is freed on the stream: what it has to wait for. It is forgotten as a live one.
  [[nodiscard]] waiting forget(block_index index, stream_slot freed_on, stream_order& all) noexcept;
  void add(waiting block) noexcept { list_.push_back(std::move(block)); }

  /// Takes out the blocks that nobody uses any more and hands each to `give(index, freed)`. True if
  /// there was one.
  template <class Give>
  bool take_completed(const stream_order& all, const Give& give) {
    bool any = false;
    for (std::size_t i = 0; i < list_.size();) {
      if (!completed(list_[i], all)) {
        ++i;
        continue;
      }
      const waiting done = std::move(list_[i]);
      list_[i] = std::move(list_.back());
      list_.pop_back();
      give(done.index, done.freed);
      any = true;
    }
    return any;
  }
  [[nodiscard]] const std::vector<waiting>& all() const noexcept { return list_; }
  /// Takes one out; its index in all().
  [[nodiscard]] waiting take(std::size_t at) noexcept;
  [[nodiscard]] bool empty() const noexcept { return list_.empty(); }
  void clear() noexcept;
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  [[nodiscard]] static bool completed(const waiting& block, const stream_order& all) noexcept;

  struct use {
    std::vector<stream_slot> recorded;
    std::vector<stamp> room;
  };

  std::unordered_map<block_index, use> uses_;
  std::vector<waiting> list_;
};

}}}  // namespace weir::v0::order

// SPDX-License-Identifier: Apache-2.0
// All blocks of a block_cache, in whatever state, and what is at an address.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "observe/misuse.hpp"
#include "order/stream_order.hpp"
#include "pools/size_bins.hpp"
#include "weir/base/error.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// The blocks of a block_cache, by the address that the user has or had.
///
/// Always true: a block has one place in the table, and stays where it lies in memory until it is
/// erased. Blocks on their way to or from the driver are hidden: they are in the table by an odd
/// number, which no address is. The driver may hand the address of a block that is being released
/// to another thread before this one hears of it.
///
/// Owned by a block_cache, whose lock every call needs. To place a block, or to hide it, needs no
/// host memory. To find a live block costs one look into a hash table. What is said about an
/// address that is none, and find_stream_bound(), walk over all blocks.
class block_table {
 public:
  /// `streams` has the numbers that errors call streams by.
  explicit block_table(const order::stream_order& streams) noexcept : streams_{streams} {}
  block_table(const block_table&) = delete;
  block_table& operator=(const block_table&) = delete;

  /// A new block, hidden. Throws std::bad_alloc.
  [[nodiscard]] block& add();
  void erase(const block& gone) noexcept { blocks_.erase(std::uint64_t{gone.key}); }
  /// The block has that address from now on, which no other one may have.
  void place(block& placed, std::uint64_t address) noexcept;
  /// The block keeps its address, but is not found there until it is placed again.
  void hide(block& hidden) noexcept { set_key(hidden, next_key()); }

  [[nodiscard]] bool has(std::uint64_t address) const { return blocks_.contains(address); }
  /// The live block at exactly that address; or the error of a free of what is there instead.
  [[nodiscard]] result<block*> find_live(const void* pointer);
  /// The block of that free, while streams may use it. Null: none may, or it has gone.
  [[nodiscard]] block* find_stream_bound(std::uint64_t order) noexcept;
  /// What a report names of the live blocks.
  [[nodiscard]] std::vector<observe::accused_block> live_blocks() const;

  template <class Action>
  void for_each(const Action& action) {
    for (auto& [key, each] : blocks_) action(each);
  }
  template <class Action>
  void for_each(const Action& action) const {
    for (const auto& [key, each] : blocks_) action(each);
  }

 private:
  [[nodiscard]] error why_not_live(std::uint64_t address) const;
  [[nodiscard]] observe::accused_block accused(const block& told) const;
  void set_key(block& moved, std::uint64_t key) noexcept;
  [[nodiscard]] std::uint64_t next_key() noexcept { return last_key_ += 2; }

  const order::stream_order& streams_;
  std::unordered_map<std::uint64_t, block> blocks_;
  std::uint64_t last_key_ = 1;
};

}}}  // namespace weir::v0::pools

// SPDX-License-Identifier: Apache-2.0
// Cached blocks, sorted by size and by the stream that freed them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "order/stream_order.hpp"
#include "pools/foreign_use.hpp"
#include "weir/base/bytes.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace pools {

using order::stamp;
using order::stream_slot;

enum class block_state : std::uint8_t {
  live,       // the user's
  cached,     // freed, in a bin
  pending,    // freed; recorded streams may still use it
  releasing,  // on its way to the driver, or on its way from there
};

/// A piece of memory that came from the driver in one go. Owned by a block_cache, under its lock.
struct block {
  std::uint64_t key = 0;      // in the block_table: `address`, or a number that no address has
  std::uint64_t base = 0;     // what the driver returned
  std::uint64_t address = 0;  // what the user has or had: base, aligned
  std::uint64_t size = 0;
  std::uint64_t requested = 0;
  block_state state = block_state::live;
  weir::tag tag{};                        // of the thread that it was handed out to
  stream_slot stream = order::no_stream;  // it was allocated for
  stream_slot freed_on = order::no_stream;
  stamp freed;                       // behind its free; nobody's once the block is quiescent
  std::vector<stamp> others;         // of recorded streams; the epochs count from the free on
  std::vector<foreign_use> foreign;  // by streams of other devices
  std::uint64_t order = 0;           // of frees
  std::chrono::nanoseconds freed_at{};
  block* before = nullptr;  // in its bin, among the pending, or among those that are released
  block* after = nullptr;

  /// A stream of another device uses it, too.
  void add_use(const foreign_use& use);
  /// Whether any stream may use it, and the driver may have it.
  [[nodiscard]] bool is_quiescent() const noexcept { return freed.stream == order::no_stream; }
};

/// Blocks in the order of their frees; a list through the blocks themselves, so that a free needs
/// no memory.
struct block_list {
  block* front = nullptr;
  block* back = nullptr;

  [[nodiscard]] bool empty() const noexcept { return front == nullptr; }
  void push_back(block& added) noexcept;
  void push_front(block& added) noexcept;
  void remove(block& removed) noexcept;
};

/// All cached blocks: one bin for each size and stream that freed blocks of it.
///
/// In a bin the blocks lie in the order of their frees, so the quiescent ones come first, and
/// retire() visits each block once. Owned by a block_cache, whose lock every call needs. To find a
/// block of the stream's own costs a search of the map; oldest() and retire() walk over all bins.
class size_bins {
 public:
  /// Sees to it that put() of such a block cannot fail.
  void prepare(std::uint64_t size, stream_slot slot) { bins_.try_emplace({size, slot}); }
  /// prepare() must have been called, and no retire() since.
  void put(block& freed) noexcept;
  /// Puts back what take_oldest() took: it is the oldest again.
  void put_back(block& taken);

  /// The block that the stream itself freed last; null if there is none.
  [[nodiscard]] block* take_own(std::uint64_t size, stream_slot slot) noexcept;
  /// A quiescent one.
  [[nodiscard]] block* take_quiescent(std::uint64_t size) noexcept;
  /// The quiescent one of any size that was freed first.
  [[nodiscard]] block* take_oldest() noexcept;
  /// The same without taking it.
  [[nodiscard]] const block* oldest() const noexcept;
  /// Of all blocks, quiescent or not, the one that was freed first.
  [[nodiscard]] const block* first_freed() const noexcept;
  /// That very block, which lies in a bin.
  void take(block& taken) noexcept;

  [[nodiscard]] bool any_stream_bound(std::uint64_t size) const noexcept;
  /// The first block in each stream's bin of this size that is not quiescent.
  [[nodiscard]] std::vector<block*> stream_bound(std::uint64_t size) const;
  /// Marks what is completed as quiescent and drops empty bins.
  void retire(const order::stream_order& progress) noexcept;

 private:
  struct bin {
    block_list blocks;
    block* first_bound = nullptr;  // all before it are quiescent
  };
  using key = std::pair<std::uint64_t, stream_slot>;  // size, stream

  std::map<key, bin> bins_;
};

}}}  // namespace weir::v0::pools

// Freed blocks, sorted by size and by the stream that freed them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "order/stream_order.hpp"
#include "weir/base/bytes.hpp"

namespace weir::inline v0::pools {

using order::stamp;
using order::stream_slot;

enum class block_state : std::uint8_t {
  live,     // the user's
  kept,     // freed, on a shelf
  pending,  // freed; recorded streams may still use it
};

/// A piece of memory that came from the driver in one go. Owned by a block_cache, under its lock.
struct block {
  std::uint64_t base = 0;     // what the driver returned
  std::uint64_t address = 0;  // what the user has or had: base, aligned
  std::uint64_t size = 0;
  std::uint64_t requested = 0;
  block_state state = block_state::live;
  stream_slot stream = order::nobody;  // it was allocated for
  stream_slot freed_on = order::nobody;
  stamp freed;                // behind its free; nobody's once the stream has passed that
  std::vector<stamp> others;  // of recorded streams; the epochs count from the free on
  std::uint64_t order = 0;    // of frees
  std::chrono::nanoseconds freed_at{};
  block* before = nullptr;  // on its shelf, or among the pending
  block* after = nullptr;
};

/// Blocks in the order of their frees; a list through the blocks themselves, so that a free needs
/// no memory.
struct block_list {
  block* front = nullptr;
  block* back = nullptr;

  [[nodiscard]] bool empty() const noexcept { return front == nullptr; }
  void push_back(block& what) noexcept;
  void push_front(block& what) noexcept;
  void remove(block& what) noexcept;
};

/// All kept blocks: one shelf for each size and stream that freed blocks of it.
///
/// On a shelf the blocks lie in the order of their frees, so those that their stream has passed
/// come first, and retire() looks at each block once. Needs the lock of its block_cache.
class shelves {
 public:
  /// Sees to it that put() of such a block cannot fail.
  void prepare(std::uint64_t size, stream_slot slot) { all_.try_emplace({size, slot}); }
  /// prepare() must have been called, and no retire() since.
  void put(block& what) noexcept;
  /// Puts back what take_oldest() took: it is the oldest again.
  void put_back(block& what);

  /// The block that the stream itself freed last; null if there is none.
  [[nodiscard]] block* take_own(std::uint64_t size, stream_slot slot) noexcept;
  /// One that nobody uses any more.
  [[nodiscard]] block* take_free(std::uint64_t size) noexcept;
  /// The one of any size that nobody uses any more and that was freed first.
  [[nodiscard]] block* take_oldest() noexcept;
  /// The same without taking it.
  [[nodiscard]] const block* oldest() const noexcept;
  /// Of all blocks, used or not, the one that was freed first.
  [[nodiscard]] const block* first_freed() const noexcept;
  /// That very block, which lies on a shelf.
  void take(block& what) noexcept;

  [[nodiscard]] bool any_bound(std::uint64_t size) const noexcept;
  /// The first block of each stream's shelf of this size that its stream has not passed.
  [[nodiscard]] std::vector<block*> bound(std::uint64_t size) const;
  /// Marks what the streams have passed as everybody's and forgets empty shelves.
  void retire(const order::stream_order& progress) noexcept;

 private:
  struct shelf {
    block_list blocks;
    block* first_bound = nullptr;  // all before it are everybody's
  };
  using key = std::pair<std::uint64_t, stream_slot>;  // size, stream

  std::map<key, shelf> all_;
};

}  // namespace weir::inline v0::pools

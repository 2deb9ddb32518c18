// SPDX-License-Identifier: Apache-2.0
// The records of a host arena: blocks, the segments they lie in, and the store of records.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/pinned_memory.hpp"
#include "order/stamp.hpp"

namespace weir { inline namespace v0 { namespace host {

/// Every address and size in an arena is a multiple of this.
inline constexpr std::uint64_t granularity = 64;

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t size, std::uint64_t to) noexcept {
  return (size + to - 1) / to * to;
}

struct segment;

/// Work of one device that may use a block.
struct block_use {
  std::uint32_t device = 0;  // index in freed_blocks
  order::stamp stamp{};      // its epoch counts once the block is freed
};

enum class block_state : std::uint8_t {
  unused,   // a record without memory
  free,     // nothing uses the memory
  live,     // the user has it
  pending,  // freed; queued work may still use it
};

/// A run of addresses inside a segment. Blocks of a segment are linked by address and leave no gap.
struct block {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  segment* home = nullptr;
  block* before = nullptr;  // the neighbours in the segment
  block* after = nullptr;
  block* left = nullptr;  // free: the links of a size_tree; pending: of a block_queue
  block* right = nullptr;
  std::uint32_t weight = 0;  // random; never changes
  block_state state = block_state::unused;
  bool ordered = false;  // live: by allocate(), hence with uses
  bool waited = false;   // while it is handed out: memory had to be pinned for it
  std::uint16_t tag = 0;
  std::uint64_t requested = 0;
  std::vector<block_use> uses;  // live and pending
};

/// Memory that was taken from the system in one piece.
struct segment {
  pinned_memory memory{};
  block* first = nullptr;
  bool serves = true;     // requests may be served from it; false: a pageable block of its own
  bool used = false;      // a request was served from it
  bool reserved = false;  // by reserve(): it does not go by age
  std::chrono::nanoseconds idle_since{};

  [[nodiscard]] std::uint64_t base() const noexcept {
    return reinterpret_cast<std::uintptr_t>(memory.base);
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return memory.size; }
  /// Whether nothing in it is live or pending.
  [[nodiscard]] bool is_idle() const noexcept {
    return first->state == block_state::free && first->size == size();
  }
};

/// Records of blocks, for reuse. A record stays where it is, so that links to it are pointers.
/// Owned by a best_fit, under the lock of its arena.
class block_records {
 public:
  /// The next `count` calls of take() need no memory. Throws std::bad_alloc.
  void prepare(std::size_t count) {
    while (spare_count_ < count) add_chunk();
  }
  /// Needs prepare() before.
  [[nodiscard]] block& take() noexcept {
    block& taken = *spare_;
    spare_ = taken.after;
    --spare_count_;
    taken.after = nullptr;
    return taken;
  }
  void give(block& record) noexcept {
    record.state = block_state::unused;
    record.home = nullptr;
    record.before = nullptr;
    record.uses.clear();
    record.after = spare_;
    spare_ = &record;
    ++spare_count_;
  }
  [[nodiscard]] std::size_t footprint() const noexcept {
    return chunks_.size() * chunk_size * sizeof(block);
  }

 private:
  static constexpr std::size_t chunk_size = 64;

  void add_chunk() {
    chunks_.reserve(chunks_.size() + 1);
    auto chunk = std::make_unique<block[]>(chunk_size);
    for (std::size_t i = 0; i < chunk_size; ++i) {
      // A mix that maps different numbers to different weights.
      std::uint32_t mixed = ++numbered_ * 0x9e37'79b1U;
      mixed ^= mixed >> 15;
      chunk[i].weight = mixed * 0x85eb'ca6bU;
      give(chunk[i]);
    }
    chunks_.push_back(std::move(chunk));
  }

  std::vector<std::unique_ptr<block[]>> chunks_;
  block* spare_ = nullptr;  // linked through `after`
  std::size_t spare_count_ = 0;
  std::uint32_t numbered_ = 0;
};

/// Blocks in the order in which they were added, linked through their own records.
class block_queue {
 public:
  void push_back(block& added) noexcept {
    added.left = last_;
    added.right = nullptr;
    (last_ == nullptr ? first_ : last_->right) = &added;
    last_ = &added;
    ++size_;
  }
  void remove(block& gone) noexcept {
    (gone.left == nullptr ? first_ : gone.left->right) = gone.right;
    (gone.right == nullptr ? last_ : gone.right->left) = gone.left;
    gone.left = gone.right = nullptr;
    --size_;
  }
  [[nodiscard]] block* first() const noexcept { return first_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }

 private:
  block* first_ = nullptr;
  block* last_ = nullptr;
  std::size_t size_ = 0;
};

}}}  // namespace weir::v0::host

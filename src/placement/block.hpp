// SPDX-License-Identifier: Apache-2.0
// The record of one piece of address space, and the store that recycles records.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/host_memory.hpp"
#include "order/pending_frees.hpp"
#include "order/stamp.hpp"
#include "placement/unit_count.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Sizes inside the heap are counted in units: every block starts and ends on one.
constexpr std::uint64_t unit = 512;
/// 2 TiB less two units: a size that still counts in 32 bits.
constexpr std::uint64_t most_units = 0xffff'fffe;

/// How many units a size takes; also for the largest size there is.
[[nodiscard]] constexpr std::uint64_t units_for(bytes size) noexcept {
  return size.count() / unit + (size.count() % unit == 0 ? 0 : 1);
}
[[nodiscard]] constexpr bytes to_bytes(std::uint64_t units) noexcept { return bytes{units * unit}; }

using detail::no_host_memory;

using order::block_index;  // a record's number
using order::epoch;
using order::is_after;
using order::no_block;
using order::no_stream;
using order::stamp;
using order::stream_slot;

enum class block_kind : std::uint8_t {
  unused,         // the record is on the free list
  live,           // the user's
  questioned,     // live; a free without the lock is looking whether it is the block it means
  thread_cached,  // freed; in a thread's cache
  given_back,     // freed by another thread than that of its home, on its way there
  pending,        // freed; waits for recorded streams
  run,            // free in a store: `stream` may use it, or everybody where that is nobody
  hole,           // addresses that no handle is mapped to as its current place
  stuck,          // addresses at which a mapping could not be undone
};

/// 48 bytes: live blocks by the hundred thousand must not cost the host more memory than they are
/// worth. Owned by a block_store, in the list of its neighbours by address, under the heap's lock;
/// except that of a live or thread_cached block the thread that frees or caches it writes `kind`
/// and the members of `out`; heap/thread_cache.hpp says which. What two threads write, the one that
/// frees the block and that of its home, lies in the first 32 bytes, which are in one cache line
/// for every record of even number.
struct block {
  std::atomic<block_kind> kind{block_kind::unused};
  /// A thread that is not its home's is freeing it, or has; outlives what the record stands for.
  std::atomic<bool> claimed{false};
  std::uint16_t account = 0;
  unit_count units;
  std::uint64_t address = 0;
  stream_slot stream = no_stream;
  /// Of a block that is handed out: live, thread_cached, given_back, pending.
  struct outside {
    // Of who has claimed it: its place in the list of what others freed, the block a few further
    // down that list (a guess), and the stream behind whose work it was freed.
    block_index given_next;
    block_index ahead;
    std::uint16_t given_on;
    std::uint16_t home;   // the thread cache it came through; 0: none
    block_index next;     // in a list of its home
    std::uint32_t waste;  // size - what was asked for
  };
  /// The home of a block that other streams used, too: heap::uses knows which.
  static constexpr std::uint16_t recorded = 0xfffe;
  /// Of a run or hole.
  struct inside {
    order::epoch freed;
    block_index older, newer;  // queue of the stream's runs by epoch; classic: `older` is a rank
    block_index left, right;   // list or tree of an index
  };
  union {
    outside out;
    inside in;
  };
  block_index before = no_block;  // neighbours by address within one store, never across a gap
  block_index after = no_block;

  block() noexcept : in{} {}
  [[nodiscard]] std::uint64_t end() const noexcept { return address + units * unit; }
  [[nodiscard]] std::uint64_t size() const noexcept { return units * unit; }
  [[nodiscard]] block_kind is() const noexcept { return kind.load(std::memory_order_relaxed); }
  /// To who has the heap's lock and frees nothing.
  [[nodiscard]] bool is_live() const noexcept {
    const block_kind now = is();
    return now == block_kind::live || now == block_kind::questioned;
  }
  [[nodiscard]] bool is_recorded() const noexcept { return out.home == recorded; }
  void become(block_kind now) noexcept { kind.store(now, std::memory_order_relaxed); }
  /// Live, with the address and size that the record has now. Who frees a block without the lock
  /// compares them after it has seen the kind.
  void become_live() noexcept { kind.store(block_kind::live, std::memory_order_release); }
};
static_assert(sizeof(block) == 48);

/// Brings the record here for writing, or does nothing. A read alone would fetch a line that
/// another processor wrote twice: to see it, and then to have it.
inline void fetch(const block& block) noexcept {
#ifdef __x86_64__
  // Where the instruction is unknown it does nothing, but no compiler dares for the oldest target.
  asm volatile("prefetchw %0" : : "m"(block.kind));
#else
  __builtin_prefetch(&block.kind, 1);
#endif
}

/// Records by number, recycled: there are never more than were in use at a time, and a chunk.
/// Making and recycling needs the heap's lock; looking one up does not, for who knows that it is in
/// use.
///
/// They lie in one stretch of addresses, reserved for as many as there can be and given memory in
/// chunks: a record never moves, and its number is all that it takes to find it. Every request and
/// every free waits for that.
///
/// A record is three quarters of a cache line. Two threads that each use a block over and over must
/// not share a line, so records with even numbers are used up before odd ones.
class block_store {
 public:
  block_store() noexcept;
  ~block_store();
  block_store(const block_store&) = delete;
  block_store& operator=(const block_store&) = delete;

  [[nodiscard]] block& operator[](block_index index) noexcept { return records_[index]; }
  [[nodiscard]] const block& operator[](block_index index) const noexcept {
    return records_[index];
  }

  /// Sees to it that the next `count` makes succeed; false where the host has no memory. Called
  /// before a change that must not fail half-way.
  [[nodiscard]] bool prepare(std::size_t count) noexcept {
    return free_count_ >= count || add_chunks(count);
  }
  /// A fresh record; prepare() must have answered true since.
  [[nodiscard]] block_index make() noexcept {
    const std::size_t list = free_[0] != no_block ? 0 : 1;
    const block_index fresh = free_[list];
    free_[list] = (*this)[fresh].after;
    --free_count_;
    ++in_use_;
    (*this)[fresh].after = no_block;
    return fresh;
  }
  void recycle(block_index index) noexcept;

  [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }
  /// Host memory that the records take.
  [[nodiscard]] std::size_t footprint() const noexcept { return count_ * sizeof(block); }

 private:
  static constexpr std::size_t per_chunk = 4096;  // 192 KiB: whole pages, whatever their size
  // As many as the address table can name.
  static constexpr std::size_t most_records = std::size_t{1} << 25;

  [[nodiscard]] bool add_chunks(std::size_t count) noexcept;

  block* records_ = nullptr;
  std::size_t room_ = 0;               // records that there are addresses for
  std::size_t count_ = 0;              // records that there is memory for
  std::array<block_index, 2> free_{};  // of even and of odd number
  std::size_t free_count_ = 0;
  std::size_t in_use_ = 0;
};

}}}  // namespace weir::v0::placement

// SPDX-License-Identifier: Apache-2.0
// Address → block, read without a lock.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "heap/vocabulary.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// Which block starts at an address.
///
/// An open-addressing table of 8-byte entries (39 bits of address, 25 of record number): it costs
/// 13–16 bytes a block, fits the cache where a flat page map over a whole card does not, and takes
/// segments from anywhere (docs/decisions/0006).
///
/// Writers hold the heap's lock. find() may run beside them and finds every block that is in the
/// table all the while, with one exception: an erase moves entries, so that a concurrent find() may
/// miss one. Whoever misses asks again under the lock. Replacing the table needs all readers
/// stopped: grow() says so and the owner does it (thread_caches::stop).
class address_table {
 public:
  address_table();
  ~address_table();
  address_table(const address_table&) = delete;
  address_table& operator=(const address_table&) = delete;

  /// Addresses above 2^48 do not fit an entry.
  [[nodiscard]] static bool covers(std::uint64_t address) noexcept { return address >> 48 == 0; }

  /// Loads without acquiring: whoever has the address of a block has it from a thread that saw the
  /// block made.
  [[nodiscard]] block_index find(std::uint64_t address) const noexcept {
    // What is off a unit, or above 2^48, becomes a key that no entry has.
    const std::uint64_t key = std::rotr(address, unit_bits);
    for (std::size_t at = start(key);;) {
      const std::uint64_t stored = entries_[at].load(std::memory_order_relaxed);
      if (stored >> index_bits == key) [[likely]]  // null meets empty entries: no block, too
        return static_cast<block_index>(stored & index_mask);
      if (stored == 0) return no_block;
      if (++at == capacity_) at = 0;
    }
  }
  /// Brings the entry of an address here, or nearly so; for a writer.
  void fetch(std::uint64_t address) const noexcept {
    __builtin_prefetch(&entries_[start(address / unit)], 1);
  }
  /// Whether one more insert needs grow() first.
  [[nodiscard]] bool full() const noexcept { return used_ >= most_used_; }
  /// A larger table; no reader may be inside find(). False where the host has no memory.
  [[nodiscard]] bool grow() noexcept;
  /// Needs !full() and an address that is not in the table.
  void insert(std::uint64_t address, block_index index) noexcept;
  void erase(std::uint64_t address) noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return used_; }
  [[nodiscard]] std::size_t footprint() const noexcept { return capacity_ * sizeof(entry); }

 private:
  using entry = std::atomic<std::uint64_t>;  // 0: empty
  static constexpr int unit_bits = std::countr_zero(unit);
  static constexpr unsigned index_bits = 25;
  static constexpr std::uint64_t index_mask = (std::uint64_t{1} << index_bits) - 1;

  [[nodiscard]] std::size_t start(std::uint64_t key) const noexcept {
    // Fibonacci hashing of the low half, which tells apart what is within 2 TiB; the high half of
    // the product spreads over a capacity of any size.
    const std::uint32_t mixed = static_cast<std::uint32_t>(key) * 0x9e37'79b9u;
    return static_cast<std::size_t>((std::uint64_t{mixed} * capacity_) >> 32);
  }

  std::unique_ptr<entry[]> entries_;
  std::uint32_t capacity_ = 0;
  std::size_t used_ = 0;
  std::size_t most_used_ = 0;
};

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// Linear probing with entries that move back when one before them goes.
#include "heap/address_table.hpp"

#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {
namespace {

constexpr std::uint32_t first_capacity = 1024;

constexpr std::uint64_t key_of(std::uint64_t address) { return address / unit; }

}  // namespace

address_table::address_table() { static_cast<void>(grow()); }
address_table::~address_table() = default;

bool address_table::grow() noexcept {
  // A quarter more: between 1/2 and 5/8 full, 13 to 16 bytes a block. Fuller, and the clusters that
  // an erase has to walk get long.
  const std::uint32_t wanted = capacity_ == 0 ? first_capacity : capacity_ + capacity_ / 4;
  std::unique_ptr<entry[]> larger{new (std::nothrow) entry[wanted]()};
  if (larger == nullptr) return false;
  std::swap(entries_, larger);
  const std::size_t old_capacity = std::exchange(capacity_, wanted);
  most_used_ = wanted / 8 * 5;
  used_ = 0;
  for (std::size_t i = 0; i < old_capacity; ++i) {
    const std::uint64_t old = larger[i].load(std::memory_order_relaxed);
    if (old == 0) continue;
    insert((old >> index_bits) * unit, static_cast<block_index>(old & index_mask));
  }
  return true;
}

void address_table::insert(std::uint64_t address, block_index index) noexcept {
  const std::uint64_t key = key_of(address);
  std::size_t at = start(key);
  while (entries_[at].load(std::memory_order_relaxed) != 0)
    if (++at == capacity_) at = 0;
  entries_[at].store(key << index_bits | index, std::memory_order_release);
  ++used_;
}

void address_table::erase(std::uint64_t address) noexcept {
  const std::uint64_t key = key_of(address);
  std::size_t at = start(key);
  for (;;) {
    const std::uint64_t stored = entries_[at].load(std::memory_order_relaxed);
    if (stored == 0) return;
    if (stored >> index_bits == key) break;
    if (++at == capacity_) at = 0;
  }
  // Every later entry of the cluster that may stand at the gap moves there, so that no search stops
  // short.
  for (std::size_t gap = at;;) {
    if (++at == capacity_) at = 0;
    const std::uint64_t next = entries_[at].load(std::memory_order_relaxed);
    if (next == 0) {
      entries_[gap].store(0, std::memory_order_release);
      break;
    }
    const std::size_t home = start(next >> index_bits);
    const bool stays = gap <= at ? gap < home && home <= at : gap < home || home <= at;
    if (stays) continue;
    entries_[gap].store(next, std::memory_order_release);
    gap = at;
  }
  --used_;
}

}}}  // namespace weir::v0::heap

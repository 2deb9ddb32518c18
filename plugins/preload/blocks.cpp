// SPDX-License-Identifier: Apache-2.0
// The table of the program's device memory.
#include "blocks.hpp"

#include <iterator>
#include <new>
#include <utility>

namespace weir_preload {

std::uint64_t block_table::insert(served_block block) {
  const std::lock_guard lock{mutex_};
  const std::uint64_t serial = last_serial_ + 1;
  block.serial = serial;
  blocks_.insert_or_assign(block.address, std::move(block));
  return last_serial_ = serial;
}

std::optional<served_block> block_table::take(weir::driver::CUdeviceptr address) noexcept {
  const std::lock_guard lock{mutex_};
  const auto entry = blocks_.find(address);
  if (entry == blocks_.end()) return std::nullopt;
  std::optional<served_block> taken{std::move(entry->second)};
  blocks_.erase(entry);
  return taken;
}

void block_table::put_back(served_block block) noexcept {
  const std::lock_guard lock{mutex_};
  try {
    const auto address = block.address;
    blocks_.emplace(address, std::move(block));
  } catch (const std::bad_alloc&) {
    // Whoever frees it again is answered by the driver, which does not know it.
  }
}

std::optional<served_block> block_table::containing(
    weir::driver::CUdeviceptr address) const noexcept {
  const std::lock_guard lock{mutex_};
  auto entry = blocks_.upper_bound(address);
  if (entry == blocks_.begin()) return std::nullopt;
  entry = std::prev(entry);
  if (address - entry->first >= entry->second.bytes) return std::nullopt;
  return entry->second;
}

bool block_table::has_any(const device_heap& heap) const noexcept {
  const std::lock_guard lock{mutex_};
  for (const auto& [address, block] : blocks_)
    if (block.heap.get() == &heap) return true;
  return false;
}

template <class Matches>
std::vector<served_block> block_table::take_where(const Matches& matches) {
  std::vector<served_block> taken;
  const std::lock_guard lock{mutex_};
  for (auto entry = blocks_.begin(); entry != blocks_.end();) {
    if (!matches(entry->second)) {
      ++entry;
      continue;
    }
    taken.push_back(std::move(entry->second));
    entry = blocks_.erase(entry);
  }
  return taken;
}

std::vector<served_block> block_table::take_all(const device_heap& heap) {
  return take_where([&](const served_block& block) { return block.heap.get() == &heap; });
}

std::vector<served_block> block_table::take_all(weir::driver::CUcontext context) {
  return take_where([&](const served_block& block) {
    return block.kind == served_as::driver && block.context == context;
  });
}

void block_table::clear() noexcept {
  const std::lock_guard lock{mutex_};
  blocks_.clear();
}

}  // namespace weir_preload

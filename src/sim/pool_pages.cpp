// SPDX-License-Identifier: Apache-2.0
// One stream-ordered memory pool: the memory behind its addresses.
#include <fcntl.h>

#include <algorithm>

#include "sim/pool.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// So many times the memory a pool can have, in addresses: free runs are searched by address, and
/// with room to spare a request finds one however the live blocks are scattered.
constexpr std::uint64_t address_factor = 4;
/// For a pool of host memory without a maximum.
constexpr std::uint64_t host_room = std::uint64_t{1} << 38;
constexpr std::size_t no_page = ~std::size_t{0};

}  // namespace

bool pool::prepare() {
  if (base_ != 0) return true;
  const std::uint64_t capacity =
      device_ < 0 ? host_room
                  : machine_.devices[static_cast<std::size_t>(device_)].spec.capacity.count();
  const std::uint64_t most = limit_ == 0 ? capacity : std::min(limit_, capacity);
  const std::uint64_t size = (most / pool_page + 1) * pool_page * address_factor;
  const bool shareable = handle_types_ != CU_MEM_HANDLE_TYPE_NONE;
  const bool real = machine_.options.back_memory || shareable || device_ < 0;
  store_ = real ? physical::create(machine_, size, shareable) : physical::create_unbacked(size);
  if (!store_) return false;
  const std::uint64_t base = machine_.space.reserve_addresses(size);
  if (base == 0) return false;
  blocks_ = std::make_unique<block_map>(base, size);
  settled_.insert(blocks_->first());
  base_ = base;
  address_space_ = size;
  return true;
}

physical* pool::store() { return prepare() ? store_.get() : nullptr; }

template <class Visit>
void pool::each_page(std::uint64_t address, std::uint64_t size, Visit&& visit) {
  const std::uint64_t first = address - base_;
  const std::uint64_t last = first + size;
  if (pages_.size() * pool_page < last) pages_.resize((last + pool_page - 1) / pool_page);
  for (std::uint64_t at = first; at < last;) {
    const std::size_t index = at / pool_page;
    const std::uint64_t next = std::min(last, (index + 1) * pool_page);
    visit(index, next - at);
    at = next;
  }
}

void pool::count_busy(std::uint64_t address, std::uint64_t size, bool more) {
  each_page(address, size, [&](std::size_t index, std::uint64_t part) {
    std::uint64_t& busy = pages_[index].busy;
    busy = more ? busy + part : busy - part;
  });
}

bool pool::backed(std::uint64_t address, std::uint64_t size) const {
  const std::size_t last = (address - base_ + size - 1) / pool_page;
  if (last >= pages_.size()) return false;
  for (std::size_t i = (address - base_) / pool_page; i <= last; ++i) {
    if (!pages_[i].backed) return false;
  }
  return true;
}

/// Puts memory behind a range that is counted as busy. Where it cannot be had for all of it, what
/// was had stays reserved, as with the driver.
bool pool::back(std::uint64_t address, std::uint64_t size) {
  bool all = true;
  each_page(address, size, [&](std::size_t index, std::uint64_t) {
    if (all && !pages_[index].backed) all = acquire_page() && map_page(index);
  });
  return all;
}

/// One page more to map: a page that nothing lives in, or a new one.
bool pool::acquire_page() {
  if (const std::size_t idle = idle_page(); idle != no_page) {
    unmap_page(idle);
    return true;
  }
  if (limit_ != 0 && reserved_ + pool_page > limit_) return false;
  if (device_ >= 0 && !machine_.space.reserve_capacity(device_, pool_page)) {
    machine_.pools->release_unused(device_);
    if (!machine_.space.reserve_capacity(device_, pool_page)) return false;
  }
  reserved_ += pool_page;
  reserved_peak_ = std::max(reserved_peak_, reserved_);
  return true;
}

bool pool::map_page(std::size_t index) {
  const std::uint64_t offset = index * pool_page;
  if (store_->map_at(base_ + offset, offset, pool_page, true) != 0) {
    reserved_ -= pool_page;
    if (device_ >= 0) machine_.space.release_capacity(device_, pool_page);
    return false;
  }
  machine_.space.insert({.base = base_ + offset,
                         .size = pool_page,
                         .kind = memory_kind::pool,
                         .device = device_,
                         .pages = store_,
                         .offset = offset,
                         .rights = rights_,
                         .pool = handle});
  pages_[index].backed = true;
  record_host_ownership(base_ + offset, pool_page, "pool keeps memory unallocated");
  return true;
}

void pool::unmap_page(std::size_t index) {
  const std::uint64_t offset = index * pool_page;
  machine_.space.erase(base_ + offset);
  store_->history.forget(offset, pool_page);
  if (!store_->is_unbacked())
    ::fallocate(store_->descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(store_->file_offset() + offset), static_cast<off_t>(pool_page));
  pages_[index].backed = false;
}

void pool::release_page(std::size_t index) {
  unmap_page(index);
  reserved_ -= pool_page;
  if (device_ >= 0) machine_.space.release_capacity(device_, pool_page);
}

std::size_t pool::idle_page() const {
  for (std::size_t i = pages_.size(); i-- > 0;) {
    if (pages_[i].backed && pages_[i].busy == 0) return i;
  }
  return no_page;
}

void pool::release_above(std::uint64_t limit) {
  while (reserved_ > limit) {
    const std::size_t idle = idle_page();
    if (idle == no_page) return;
    release_page(idle);
  }
}

void pool::trim(std::uint64_t keep) {
  // A page goes only if what is left is enough.
  if (keep <= reserved_) release_above(keep + pool_page - 1);
}

}}}  // namespace weir::v0::sim

// SPDX-License-Identifier: Apache-2.0
// Small allocations: cut from chunks of one device page.
#include "sim/small_heap.hpp"

#include <iterator>
#include <utility>

#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

std::uint64_t rounded(std::uint64_t size) {
  return (size + small_heap::unit - 1) / small_heap::unit * small_heap::unit;
}

}  // namespace

small_heap::~small_heap() {
  while (!chunks_.empty()) drop(chunks_.begin()->first);
}

std::uint64_t small_heap::add_chunk() {
  chunk added;
  if (device_ >= 0) {
    added.claim = capacity_claim::take(machine_, device_, device_page);
    if (!added.claim) return 0;
  }
  const bool real = machine_.options.back_memory || device_ < 0;
  added.pages = real ? physical::create(machine_, device_page, false)
                     : physical::create_unbacked(device_page);
  if (!added.pages) return 0;
  const std::uint64_t base = machine_.space.reserve_addresses(device_page);
  if (base == 0) return 0;
  if (added.pages->map_at(base, 0, device_page, true) != 0) {
    machine_.space.free_addresses(base, device_page);
    return 0;
  }
  added.holes.emplace(0, device_page);
  chunks_.emplace(base, std::move(added));
  with_room_.insert(base);
  return base;
}

void small_heap::drop(std::uint64_t base) {
  with_room_.erase(base);
  chunks_.erase(base);
  machine_.space.free_addresses(base, device_page);
}

bool small_heap::place(region& area) {
  const std::uint64_t size = rounded(area.size);
  const auto from_hole = [&](std::uint64_t base, chunk& source) {
    for (auto hole = source.holes.begin(); hole != source.holes.end(); ++hole) {
      const auto [offset, length] = *hole;
      if (length < size) continue;
      source.holes.erase(hole);
      if (length > size) source.holes.emplace(offset + size, length - size);
      if (source.holes.empty()) with_room_.erase(base);
      area.base = base + offset;
      area.pages = source.pages;
      area.offset = offset;
      area.mapping_base = base;
      area.mapping_size = device_page;
      return true;
    }
    return false;
  };
  for (const std::uint64_t base : with_room_) {
    if (from_hole(base, chunks_.at(base))) return true;
  }
  const std::uint64_t fresh = add_chunk();
  return fresh != 0 && from_hole(fresh, chunks_.at(fresh));
}

void small_heap::release(const region& area) {
  const auto owner = chunks_.find(area.mapping_base);
  if (owner == chunks_.end()) return;
  auto& holes = owner->second.holes;
  std::uint64_t offset = area.base - area.mapping_base;
  std::uint64_t size = rounded(area.size);
  auto next = holes.lower_bound(offset);
  if (next != holes.end() && next->first == offset + size) {
    size += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      holes.erase(before);
    }
  }
  if (size == device_page) {
    drop(area.mapping_base);
    return;
  }
  holes.emplace(offset, size);
  with_room_.insert(area.mapping_base);
}

}}}  // namespace weir::v0::sim

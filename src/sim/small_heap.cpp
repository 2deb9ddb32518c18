// Small allocations: cut from chunks of one device page.
#include "sim/small_heap.hpp"

#include <iterator>
#include <utility>

#include "sim/state.hpp"

namespace weir::inline v0::sim {

namespace {

std::uint64_t rounded(std::uint64_t size) {
  return (size + small_heap::unit - 1) / small_heap::unit * small_heap::unit;
}

}  // namespace

small_heap::~small_heap() {
  while (!chunks_.empty()) drop(chunks_.begin()->first);
}

std::uint64_t small_heap::add_chunk() {
  chunk made;
  if (device_ >= 0) {
    made.takes = room::take(machine_, device_, device_page);
    if (!made.takes) return 0;
  }
  made.pages = physical::create(machine_, device_page, false);
  if (!made.pages) return 0;
  const std::uint64_t base = machine_.space.reserve_addresses(device_page);
  if (base == 0) return 0;
  if (made.pages->map_at(base, 0, device_page, true) != 0) {
    machine_.space.free_addresses(base, device_page);
    return 0;
  }
  made.holes.emplace(0, device_page);
  chunks_.emplace(base, std::move(made));
  with_room_.insert(base);
  return base;
}

void small_heap::drop(std::uint64_t base) {
  with_room_.erase(base);
  chunks_.erase(base);
  machine_.space.free_addresses(base, device_page);
}

bool small_heap::take(region& cut) {
  const std::uint64_t size = rounded(cut.size);
  const auto from_hole = [&](std::uint64_t base, chunk& in) {
    for (auto hole = in.holes.begin(); hole != in.holes.end(); ++hole) {
      const auto [offset, length] = *hole;
      if (length < size) continue;
      in.holes.erase(hole);
      if (length > size) in.holes.emplace(offset + size, length - size);
      if (in.holes.empty()) with_room_.erase(base);
      cut.base = base + offset;
      cut.pages = in.pages;
      cut.offset = offset;
      cut.mapping_base = base;
      cut.mapping_size = device_page;
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

void small_heap::give(const region& cut) {
  const auto found = chunks_.find(cut.mapping_base);
  if (found == chunks_.end()) return;
  auto& holes = found->second.holes;
  std::uint64_t offset = cut.base - cut.mapping_base;
  std::uint64_t size = rounded(cut.size);
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
    drop(cut.mapping_base);
    return;
  }
  holes.emplace(offset, size);
  with_room_.insert(cut.mapping_base);
}

}  // namespace weir::inline v0::sim

// SPDX-License-Identifier: Apache-2.0
// Mappings of growable memory by address and by handle.
#include "heap/page_mappings.hpp"

#include <iterator>

namespace weir { inline namespace v0 { namespace heap {

page_mappings::iterator page_mappings::add(const page_mapping& mapping) {
  const auto named = by_handle_.emplace(mapping.memory.handle, mapping.address);
  try {
    return all_.emplace(mapping.address, mapping).first;
  } catch (...) {
    by_handle_.erase(named);
    throw;
  }
}

page_mappings::iterator page_mappings::erase(iterator mapping) noexcept {
  const auto [first, last] = by_handle_.equal_range(mapping->second.memory.handle);
  for (auto each = first; each != last; ++each) {
    if (each->second != mapping->first) continue;
    by_handle_.erase(each);
    break;
  }
  return all_.erase(mapping);
}

page_mappings::iterator page_mappings::first_at(std::uint64_t address) noexcept {
  auto next = all_.upper_bound(address);
  if (next != all_.begin() && std::prev(next)->second.end() > address) --next;
  return next;
}

page_mappings::const_iterator page_mappings::first_at(std::uint64_t address) const noexcept {
  auto next = all_.upper_bound(address);
  if (next != all_.begin() && std::prev(next)->second.end() > address) --next;
  return next;
}

page_mappings::iterator page_mappings::find_parked(const vmm::physical& memory) noexcept {
  const auto [first, last] = by_handle_.equal_range(memory.handle);
  for (auto each = first; each != last; ++each) {
    const auto mapping = all_.find(each->second);
    if (!mapping->second.lent) return mapping;
  }
  return all_.end();
}

bool page_mappings::cover(std::uint64_t address, std::uint64_t end) const noexcept {
  std::uint64_t reached = address;
  for (auto each = first_at(address); reached < end; ++each) {
    if (each == all_.end() || each->first != reached) return false;
    reached = each->second.end();
  }
  return reached == end;
}

}}}  // namespace weir::v0::heap

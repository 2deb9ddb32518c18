// SPDX-License-Identifier: Apache-2.0
// The mappings of growable memory: which handle is mapped where in a reservation.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "heap/vocabulary.hpp"
#include "order/stamp.hpp"
#include "weir/base/bytes.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// A handle of the allocator that is mapped in a reservation of growable memory as well.
///
/// While it is lent, a block of the allocator keeps the handle for the reservation. While it is
/// parked the handle is free for others, and the mapping is left for the case that the same handle
/// can be lent to the same address again.
struct page_mapping {
  std::uint64_t address = 0;  // in the reservation
  std::uint64_t block = 0;    // the block that was lent
  vmm::physical memory{};
  bool lent = false;
  bool accessible = false;  // the device, and all peers, have rights
  order::stamp used{};      // of a parked mapping: its last use

  [[nodiscard]] std::uint64_t end() const noexcept { return address + memory.size.count(); }
};

/// Mappings by address, and parked ones by handle.
///
/// Always true: mappings do not overlap. One handle may have several mappings, of which one at most
/// is lent. Makes no driver call. Owned by the handle lender, under the heap's lock. add() may
/// throw std::bad_alloc and changes nothing then; erase() does not fail. Both cost a step in a
/// tree.
class page_mappings {
 public:
  using map_type = std::map<std::uint64_t, page_mapping>;
  using iterator = map_type::iterator;
  using const_iterator = map_type::const_iterator;

  iterator add(const page_mapping& mapping);
  /// The mapping behind it.
  iterator erase(iterator mapping) noexcept;

  /// The first mapping that ends behind the address.
  [[nodiscard]] iterator first_at(std::uint64_t address) noexcept;
  [[nodiscard]] const_iterator first_at(std::uint64_t address) const noexcept;
  /// A parked mapping of the handle; end(): there is none.
  [[nodiscard]] iterator find_parked(const vmm::physical& memory) noexcept;
  /// Whether mappings cover the range without a gap.
  [[nodiscard]] bool cover(std::uint64_t address, std::uint64_t end) const noexcept;
  /// Whether nothing is mapped in the range.
  [[nodiscard]] bool none_in(std::uint64_t address, std::uint64_t end) const noexcept {
    const auto first = first_at(address);
    return first == all_.end() || first->first >= end;
  }

  [[nodiscard]] iterator begin() noexcept { return all_.begin(); }
  [[nodiscard]] iterator end() noexcept { return all_.end(); }
  [[nodiscard]] const_iterator end() const noexcept { return all_.end(); }
  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }

 private:
  map_type all_;
  std::unordered_multimap<std::uint64_t, std::uint64_t> by_handle_;  // to addresses
};

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// Ranges of reserved addresses, each with what is known of its segment.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace weir { inline namespace v0 { namespace formats {

/// A set of address ranges that do not overlap. Each carries a `Label`; ranges of different labels
/// are not merged. One thread. A call costs the logarithm of the number of ranges, and what it
/// removes.
template <class Label>
class segment_ranges {
 public:
  struct range {
    std::uint64_t end = 0;
    Label label{};
  };

  /// Adds those parts of the range that are not in the set.
  void add(std::uint64_t address, std::uint64_t size, const Label& label) {
    const std::uint64_t end = end_of(address, size);
    auto next = first_after(address);
    while (address < end) {
      const std::uint64_t gap_end = next == all_.end() ? end : std::min(end, next->first);
      if (address < gap_end) all_.emplace_hint(next, address, range{gap_end, label});
      if (next == all_.end()) return;
      address = std::max(address, next->second.end);
      ++next;
    }
  }

  /// Removes those parts of the range that are in the set.
  void remove(std::uint64_t address, std::uint64_t size) {
    const std::uint64_t end = end_of(address, size);
    for (auto next = first_after(address); next != all_.end() && next->first < end;) {
      const auto [from, cut] = *next;
      next = all_.erase(next);
      if (from < address) all_.emplace(from, range{address, cut.label});
      if (end < cut.end) next = all_.emplace(end, range{cut.end, cut.label}).first;
    }
  }

  /// The range that contains the address, or null.
  [[nodiscard]] const range* find(std::uint64_t address) const {
    const auto after = all_.upper_bound(address);
    if (after == all_.begin()) return nullptr;
    const range& before = std::prev(after)->second;
    return address < before.end ? &before : nullptr;
  }

  /// By first address.
  [[nodiscard]] const std::map<std::uint64_t, range>& all() const noexcept { return all_; }

 private:
  static std::uint64_t end_of(std::uint64_t address, std::uint64_t size) noexcept {
    return size > UINT64_MAX - address ? UINT64_MAX : address + size;
  }
  /// The first range that ends after the address.
  typename std::map<std::uint64_t, range>::iterator first_after(std::uint64_t address) {
    auto next = all_.upper_bound(address);
    if (next != all_.begin() && std::prev(next)->second.end > address) --next;
    return next;
  }

  std::map<std::uint64_t, range> all_;
};

}}}  // namespace weir::v0::formats

// SPDX-License-Identifier: Apache-2.0
// Runs of addresses: whether a run fits, and whether two touch.
#pragma once

#include <cstdint>

#include "weir/base/bytes.hpp"
#include "weir/base/checked.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace buffers {

struct interval {
  std::uint64_t first = 0;
  std::uint64_t end = 0;

  [[nodiscard]] bool overlaps(const interval& other) const noexcept {
    return first < other.end && other.first < end;
  }
};

[[nodiscard]] inline std::uint64_t address_of(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// invalid_argument: null; size_overflow: past the end of the addresses.
[[nodiscard]] inline result<interval> interval_of(const void* pointer, bytes size) {
  if (pointer == nullptr) {
    return error{
        {.code = errc::invalid_argument, .requested = size, .detail = "the address is null"}};
  }
  const auto end = checked_add(address_of(pointer), size.count());
  if (!end) return error{{.code = errc::size_overflow, .requested = size}};
  return interval{address_of(pointer), *end};
}

[[nodiscard]] inline error overlap_error(bytes size) {
  return {{.code = errc::invalid_argument,
           .requested = size,
           .detail = "source and destination overlap"}};
}

}}}  // namespace weir::v0::buffers

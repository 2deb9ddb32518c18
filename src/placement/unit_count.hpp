// SPDX-License-Identifier: Apache-2.0
// Lengths in units, kept in 32 bits.
#pragma once

#include <cassert>
#include <concepts>
#include <cstdint>
#include <limits>

namespace weir { inline namespace v0 { namespace placement {

/// A length in units that is kept in 32 bits and computed with in 64: every expression with one is
/// of 64 bits, so that no sum of a size and an alignment wraps. What does not fit in 32 bits is
/// converted explicitly, by whoever knows that it does. A value; costs what a number costs.
class unit_count {
 public:
  static constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();

  constexpr unit_count() noexcept = default;
  constexpr unit_count(std::uint32_t units) noexcept : units_{units} {}
  template <std::integral Wide>
  requires(sizeof(Wide) > sizeof(std::uint32_t)) unit_count(Wide units)
  = delete;  // narrowing is explicit

  constexpr operator std::uint64_t() const noexcept { return units_; }
  /// Needs a sum that fits: see can_join().
  constexpr unit_count& operator+=(unit_count more) noexcept {
    assert(std::uint64_t{units_} + more.units_ <= most);
    units_ += more.units_;
    return *this;
  }
  constexpr unit_count& operator-=(unit_count less) noexcept {
    assert(less.units_ <= units_);
    units_ -= less.units_;
    return *this;
  }

 private:
  std::uint32_t units_ = 0;
};

/// Whether one record can stand for both lengths.
[[nodiscard]] constexpr bool can_join(unit_count a, unit_count b) noexcept {
  return std::uint64_t{a} + b <= unit_count::most;
}

}}}  // namespace weir::v0::placement

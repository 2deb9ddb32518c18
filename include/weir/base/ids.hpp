// SPDX-License-Identifier: Apache-2.0
// Ids of different kinds, which do not convert into each other: device_id, stream_id, capture_id.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// A number of one kind. Two ids compare only if they are of the same kind.
template <class Kind, class Number>
class id {
 public:
  /// The integer that the id holds.
  using number_type = Number;

  /// Zero, or the default of the number type.
  constexpr id() noexcept = default;
  /// The id with this number.
  explicit constexpr id(Number number) noexcept : number_{number} {}
  /// The number itself, for tables and output.
  [[nodiscard]] constexpr Number number() const noexcept { return number_; }
  /// Ids of one kind compare as their numbers do.
  friend constexpr auto operator<=>(id, id) noexcept = default;

 private:
  Number number_{};
};

/// The number in decimal.
template <class Kind, class Number>
[[nodiscard]] std::string to_string(id<Kind, Number> value) {
  return std::to_string(value.number());
}

/// Which device of a runtime, counted from 0.
using device_id = id<struct device_kind, int>;

/// The driver's own number for a stream, never used twice while the process lives. The stream's
/// handle is no substitute: the driver recycles it.
using stream_id = id<struct stream_kind, std::uint64_t>;

/// One capture of a stream into a graph; unique while the process lives.
using capture_id = id<struct capture_kind, std::uint64_t>;

}}  // namespace weir::v0

/// Hashes an id as its number, so that ids can be keys of unordered containers.
template <class Kind, class Number>
struct std::hash<weir::id<Kind, Number>> {
  /// The hash of the number.
  std::size_t operator()(weir::id<Kind, Number> value) const noexcept {
    return std::hash<Number>{}(value.number());
  }
};

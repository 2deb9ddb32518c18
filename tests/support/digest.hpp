// SPDX-License-Identifier: Apache-2.0
// A number that stands for all that a program was told.
#pragma once

#include <cstdint>
#include <string_view>

namespace weir::testing_support {

/// Depends on all that was added and on its order, and on nothing else. (Like FNV-1a, by whole
/// numbers instead of bytes, with the high bits brought down.)
class digest {
 public:
  void add(std::uint64_t number) noexcept {
    value_ = (value_ ^ number) * 0x9e37'79b9'7f4a'7c15;
    value_ ^= value_ >> 32;
  }
  void add(std::string_view text) noexcept {
    for (const char each : text) add(static_cast<std::uint64_t>(each));
  }
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf2'9ce4'8422'2325;
};

}  // namespace weir::testing_support

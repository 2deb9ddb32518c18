// SPDX-License-Identifier: Apache-2.0
// Addresses as text.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>

namespace weir { inline namespace v0 { namespace detail {

/// "0x7f00", without leading zeros; "0x0".
[[nodiscard]] inline std::string hexadecimal(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return "0x" + std::string{digits.data(), end};
}

}}}  // namespace weir::v0::detail

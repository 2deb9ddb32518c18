// SPDX-License-Identifier: Apache-2.0
// The initial contents of allocated memory: contents::undefined or contents::zeroed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// The initial contents of allocated memory.
enum class contents : std::uint8_t {
  undefined,  ///< not initialised
  zeroed,     ///< zeros, written by a fill on the memory's stream, or by the host if it is pinned
};

/// "undefined", "zeroed".
[[nodiscard]] WEIR_API std::string_view name(contents value) noexcept;
[[nodiscard]] inline std::string to_string(contents value) { return std::string{name(value)}; }

}}  // namespace weir::v0

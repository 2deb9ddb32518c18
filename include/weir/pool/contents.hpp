// SPDX-License-Identifier: Apache-2.0
// What is in memory that was just allocated: contents::undefined or contents::zeroed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

enum class contents : std::uint8_t {
  undefined,  ///< whatever was there
  zeroed,     ///< zeros, by one fill queued on the memory's stream; by the host if it is pinned
};

/// "undefined", "zeroed".
[[nodiscard]] WEIR_API std::string_view name(contents value) noexcept;
[[nodiscard]] inline std::string to_string(contents value) { return std::string{name(value)}; }

}}  // namespace weir::v0

// SPDX-License-Identifier: Apache-2.0
// memory_kind: where memory is, and whether the host can access it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// Where memory is, and who can access it.
enum class memory_kind : std::uint8_t {
  device,   ///< on a device; the host cannot access it
  managed,  ///< migrates between the host and devices on demand
  pinned,   ///< on the host, page-locked; devices can access it, too
};

/// "device", "managed", "pinned".
[[nodiscard]] WEIR_API std::string_view name(memory_kind kind) noexcept;
[[nodiscard]] inline std::string to_string(memory_kind kind) { return std::string{name(kind)}; }
/// Whether the host can access memory of this kind.
[[nodiscard]] constexpr bool host_accessible(memory_kind kind) noexcept {
  return kind != memory_kind::device;
}

}}  // namespace weir::v0

// SPDX-License-Identifier: Apache-2.0
// Where memory lives, and so who may touch it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

enum class memory_kind : std::uint8_t {
  device,   ///< on a device; the host may not touch it
  managed,  ///< moves between host and devices on demand
  pinned,   ///< on the host, locked there; devices may touch it, too
};

/// "device", "managed", "pinned".
[[nodiscard]] WEIR_API std::string_view name(memory_kind kind) noexcept;
[[nodiscard]] inline std::string to_string(memory_kind kind) { return std::string{name(kind)}; }
[[nodiscard]] constexpr bool host_accessible(memory_kind kind) noexcept {
  return kind != memory_kind::device;
}

}}  // namespace weir::v0

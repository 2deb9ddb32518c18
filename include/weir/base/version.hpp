// SPDX-License-Identifier: Apache-2.0
// The version of weir: of the headers as macros, of the library as functions.
#pragma once

#include <string_view>

#include "weir/base/export.hpp"

/// The first number of the headers' version.
#define WEIR_VERSION_MAJOR 0
/// The second number of the headers' version.
#define WEIR_VERSION_MINOR 1
/// The third number of the headers' version.
#define WEIR_VERSION_PATCH 0
/// One number that grows with every release: 1.2.3 is 10203.
#define WEIR_VERSION (WEIR_VERSION_MAJOR * 10000 + WEIR_VERSION_MINOR * 100 + WEIR_VERSION_PATCH)

namespace weir { inline namespace v0 {

/// WEIR_VERSION of the library. It differs from the macro if a program runs with another shared
/// library than it was compiled against.
[[nodiscard]] WEIR_API int version() noexcept;

/// The same as text: "0.1.0".
[[nodiscard]] WEIR_API std::string_view version_text() noexcept;

}}  // namespace weir::v0

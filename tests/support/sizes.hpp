// SPDX-License-Identifier: Apache-2.0
// Sizes of memory where they are plain numbers.
#pragma once

#include <cstdint>

namespace weir::testing_support {

inline constexpr std::uint64_t kib = std::uint64_t{1} << 10;
inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;
inline constexpr std::uint64_t gib = std::uint64_t{1} << 30;
inline constexpr std::uint64_t tib = std::uint64_t{1} << 40;

}  // namespace weir::testing_support

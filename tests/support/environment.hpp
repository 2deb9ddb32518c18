// SPDX-License-Identifier: Apache-2.0
// Environment variables that say how much a test does.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace weir::testing_support {

inline std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

}  // namespace weir::testing_support

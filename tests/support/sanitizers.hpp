// SPDX-License-Identifier: Apache-2.0
// The sanitizers a test was built with, as values.
#pragma once

#include "base/sanitizers.hpp"

namespace weir::testing_support {

inline constexpr bool with_thread_sanitizer = WEIR_WITH_THREAD_SANITIZER != 0;
inline constexpr bool is_sanitized = WEIR_WITH_ADDRESS_SANITIZER != 0 || with_thread_sanitizer;

}  // namespace weir::testing_support

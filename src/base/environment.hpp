// SPDX-License-Identifier: Apache-2.0
// Services that environment variables request: recordings, live pages, budgets.
#pragma once

#include <string_view>

#include "weir/base/error.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// The value of an environment variable; empty: it is not set, or the program runs with other
/// rights than its caller.
[[nodiscard]] std::string_view environment_value(const char* variable) noexcept;

/// Reports that a service which the variable requests cannot be provided. A program that knows
/// nothing of it must get its memory without it. Reported once in a process for each variable and
/// error code. Any thread.
void report_unavailable(const char* variable, const error& reason) noexcept;

}}}  // namespace weir::v0::detail

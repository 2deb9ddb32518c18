// SPDX-License-Identifier: Apache-2.0
// What environment variables request, and mistakes in them.
#pragma once

#include <string_view>

#include "weir/base/error.hpp"
#include "weir/base/options.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// The value of an environment variable; empty: it is not set, or the program runs with other
/// rights than its caller.
[[nodiscard]] std::string_view environment_value(const char* variable) noexcept;

/// Reports that a service which the variable requests cannot be provided. A program that knows
/// nothing of it must get its memory without it. Reported once in a process for each variable and
/// error code. Any thread.
void report_unavailable(const char* variable, const error& reason) noexcept;

/// report_error() of a mistake in the environment: without a handler it is written to standard
/// error unless error_printing::off says otherwise.
void report_mistake(const error& reason) noexcept;

/// `initial`, overridden by the variables that are set. What cannot be read is reported, once, and
/// left out. Throws std::bad_alloc.
[[nodiscard]] options environment_defaults(options initial = {});

/// Reports each variable whose name begins with WEIR_ and that weir does not know, with the nearest
/// that it knows, and each value that cannot be read. Does so once in a process. Any thread.
void check_environment() noexcept;

}}}  // namespace weir::v0::detail

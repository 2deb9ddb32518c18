// SPDX-License-Identifier: Apache-2.0
// Budget membership that the options or the environment request.
#pragma once

#include <memory>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/result.hpp"
#include "weir/share/budget.hpp"

namespace weir { inline namespace v0 { namespace process {

/// `allocator` joins the budget of its card if the option `budget` or the environment variable
/// WEIR_BUDGET requests it; null if neither does. A failure is an error where only the options
/// request it; a request of the environment is reported instead, and null is returned.
[[nodiscard]] result<std::unique_ptr<budget_member>> join_if_requested(
    caching_allocator& allocator, const allocator_options& settings);

/// Keeps the membership until the allocator or the process ends; ignores null.
void keep(caching_allocator& allocator, std::unique_ptr<budget_member> member);

}}}  // namespace weir::v0::process

// Members of budgets because the options or the environment say so.
#pragma once

#include <memory>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/result.hpp"
#include "weir/share/budget.hpp"

namespace weir::inline v0::budget {

/// `allocator` joins the budget of its card, if the option `budget` or the environment variable
/// WEIR_BUDGET says so; null: neither does. A failure is an error where only the options request
/// it; a request of the environment is reported instead, and null is returned.
[[nodiscard]] result<std::unique_ptr<budget_member>> join_if_enabled(
    caching_allocator& allocator, const allocator_options& settings);

/// Keeps the member until the process ends; null: nothing.
void keep(std::unique_ptr<budget_member> member);

}  // namespace weir::inline v0::budget

// Members of budgets because the options or the environment say so.
#pragma once

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/result.hpp"

namespace weir::inline v0::budget {

/// `allocator` joins the budget of its card until the process ends, if the option `budget` or the
/// environment variable WEIR_BUDGET says so. A failure is an error where the options asked for it;
/// a request of the environment must not stop a program that knows nothing of it.
[[nodiscard]] result<void> join_if_enabled(caching_allocator& allocator,
                                           const allocator_options& settings);

}  // namespace weir::inline v0::budget

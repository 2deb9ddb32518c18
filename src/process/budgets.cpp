// SPDX-License-Identifier: Apache-2.0
// Joining budgets at the creation of an allocator.
#include "process/budgets.hpp"

#include <string_view>
#include <utility>

#include "base/environment.hpp"
#include "heap/heap_view.hpp"
#include "process/process_scoped.hpp"

namespace weir { inline namespace v0 { namespace process {
namespace {

result<std::unique_ptr<budget_member>> join(caching_allocator& allocator, std::string_view text) {
  WEIR_TRY_VALUE(options, parse_budget(text));
  return budget_member::join(allocator, options);
}

}  // namespace

result<std::unique_ptr<budget_member>> join_if_requested(caching_allocator& allocator,
                                                         const allocator_options& settings) {
  const std::string_view requested = detail::environment_value("WEIR_BUDGET");
  if (settings.budget != "off" && settings.budget != requested)
    return join(allocator, settings.budget);
  if (requested.empty() || requested == "off") return std::unique_ptr<budget_member>{};
  auto joined = join(allocator, requested);
  if (joined) return joined;
  detail::report_unavailable("WEIR_BUDGET", joined.error());
  return std::unique_ptr<budget_member>{};
}

void keep(caching_allocator& allocator, std::unique_ptr<budget_member> member) {
  if (member == nullptr) return;
  process_scoped<std::unique_ptr<budget_member>>::get().keep(heap::heap_view{allocator}.events(),
                                                             std::move(member));
}

}}}  // namespace weir::v0::process

// SPDX-License-Identifier: Apache-2.0
// Publishing live pages at the creation of an allocator.
#include "process/live_pages.hpp"

#include <string_view>
#include <utility>

#include "base/environment.hpp"
#include "heap/heap_view.hpp"
#include "process/process_scoped.hpp"

namespace weir { inline namespace v0 { namespace process {

result<std::unique_ptr<live_page>> publish_if_requested(caching_allocator& allocator,
                                                        const allocator_options& settings) {
  const std::string_view value = detail::environment_value("WEIR_LIVE");
  options variables;
  result<void> read;
  if (!value.empty()) read = set(variables, "live", value);
  if (!read) detail::report_unavailable("WEIR_LIVE", read.error());
  if (!variables.live && !settings.live) return std::unique_ptr<live_page>{};
  auto published = live_page::publish(allocator);
  if (published || !variables.live) return published;
  detail::report_unavailable("WEIR_LIVE", published.error());
  return std::unique_ptr<live_page>{};
}

void keep(caching_allocator& allocator, std::unique_ptr<live_page> page) {
  if (page == nullptr) return;
  process_scoped<std::unique_ptr<live_page>>::get().keep(heap::heap_view{allocator}.events(),
                                                         std::move(page));
}

}}}  // namespace weir::v0::process

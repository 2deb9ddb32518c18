// Live pages because the options or the environment say so.
#pragma once

#include <memory>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/options.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/live_page.hpp"

namespace weir::inline v0::trace {

/// Publishes a live page of `allocator`, if the option `live` is on or the environment variable
/// WEIR_LIVE; null: neither is. A failure is an error where only the options request the page; a
/// request of the environment is reported instead, and null is returned.
[[nodiscard]] result<std::unique_ptr<live_page>> publish_if_enabled(
    caching_allocator& allocator, const allocator_options& settings);

/// Keeps the page until the process ends; null: nothing.
void keep(std::unique_ptr<live_page> page);

}  // namespace weir::inline v0::trace

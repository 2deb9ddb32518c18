// SPDX-License-Identifier: Apache-2.0
// Live pages that the options or the environment request.
#pragma once

#include <memory>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/options.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/live_page.hpp"

namespace weir { inline namespace v0 { namespace process {

/// Publishes a live page of `allocator` if the option `live` or the environment variable WEIR_LIVE
/// requests it; null if neither does. A failure is an error where only the options request the
/// page; a request of the environment is reported instead, and null is returned.
[[nodiscard]] result<std::unique_ptr<live_page>> publish_if_requested(
    caching_allocator& allocator, const allocator_options& settings);

/// Keeps the page until the allocator or the process ends; ignores null.
void keep(caching_allocator& allocator, std::unique_ptr<live_page> page);

}}}  // namespace weir::v0::process

// Live pages because the options or the environment say so.
#pragma once

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/options.hpp"
#include "weir/base/result.hpp"

namespace weir::inline v0::trace {

/// Publishes a live page of `allocator` until the process ends, if the option `live` is on or the
/// environment variable WEIR_LIVE. A failure is an error where the options asked for the page;
/// a request of the environment must not stop a program that knows nothing of it.
[[nodiscard]] result<void> publish_if_enabled(caching_allocator& allocator,
                                              const allocator_options& settings);

}  // namespace weir::inline v0::trace

// SPDX-License-Identifier: Apache-2.0
// Recordings that the options or the environment request.
#pragma once

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace process {

/// Records `allocator` to its end, if the option `record` or the environment variable WEIR_RECORD
/// names a file. The file is complete when the next allocator is recorded, or when the process
/// ends. A failure is an error where only the options name it; a request of the environment is
/// reported instead.
[[nodiscard]] result<void> record_if_requested(caching_allocator& allocator,
                                               const allocator_options& settings);

}}}  // namespace weir::v0::process

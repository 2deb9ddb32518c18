// SPDX-License-Identifier: Apache-2.0
// Bounds of an allocator's options.
#pragma once

#include "weir/allocator/allocator_options.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// invalid_argument: a value is out of the range that docs/options.md gives for the option.
[[nodiscard]] result<void> check_options(const allocator_options& options);

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// A free that does not say how large the block is.
#pragma once

#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// Says that the size of a freed block need not be checked.
constexpr bytes any_size = bytes::max();

}}}  // namespace weir::v0::detail

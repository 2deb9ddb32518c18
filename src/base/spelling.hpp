// SPDX-License-Identifier: Apache-2.0
// How near two names are, for messages about misspelt ones.
#pragma once

#include <cstddef>
#include <string_view>

namespace weir { inline namespace v0 { namespace detail {

/// How many letters must be inserted, removed or changed to turn `a` into `b`. Throws
/// std::bad_alloc.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}}}  // namespace weir::v0::detail

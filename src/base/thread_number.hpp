// SPDX-License-Identifier: Apache-2.0
// A number for each thread of the process.
#pragma once

#include <cstdint>

#include "weir/base/export.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// A number of the calling thread that no other thread of the process ever has. Never 0. Costs a
/// thread-local load.
[[nodiscard]] std::uint64_t thread_number() noexcept;

}}}  // namespace weir::v0::detail

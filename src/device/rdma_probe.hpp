// SPDX-License-Identifier: Apache-2.0
// Whether the driver maps memory that network cards can reach.
#pragma once

#include "weir/device/device.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// Whether physical handles of the scope's device may have the property `rdma`. Some drivers report
/// that they may, and then refuse to map them (WSL 2 fails in cuMemSetAccess), so the first call
/// for a device creates, maps and releases one handle. Later calls read the answer. Any thread.
///
/// True without a final answer where the driver has no memory for the handle: the question is asked
/// again then.
[[nodiscard]] bool maps_with_rdma(const context_scope& bound) noexcept;

}}}  // namespace weir::v0::detail

// SPDX-License-Identifier: Apache-2.0
// What is answered where the host, not the device, ran out of memory.
#pragma once

#include "weir/base/error.hpp"

namespace weir { inline namespace v0 { namespace detail {

[[nodiscard]] inline error no_host_memory() { return error{{.code = errc::no_host_memory}}; }

}}}  // namespace weir::v0::detail

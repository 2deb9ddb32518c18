// What is answered where the host, not the device, ran out of memory.
#pragma once

#include "weir/base/error.hpp"

namespace weir::inline v0::detail {

[[nodiscard]] inline error no_host_memory() { return error{.code = errc::no_host_memory}; }

}  // namespace weir::inline v0::detail

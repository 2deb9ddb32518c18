// SPDX-License-Identifier: Apache-2.0
// Every allocating type there is, as a resource that the contract is checked with.
#pragma once

#include <span>

#include "weir/resource/resource.hpp"

namespace weir::testing_support {

/// How to create a resource, and in what types may differ.
struct resource_case {
  const char* name;
  any_resource (*make)(device home);
  /// A free waits for the stream on the calling thread.
  bool free_waits = false;
  /// Serves streams of other devices of its runtime, too.
  bool serves_all_devices = false;
  /// Memory may be freed on streams of other devices of its runtime.
  bool frees_on_all_devices = false;
  /// Requests that do not fit on the device are refused.
  bool bounded_by_device = true;
  /// Memory of a captured stream may be freed on it, or the free is refused for the capture.
  bool frees_in_captures = false;
  /// The error of a size that does not exist.
  errc no_such_size = errc::size_overflow;
};

[[nodiscard]] std::span<const resource_case> all_resources();

}  // namespace weir::testing_support

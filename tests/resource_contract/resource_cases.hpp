// Every allocating type there is, as a resource that the contract is checked with.
#pragma once

#include <span>

#include "weir/resource/resource.hpp"

namespace weir::testing_support {

/// How to make a resource, and where types may differ.
struct resource_case {
  const char* name;
  any_resource (*make)(device where);
  /// A free waits for the stream on the calling thread.
  bool free_waits = false;
  /// Serves streams of other devices of its runtime, too.
  bool serves_all_devices = false;
  /// Requests that do not fit on the device are refused.
  bool bounded_by_device = true;
  /// What is allocated on a captured stream may be given back on it, or is refused for the capture.
  bool frees_in_captures = false;
  /// What a size that does not exist is refused with.
  errc no_such_size = errc::size_overflow;
};

[[nodiscard]] std::span<const resource_case> all_resources();

}  // namespace weir::testing_support

// A host without memory is an error like any other.
#pragma once

#include <new>

#include "base/host_memory.hpp"
#include "weir/base/result.hpp"

namespace weir::inline v0::pools {

/// What `call` returns, or no_host_memory where it ran out of that.
template <class Call>
auto guarded(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
}

}  // namespace weir::inline v0::pools

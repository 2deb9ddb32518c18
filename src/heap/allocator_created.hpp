// What happens when an allocator was made, beyond making it.
#pragma once

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/result.hpp"

namespace weir::inline v0::heap {

/// Starts what the options, or the environment, want to be told of this allocator. Declared here
/// and defined in the room trace, which the heap cannot see: a plain function, because what
/// registers itself in a static object is left out of a program that links the static library.
[[nodiscard]] result<void> allocator_created(caching_allocator& allocator,
                                             const allocator_options& options);

}  // namespace weir::inline v0::heap

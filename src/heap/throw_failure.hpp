// SPDX-License-Identifier: Apache-2.0
// Throws what a request failed with.
#pragma once

#include <utility>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// Out of memory is thrown with the heap's report.
[[noreturn]] inline void throw_failure(central_heap& heap, error reason, bytes size,
                                       const stream_ref& stream) {
  if (reason.code() == errc::out_of_memory)
    throw out_of_memory{std::move(reason), heap.inspection().explain(size, stream).text()};
  raise(std::move(reason));
}

}}}  // namespace weir::v0::heap

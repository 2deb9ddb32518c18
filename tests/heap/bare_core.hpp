// SPDX-License-Identifier: Apache-2.0
// The shared state of a heap, without the heap.
#pragma once

#include <cstdlib>

#include "heap/heap_core.hpp"

namespace weir::testing_support {

struct bare_core final : heap::heap_core {
  bare_core(weir::device device, const allocator_options& options) : heap_core{device, options} {
    if (!blocks_.prepare(1)) std::abort();  // record 0, which stands for none
  }
};

}  // namespace weir::testing_support

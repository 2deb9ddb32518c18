// SPDX-License-Identifier: Apache-2.0
// Calls of an allocator that allocate and free no blocks: releasing, limits, inspection, streams.
#pragma once

#include "heaps.hpp"
#include "live_blocks.hpp"

namespace weir::programs_test {

/// One random call at a time, legal at any moment, captures included. One thread at a time.
class other_calls {
 public:
  other_calls(world& in, faults& failing, lanes& streams, live_blocks& blocks)
      : world_{in}, faults_{failing}, lanes_{streams}, blocks_{blocks} {}

  /// Releases cached memory in one of the ways that there are.
  void release(heap_supplier& heap);
  void change_limits(heap_supplier& heap);
  void inspect(heap_supplier& heap);
  /// Creates an allocator on either device, uses it and closes it.
  void use_brief_allocator();
  /// Creates a stream or destroys one.
  void change_streams();
  /// Lets the machine work on.
  void advance();

 private:
  world& world_;
  faults& faults_;
  lanes& lanes_;
  live_blocks& blocks_;
};

}  // namespace weir::programs_test

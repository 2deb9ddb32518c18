// SPDX-License-Identifier: Apache-2.0
// Unified buffers and device vectors of a mixed program.
#pragma once

#include <cstdint>
#include <vector>

#include "faults.hpp"
#include "heaps.hpp"
#include "lanes.hpp"
#include "weir/buffer/unified_buffer.hpp"

namespace weir::programs_test {

/// Buffers that live a while, are written by kernels and read by the host, or copied and resized.
/// One thread at a time.
class unified_memory {
 public:
  unified_memory(world& in, faults& failing, lanes& streams)
      : world_{in}, faults_{failing}, lanes_{streams} {}

  /// Creates, uses, views or destroys a unified buffer.
  void step();
  /// A device_vector over the allocator is filled, resized, and destroyed.
  void use_vector(heap_supplier& heap);
  void clear() { buffers_.clear(); }

 private:
  struct held {
    unified_buffer<std::uint64_t> memory;
    std::size_t device = 0;
    lane_index on = no_lane;
    std::uint64_t value = 0;
  };

  void create();
  void write(held& buffer);
  void view(held& buffer);

  world& world_;
  faults& faults_;
  lanes& lanes_;
  std::vector<held> buffers_;
  std::uint64_t values_ = 0;
};

}  // namespace weir::programs_test

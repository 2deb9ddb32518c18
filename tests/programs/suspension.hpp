// SPDX-License-Identifier: Apache-2.0
// Suspending and resuming memory of a mixed program's allocators.
#pragma once

#include "heaps.hpp"
#include "live_blocks.hpp"

namespace weir::programs_test {

/// Suspends and resumes groups and whole allocators, at once or asynchronously, and keeps the live
/// blocks informed of lost contents. One thread at a time.
class suspension {
 public:
  suspension(world& in, faults& failing, lanes& streams, live_blocks& blocks)
      : world_{in}, faults_{failing}, lanes_{streams}, blocks_{blocks} {}

  void change(heap_supplier& heap, bool captures_run);
  /// Resumes everything that the program suspended, as far as there is memory.
  void resume_all(heap_supplier& heap);

 private:
  void change_group(heap_supplier& heap, std::size_t index, bool captures_run);
  void change_all(heap_supplier& heap, bool captures_run);
  [[nodiscard]] suspend_options choose();

  world& world_;
  faults& faults_;
  lanes& lanes_;
  live_blocks& blocks_;
};

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// Captures that are under way in a mixed program.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graphs.hpp"
#include "heaps.hpp"
#include "live_blocks.hpp"

namespace weir::programs_test {

/// How the allocator learns of a capture.
enum class capture_notice_kind : std::uint8_t {
  declared,    ///< begin_capture()
  noticed,     ///< guard_captures(), with memory of a pool for graphs
  undeclared,  ///< not at all; memory is allocated inside only if the allocator detects captures
};

/// Begins, fills and ends captures by plain driver calls: of all modes, on every kind of stream
/// that can be captured, several at a time. A capture that weir invalidates is a failure. One
/// thread at a time.
class captures {
 public:
  captures(world& in, faults& failing, lanes& streams, live_blocks& blocks, graphs& replayed)
      : world_{in}, faults_{failing}, lanes_{streams}, blocks_{blocks}, graphs_{replayed} {}

  [[nodiscard]] bool running() const { return !captures_.empty(); }
  [[nodiscard]] std::uint64_t ended() const { return ended_; }
  /// Whether a capture takes its memory from the allocator.
  [[nodiscard]] bool uses(const heap_supplier& heap) const;

  void begin(heap_supplier& heap);
  /// One kernel, allocation, free or join in a capture.
  void fill_any();
  /// Ends a capture that may end on this thread.
  void end_any();
  void end_all_of_thread();
  /// Every capture is valid still.
  void check();

 private:
  struct capture {
    heap_supplier* heap = nullptr;
    capture_notice_kind kind{};
    driver::CUstreamCaptureMode mode{};
    std::size_t thread = 0;
    lane_index main = no_lane;
    lane_index side = no_lane;
    graph_memory claim{};
    capture_guard notice{};
    memory_pool pool{};
    std::vector<live_block> inner{};  // allocated inside and not freed there
    std::map<block_number, std::uint64_t> others{};
    // Other blocks are used on one lane of the capture each, so that they need no order inside.
    std::map<block_number, lane_index> users{};
  };

  [[nodiscard]] bool prepare(capture& begun);
  void fill(capture& now);
  void join(capture& now);
  void allocate(capture& now, lane_index on);
  void free_inner(capture& now, std::size_t index);
  void use_other(capture& now, lane_index on);
  void end(std::size_t index);
  void instantiate(capture& ended, driver::CUgraph graph);
  [[nodiscard]] bool may_end_here(const capture& each) const;

  world& world_;
  faults& faults_;
  lanes& lanes_;
  live_blocks& blocks_;
  graphs& graphs_;
  std::vector<capture> captures_;
  std::uint64_t ended_ = 0;
};

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// Captured graphs of a mixed program, and their replays.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "heaps.hpp"
#include "live_blocks.hpp"

namespace weir::programs_test {

/// A graph that was captured and instantiated, with what keeps its memory.
struct captured_graph {
  driver::CUgraphExec exec = nullptr;
  heap_supplier* heap = nullptr;
  graph_memory claim{};
  memory_pool pool{};
  /// Contents of blocks after a replay. Blocks of the graph's own memory may be freed; others stay.
  std::map<block_number, std::uint64_t> own{};
  std::map<block_number, std::uint64_t> others{};
  access_history accesses{};
};

/// Replays graphs in a correct order with all other uses of their memory. One thread at a time.
class graphs {
 public:
  graphs(world& in, faults& failing, lanes& streams, live_blocks& blocks)
      : world_{in}, faults_{failing}, lanes_{streams}, blocks_{blocks} {
    // A graph writes to its own memory also when a block there was freed.
    blocks_.on_free([this](block_number number, const access_history& uses) {
      for (captured_graph& each : graphs_)
        if (each.own.erase(number) != 0) each.accesses.merge(uses);
    });
  }

  [[nodiscard]] std::size_t count() const { return graphs_.size(); }
  [[nodiscard]] std::uint64_t replays() const { return replays_; }
  void add(captured_graph graph) { graphs_.push_back(std::move(graph)); }
  void replay_any();
  void drop_any();
  /// Drops the graphs whose memory is of the allocator.
  void drop_all(const heap_supplier& of);

 private:
  [[nodiscard]] bool prepare(captured_graph& graph, lane_index on);
  void drop(std::size_t index);

  world& world_;
  faults& faults_;
  lanes& lanes_;
  live_blocks& blocks_;
  std::vector<captured_graph> graphs_;
  std::uint64_t replays_ = 0;
};

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// Replaying and destroying graphs.
#include "graphs.hpp"

#include <utility>

namespace weir::programs_test {

/// Everything that the graph uses is resident, and the lane comes after all other uses of it.
bool graphs::prepare(captured_graph& graph, lane_index on) {
  if (graph.heap->away) return false;
  for (const auto& [number, content] : graph.others) {
    live_block& block = blocks_.at(number);
    if (!block.from->make_resident(block.group)) return false;
  }
  for (const auto* const uses : {&graph.own, &graph.others})
    for (const auto& [number, content] : *uses)
      if (blocks_.contains(number) && !lanes_.put_after(on, blocks_.at(number).accesses, true))
        return false;
  return lanes_.put_after(on, graph.accesses, true);
}

void graphs::replay_any() {
  if (graphs_.empty()) return;
  captured_graph& graph = graphs_[world_.random().below(graphs_.size())];
  const lane_index on = lanes_.any(graph.heap->device());
  if (on == no_lane) return;
  world_.log("replay a graph of " + graph.heap->name() + " on " + lanes_.text(on));
  // The allocator must know the stream: the memory is released once the known streams are done.
  const stream_ref stream = lanes_.ref(on);
  const auto met =
      faults_.call("allocate", [&] { return graph.heap->memory().try_allocate(bytes{1}, stream); });
  if (!met) return;
  if (!world_.expect_ok(graph.heap->memory().try_deallocate(*met, stream), "free")) return;
  if (!prepare(graph, on)) return;
  const context_scope bound{stream.device()};
  if (!world_.expect_ok(world_.cuda().graph_launch(graph.exec, stream.handle()), "cuGraphLaunch"))
    return;
  ++replays_;
  const std::uint64_t operation = lanes_.queue(on);
  graph.accesses.add(on, operation, true);
  for (const auto* const uses : {&graph.own, &graph.others}) {
    for (const auto& [number, content] : *uses) {
      if (!blocks_.contains(number)) continue;
      live_block& block = blocks_.at(number);
      block.content = content;
      block.accesses.add(on, operation, true);
      static_cast<void>(blocks_.touch(number, on, false));
    }
  }
}

void graphs::drop(std::size_t index) {
  std::swap(graphs_[index], graphs_.back());
  captured_graph gone = std::move(graphs_.back());
  graphs_.pop_back();
  for (const auto& [number, content] : gone.others) --blocks_.at(number).graphs;
  world_.expect_ok(world_.cuda().graph_exec_destroy(gone.exec), "cuGraphExecDestroy");
}

void graphs::drop_any() {
  if (graphs_.empty()) return;
  world_.log("drop a graph");
  drop(world_.random().below(graphs_.size()));
}

void graphs::drop_all(const heap_supplier& of) {
  for (std::size_t i = graphs_.size(); i-- > 0;) {
    bool uses = graphs_[i].heap == &of;
    for (const auto& [number, content] : graphs_[i].others)
      uses = uses || blocks_.at(number).from == &of;
    if (uses) drop(i);
  }
}

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// What graphs are made of: nodes, executable graphs, and the user objects they keep alive.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

struct graph_allocation;  // graph_memory.hpp
struct plan;

/// What a node does when its turn comes.
struct node_content {
  work task{};
  int device = 0;
  std::shared_ptr<graph_allocation> memory{};  ///< of allocation and free nodes
  std::shared_ptr<event_state> event{};        ///< of event nodes
};

struct graph;

/// A node. Dependencies are places in the graph's list and always point backwards: a node can
/// depend only on nodes that were there before it, so the list is in a valid order and cycles
/// cannot be.
struct graph_node {
  driver::CUgraphNode handle = nullptr;
  const graph* owner = nullptr;
  std::size_t place = 0;
  node_content content{};
  std::vector<std::size_t> after{};
};

/// A user's object that graphs keep alive. `references` counts those of the user, of graphs and of
/// executable graphs together.
struct user_object {
  driver::CUuserObject handle = nullptr;
  void* pointer = nullptr;
  driver::CUhostFn destroy = nullptr;
  std::uint64_t references = 0;
};

/// So many references to each of some user objects.
struct object_count {
  std::shared_ptr<user_object> object;
  std::uint64_t count = 0;
};
using object_counts = std::vector<object_count>;

struct graph_exec;

struct graph {
  std::uint64_t id = 0;  ///< never used twice
  std::vector<std::shared_ptr<graph_node>> nodes{};
  object_counts objects{};
  bool capturing = false;
  /// The executable graph made of this one last: a graph with memory nodes may have but one.
  std::weak_ptr<graph_exec> instance{};
};

/// One piece of work of an executable graph.
struct step {
  node_content content{};
  std::vector<std::size_t> after{};
  std::size_t lane = 0;
};

/// A graph ready to be launched: its nodes, spread over as few lanes as a greedy path cover needs.
/// Two steps share a lane only if each depends on the one before it, so that lanes never order what
/// the graph leaves unordered.
struct plan {
  std::vector<step> steps{};
  std::vector<int> lane_devices{};
  [[nodiscard]] bool has_memory_nodes() const noexcept;
};

[[nodiscard]] std::shared_ptr<const plan> make_plan(const graph& from);

/// An executable graph. Its launches are ordered one after the other.
struct graph_exec {
  driver::CUgraphExec handle = nullptr;
  std::shared_ptr<const plan> steps{};
  std::vector<std::shared_ptr<stream_state>> lanes{};
  unsigned long long flags = 0;
  object_counts objects{};
  /// The end of the last launch.
  std::optional<dependency> last{};
  moment last_when{};
};

}}}  // namespace weir::v0::sim

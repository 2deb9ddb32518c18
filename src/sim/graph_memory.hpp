// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate: fixed addresses, pages while launched, and the driver's cache of
// them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/memory.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// Addresses that allocation nodes of one graph share. Pages lie behind them from the first launch
/// on, until they are trimmed while nobody uses them.
struct graph_block {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t taken = 0;  ///< handed out so far, from the start
  int device = 0;
  std::vector<driver::CUmemAccess_flags> rights{};
  std::uint64_t owner = 0;  ///< id of the graph
  bool attached = false;
  unsigned live = 0;                ///< allocations in it that are
  std::vector<dependency> users{};  ///< queued work that needs the pages

  [[nodiscard]] bool idle() const noexcept;
  void used_by(dependency user);
};

/// The memory of one allocation node. Its address never changes. Nodes and executable graphs hold a
/// reference each; graph_memory's own is the last.
struct graph_allocation {
  driver::CUdeviceptr address = 0;
  std::size_t bytes = 0;
  std::shared_ptr<graph_block> block{};
  std::uint64_t freed_in = 0;  ///< id of the graph that has a free node for it; 0 for none
  bool freed_outside = false;  ///< once, by mem_free or mem_free_async
  /// Launched and not freed, in the order of calls; the memory can be used outside the graph.
  bool live = false;

  [[nodiscard]] std::uint64_t owner() const noexcept { return block->owner; }
  void set_live(bool now) noexcept;
};

/// All graph memory of a machine. Needs the machine's lock held.
class graph_memory {
 public:
  explicit graph_memory(state& machine);

  /// Addresses for a new allocation node of graph `owner`; null if there are none left. `rights`
  /// are by device ordinal.
  std::shared_ptr<graph_allocation> create(std::uint64_t owner, int device, std::size_t bytes,
                                           std::vector<driver::CUmemAccess_flags> rights);
  /// The allocation that begins at `address`; null if there is none.
  [[nodiscard]] std::shared_ptr<graph_allocation> find(driver::CUdeviceptr address) const;
  /// The device of the block that holds `extent`, with or without pages; -1 if no block does.
  [[nodiscard]] int device_of(const range& extent) const noexcept;

  /// Puts pages behind the block; false if the device has no room.
  [[nodiscard]] bool attach(graph_block& block);
  /// The work of an allocation or free: it touches no bytes, but begins or ends a lifetime.
  [[nodiscard]] static work allocating(const graph_allocation& allocated);
  [[nodiscard]] static work freeing(const graph_allocation& allocated);
  /// A free without a stream: the memory is gone now.
  void free_by_host(const graph_allocation& allocated);

  /// Forgets allocations that nobody can name any more; their pages stay cached.
  void sweep();
  /// Releases pages that nobody uses to the device.
  void trim(int device);
  /// Takes all graph memory of the device away, in use or not.
  void reset(int device);

  /// As CUgraphMem_attribute reports them. On an H200 the memory in use is the memory reserved:
  /// pages count as in use until they are trimmed, freed or not, and beyond the end of their graph.
  struct counters {
    std::uint64_t reserved = 0;
    std::uint64_t used_peak = 0;
    std::uint64_t reserved_peak = 0;
  };
  [[nodiscard]] counters& of(int device) { return counters_[static_cast<std::size_t>(device)]; }

 private:
  std::shared_ptr<graph_block> find_block(std::uint64_t owner, int device, std::size_t bytes,
                                          std::vector<driver::CUmemAccess_flags> rights);
  std::shared_ptr<physical> take_cached(int device, std::uint64_t size);
  void cache_pages(graph_block& block);

  state& machine_;
  std::map<driver::CUdeviceptr, std::shared_ptr<graph_allocation>> all_;
  std::vector<std::shared_ptr<graph_block>> blocks_;
  std::vector<counters> counters_;                              // by device
  std::vector<std::vector<std::shared_ptr<physical>>> cached_;  // by device
};

}}}  // namespace weir::v0::sim

// Memory that graphs allocate: fixed addresses, pages while launched, and the driver's cache of
// them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/memory.hpp"
#include "sim/timeline.hpp"
#include "weir/driver.hpp"

namespace weir::inline v0::sim {

class state;

/// The memory of one allocation node. Its address never changes; pages lie behind it from the first
/// launch on, until they are trimmed while nobody uses them. Nodes, executable graphs and queued
/// work hold a reference each; graph_memory's own is the last.
struct graph_allocation {
  driver::CUdeviceptr address = 0;
  std::size_t bytes = 0;   ///< as asked for
  std::uint64_t size = 0;  ///< in whole pages
  int device = 0;
  std::vector<driver::CUmemAccess_flags> rights{};
  std::uint64_t owner = 0;     ///< id of the graph that allocates it
  std::uint64_t freed_in = 0;  ///< id of the graph that has a free node for it; 0 for none
  bool attached = false;
  /// Launched and not freed, in the order of calls; the memory can be used outside the graph.
  bool live = false;
  /// The last queued work that needs the pages.
  dependency used_until{};
};

/// All graph memory of a machine. Needs the machine's lock held.
class graph_memory {
 public:
  explicit graph_memory(state& machine);

  /// Addresses for a new allocation node; null if there are none left.
  std::shared_ptr<graph_allocation> create(int device, std::size_t bytes);
  /// The allocation that begins at `address`; null if there is none.
  [[nodiscard]] std::shared_ptr<graph_allocation> find(driver::CUdeviceptr address) const;

  /// Puts pages behind the allocation; false if the device has no room.
  [[nodiscard]] bool attach(graph_allocation& what);
  /// The work of an allocation or free: it touches nothing, but tells a lifetime.
  [[nodiscard]] static work allocating(const graph_allocation& what);
  [[nodiscard]] static work freeing(const graph_allocation& what);
  /// A free without a stream: the memory is gone now.
  void free_by_host(const graph_allocation& what);
  /// What is in use is counted in the order of calls, not of the work they queue.
  void count_allocation(const graph_allocation& what) noexcept;
  void count_free(const graph_allocation& what) noexcept;

  /// Forgets allocations that nobody can name any more; their pages stay cached.
  void sweep();
  /// Gives cached pages back to the device.
  void trim(int device);

  /// Takes all graph memory of the device away, in use or not.
  void reset(int device);

  /// As CUgraphMem_attribute tells them.
  struct usage {
    std::uint64_t used = 0;
    std::uint64_t used_high = 0;
    std::uint64_t reserved = 0;
    std::uint64_t reserved_high = 0;
  };
  [[nodiscard]] usage& of(int device) { return usage_[static_cast<std::size_t>(device)]; }

 private:
  std::shared_ptr<physical> take_cached(int device, std::uint64_t size);
  std::shared_ptr<physical> detach(graph_allocation& what);
  [[nodiscard]] static bool idle(const graph_allocation& what) noexcept;

  state& machine_;
  std::map<driver::CUdeviceptr, std::shared_ptr<graph_allocation>> all_;
  std::vector<usage> usage_;
  std::vector<std::vector<std::shared_ptr<physical>>> cached_;  // by device
};

}  // namespace weir::inline v0::sim

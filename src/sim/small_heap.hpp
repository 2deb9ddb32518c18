// SPDX-License-Identifier: Apache-2.0
// Small allocations: cut from chunks of one device page, as the driver does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "sim/memory.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// One kind of memory, of one device or of the host, in chunks of one device page. A chunk takes
/// capacity as a whole and goes with the last allocation in it; contents survive inside a chunk.
/// First fit by address.
class small_heap {
 public:
  static constexpr std::uint64_t unit = 512;            ///< also the alignment
  static constexpr std::uint64_t largest = 1ULL << 20;  ///< more than this is not small

  /// `device` is -1 for host memory.
  small_heap(state& machine, int device) : machine_{machine}, device_{device} {}
  ~small_heap();
  small_heap(const small_heap&) = delete;
  small_heap& operator=(const small_heap&) = delete;

  /// Gives `area` a place for its size: base, pages, offset and mapping. False if there is no room.
  bool place(region& area);
  void release(const region& area);

 private:
  struct chunk {
    std::shared_ptr<physical> pages{};
    std::shared_ptr<capacity_claim> claim{};
    std::map<std::uint64_t, std::uint64_t> holes{};  // offset -> size, never adjacent
  };

  std::uint64_t add_chunk();
  void drop(std::uint64_t base);

  state& machine_;
  int device_;
  std::map<std::uint64_t, chunk> chunks_{};  // by base address
  std::set<std::uint64_t> with_room_{};      // those that have a hole
};

}}}  // namespace weir::v0::sim

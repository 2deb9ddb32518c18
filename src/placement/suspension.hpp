// SPDX-License-Identifier: Apache-2.0
// Physical memory that leaves a store, or comes back, while the addresses stay reserved.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/result.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// A handle's place in a store that is being suspended or resumed.
struct suspended_place {
  std::uint64_t address = 0;
  bytes size{};
  vmm::physical memory{};  // handle 0: none; the place has addresses alone
  bool mapped = false;     // to the memory

  [[nodiscard]] bool has_memory() const noexcept { return memory.handle != 0; }
};

/// A second mapping of memory that has its place elsewhere.
struct left_mapping {
  std::uint64_t address = 0;
  bytes size{};
  bool mapped = true;
};

struct byte_range {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};

/// What a store plans with the heap's lock, the calls below carry out without it, and the store
/// learns with the lock again (backing_store::apply). In between nobody else changes the store's
/// handles; the plan says at every moment what is so, whatever call failed.
struct suspension {
  std::vector<suspended_place> places;  // by address
  std::vector<left_mapping> left;       // of a store that is being suspended
  std::vector<byte_range> contents;     // of live blocks, by address: what would have to be saved
  physical_properties properties{};     // of memory that is created

  /// Of all places.
  [[nodiscard]] bytes size() const noexcept;
  /// The memory that the places lack.
  [[nodiscard]] bytes missing() const noexcept;
};

/// Unmaps everything, or nothing: what was unmapped before a failure is mapped again. If that fails
/// as well, it is reported, and the places say so: then the store is left suspended, with memory.
[[nodiscard]] result<void> unmap_places(suspension& plan, std::span<const vmm::access> rights,
                                        const context_scope& bound) noexcept;
/// Maps what has memory and is not mapped. False: something is left that could not be.
[[nodiscard]] bool map_places(suspension& plan, std::span<const vmm::access> rights,
                              const context_scope& bound) noexcept;
/// Releases the memory of what is not mapped. What the driver refuses to take is tried once more
/// and then stays with its place; the first failure is returned.
[[nodiscard]] result<void> release_places(suspension& plan, const context_scope& bound) noexcept;
/// Unmaps what is mapped, for good. What cannot be is reported and stays.
void empty_places(suspension& plan, const context_scope& bound) noexcept;
/// Gives a place its memory: created, mapped and accessible, or as it was.
[[nodiscard]] result<void> fill_place(suspended_place& place, physical_properties properties,
                                      std::span<const vmm::access> rights,
                                      const context_scope& bound);

}}}  // namespace weir::v0::placement

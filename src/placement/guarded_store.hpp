// SPDX-License-Identifier: Apache-2.0
// The store of the debug policy: every block lies apart, between bytes and addresses that tell of
// whoever leaves it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "placement/backing_store.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// What bytes are filled with. A fresh block is NaN in every floating-point format and -1 in every
/// integer; the two others are neither, so that writing either of those over them shows.
constexpr std::uint8_t fresh_byte = 0xff;
constexpr std::uint8_t red_byte = 0xfd;
constexpr std::uint8_t freed_byte = 0xdd;

/// Where a block and its red zones lie. `zone ≤ address < address + requested ≤ zone_end`: what is
/// not the user's on either side is red.
struct fenced_block {
  std::uint64_t zone = 0;
  std::uint64_t address = 0;
  std::uint64_t requested = 0;
  std::uint64_t zone_end = 0;

  friend bool operator==(const fenced_block&, const fenced_block&) = default;
};

/// The most that is filled and checked on one side of a block.
constexpr std::uint64_t most_zone = 16384;

/// The red zone on each side of a block that shares memory: an eighth of it, 512 bytes to 16 KiB.
[[nodiscard]] constexpr std::uint64_t zone_beside(std::uint64_t size) noexcept {
  return std::clamp(size / 8 / unit * unit, unit, most_zone);
}
/// In memory of its own, which ends where addresses without memory begin: as far back as its
/// alignment lets it, so that it ends there, too.
[[nodiscard]] fenced_block place_alone(const request& wanted, std::uint64_t memory,
                                       std::uint64_t memory_end) noexcept;
/// In memory that others share, from `next` on.
[[nodiscard]] fenced_block place_beside(const request& wanted, std::uint64_t next) noexcept;

/// What differs from the byte that should be everywhere, if anything does.
class damage_search {
 public:
  explicit damage_search(std::uint8_t expected) noexcept { found_.expected = expected; }
  /// The bytes at that address; addresses come in order.
  void look(std::uint64_t address, std::span<const std::byte> bytes) noexcept;
  [[nodiscard]] bool any() const noexcept { return found_.count != 0; }
  [[nodiscard]] const damage& found() const noexcept { return found_; }

 private:
  damage found_{};
};

struct guard_rules {
  /// Small blocks share granules; otherwise each block has memory of its own.
  bool shares_memory = false;
  physical_properties properties{};  // of handles
  /// Bytes of addresses that stay unmapped after their blocks went.
  std::uint64_t quarantine = 0;
};

/// Memory in which a block is never where another just was, nor beside another.
///
/// A *region* is a reservation of addresses: a guard without memory, one physical handle, a guard.
/// A block alone in its region ends where the second guard begins, so that an overflow faults, but
/// for the bytes up to the next multiple of 512 (or of its alignment), which are red. What lies
/// before it in its granule is red for 16 KiB. Where memory is shared, blocks of at most half a
/// granule with their zones lie side by side in a region, each between two red zones, and no byte
/// is handed out twice.
///
/// A block is filled when it is handed out, and inspected when it was freed and its stamp is
/// completed: its zones are read and compared. Alone in its region it is then unmapped; in a shared
/// one it is filled with a third byte. A shared region whose blocks are all inspected and that
/// takes no more is compared once more, as a whole, and unmapped. The addresses of an unmapped
/// region are in *quarantine*, and known as the block's, until so many followed that the oldest
/// must leave.
///
/// Work on the memory is done on a stream of the store's own, which synchronises with no other, and
/// is waited for: it disturbs no capture and orders nobody's work. Nothing is ever moved or given
/// again, so fit() has nothing and every request costs driver calls.
///
/// Owned by one pool; all calls need the heap's lock.
class guarded_store final : public backing_store {
 public:
  [[nodiscard]] static result<std::unique_ptr<backing_store>> create(placement_context& shared,
                                                                     pool_id pool,
                                                                     const guard_rules& rules,
                                                                     const context_scope& bound);
  guarded_store(placement_context& shared, pool_id pool, const guard_rules& rules);
  ~guarded_store() override;

  [[nodiscard]] block_index fit(const request&) override { return no_block; }
  [[nodiscard]] bool prefers_growth(const request&) const override { return true; }
  [[nodiscard]] result<block_index> rearrange(const request&, reach,
                                              const context_scope&) override {
    return no_block;
  }
  [[nodiscard]] result<block_index> grow(const request& wanted,
                                         const context_scope& bound) override;
  void free(block_index index, stamp freed) noexcept override;
  void retire(stream_slot) noexcept override {}
  [[nodiscard]] result<bytes> release(bytes most, const context_scope& bound) override;
  [[nodiscard]] result<void> grant(const vmm::access& peer, const context_scope& bound) override;
  /// Red zones of blocks that are still live are checked, too.
  result<void> close(const context_scope& bound) override;

  [[nodiscard]] bool inspects() const noexcept override { return true; }
  [[nodiscard]] result<void> inspect(const context_scope& bound) override;
  [[nodiscard]] std::optional<nearest_block> block_near(
      std::uint64_t address) const noexcept override;

  [[nodiscard]] std::uint64_t bound_to(stream_slot) const noexcept override { return 0; }
  [[nodiscard]] std::uint64_t longest_fit(stream_slot) const noexcept override { return 0; }
  [[nodiscard]] std::uint64_t fragments() const noexcept override {
    return reserved_ - handed_out_;
  }
  void describe(pool_snapshot& into) const override;
  [[nodiscard]] block_index block_over(std::uint64_t address) const noexcept override;
  [[nodiscard]] result<block_handles> handles_under(block_index index) const override;
  [[nodiscard]] std::size_t footprint() const noexcept override;
  [[nodiscard]] std::string check() const override;

  /// Addresses that are in quarantine.
  [[nodiscard]] std::uint64_t quarantined() const noexcept { return quarantined_; }

 private:
  struct cell {
    fenced_block place{};
    block_index index = no_block;  // while it is handed out
    stamp freed{};                 // afterwards
    bool compared = false;         // its zones were
    bool inspected = false;
    bool told = false;  // that it was written after that
  };
  struct region {
    std::uint64_t size = 0;     // of addresses, guards included
    std::uint64_t start = 0;    // where the memory begins
    vmm::physical memory{};     // of size 0: in quarantine
    std::vector<cell> cells{};  // by address
    std::uint32_t uninspected = 0;
    bool is_shared = false;
    bool released = false;   // the handle: the memory goes with its mapping
    std::uint64_t next = 0;  // in quarantine: the base of the one that came after it; 0: none

    [[nodiscard]] bool has_memory() const noexcept { return memory.size != bytes{}; }
    [[nodiscard]] std::uint64_t end() const noexcept { return start + memory.size.count(); }
  };
  using region_map = std::map<std::uint64_t, region>;  // by first address

  // --- guarded_store.cpp
  // --------------------------------------------------------------------------

  [[nodiscard]] result<block_index> grow_alone(const request& wanted, const context_scope& bound);
  [[nodiscard]] result<block_index> grow_shared(const request& wanted, const context_scope& bound);
  /// The block at that place, filled and handed out.
  [[nodiscard]] result<block_index> hand_out(region& home, const fenced_block& place,
                                             const request& wanted, const context_scope& bound);
  [[nodiscard]] region_map::iterator region_over(std::uint64_t address) noexcept;
  [[nodiscard]] region_map::const_iterator region_over(std::uint64_t address) const noexcept;
  /// The cell whose zones the address lies in; outside of all, the one before it, or the first.
  [[nodiscard]] static std::size_t cell_near(const region& home, std::uint64_t address) noexcept;
  [[nodiscard]] const cell* cell_near(std::uint64_t address) const noexcept;

  // --- guarded_store_memory.cpp: regions and the driver
  // -------------------------------------------

  /// Memory between guards, all of it multiples of `step`. The end of the map: there is none.
  [[nodiscard]] result<region_map::iterator> map_region(std::uint64_t size, std::uint64_t step,
                                                        const context_scope& bound);
  [[nodiscard]] result<device_address> reserve_addresses(std::uint64_t size, std::uint64_t step,
                                                         const context_scope& bound);
  [[nodiscard]] result<void> give_memory(region& fresh, bytes size, const context_scope& bound);
  /// Gives the memory back; the addresses stay, in quarantine.
  [[nodiscard]] result<void> unmap(region_map::iterator position, const context_scope& bound);
  /// The oldest addresses in quarantine go until no more than that are left.
  void shrink_quarantine(std::uint64_t most, const context_scope& bound) noexcept;

  void emit(memory_event_kind kind, const region& of) const noexcept;

  [[nodiscard]] result<void> fill(std::uint64_t address, std::uint64_t size, std::uint8_t with,
                                  const context_scope& bound) const;
  [[nodiscard]] result<void> finish(const context_scope& bound) const;

  // --- guarded_store_check.cpp: what is looked at
  // -------------------------------------------------

  /// Reads what should be that byte everywhere.
  [[nodiscard]] result<damage_search> compare(std::uint64_t from, std::uint64_t to,
                                              std::uint8_t expected,
                                              const context_scope& bound) const;
  void tell(const cell& of, const damage_search& search) const noexcept;
  [[nodiscard]] result<void> inspect(region& home, cell& freed, const context_scope& bound) const;
  /// A region whose blocks are all inspected.
  /// Tells of blocks of the region that were written after their free was inspected.
  [[nodiscard]] result<void> look_after_frees(region& home, const context_scope& bound) const;
  [[nodiscard]] result<void> let_go(region_map::iterator position, const context_scope& bound);

  const guard_rules rules_;
  const std::uint64_t granule_;
  driver::CUstream stream_ = nullptr;    // for fills and copies; synchronises with no other
  std::unique_ptr<std::byte[]> buffer_;  // what was read
  region_map regions_;
  std::uint64_t open_ = 0;  // base of the shared region that takes blocks; 0: none
  /// Blocks that were freed and not inspected, oldest first. Room is made when they are handed out.
  std::vector<std::uint64_t> freed_;
  std::size_t handed_out_count_ = 0;
  // Regions in quarantine, linked.
  std::uint64_t oldest_ = 0;
  std::uint64_t newest_ = 0;
  std::uint64_t quarantined_ = 0;
};

}}}  // namespace weir::v0::placement

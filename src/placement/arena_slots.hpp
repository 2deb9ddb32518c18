// SPDX-License-Identifier: Apache-2.0
// The slots of an arena's addresses, and the physical handles that are mapped to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/arena_types.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Which handle is mapped to which slots, and which left a mapping behind there.
///
///   slot       0   1   2   3   4   5   6
///   current    1   1   .   .   3   2   2      handle 1 has two slots, handle 3 one
///   retained   .   .   2   2   .   .   .      handle 2 moved from slot 2 to 5: slots 2 and 3 are a
///                                             hole, to which it is mapped still
///
/// Always true between calls: the slots of a handle's current place name it, and no others do;
/// every mapping that a handle left behind is counted in its record and covers as many slots as it
/// has, of which none has a current handle.
///
/// Keeps records only: who moves a handle makes the driver calls. Handles have numbers; those of
/// handles that are gone are used again. Owned by an arena, under the heap's lock. prepare() may
/// throw std::bad_alloc, so that what comes after it does not. Costs as much as a handle has slots.
class arena_slots {
 public:
  /// For `size` bytes of addresses from `base` on.
  arena_slots(std::uint64_t base, std::uint64_t size, std::uint64_t slot_size)
      : base_{base}, limit_{base + size}, slot_size_{slot_size}, handles_(1) {}

  // --- Addresses --------------------------------------------------------------------------------

  [[nodiscard]] std::uint64_t slot_size() const noexcept { return slot_size_; }
  [[nodiscard]] std::uint64_t base() const noexcept { return base_; }
  /// The end of all addresses.
  [[nodiscard]] std::uint64_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t address) const noexcept {
    return (address - base_) / slot_size_;
  }
  /// The first slot that begins at the address or behind it.
  [[nodiscard]] std::uint64_t slot_behind(std::uint64_t address) const noexcept {
    return slot_of(address + slot_size_ - 1);
  }
  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t slots) const noexcept {
    return slots * slot_size_;
  }
  [[nodiscard]] std::uint64_t address_of(std::uint64_t slot) const noexcept {
    return base_ + slot * slot_size_;
  }
  /// Slots of the arena: up to its end.
  [[nodiscard]] std::uint64_t count() const noexcept { return slots_.size(); }
  [[nodiscard]] std::uint64_t end_address() const noexcept { return address_of(slots_.size()); }

  // --- Handles ----------------------------------------------------------------------------------

  [[nodiscard]] const slot_record& operator[](std::uint64_t slot) const noexcept {
    return slots_[slot];
  }
  [[nodiscard]] const handle_record& handle(handle_number number) const noexcept {
    return handles_[number];
  }
  /// The handle whose current place the slot belongs to; a record of no slots in a hole.
  [[nodiscard]] const handle_record& handle_at(std::uint64_t slot) const noexcept {
    return handles_[slots_[slot].current];
  }
  /// Numbers are below this; number 0 and those of free records among them.
  [[nodiscard]] std::size_t handle_count() const noexcept { return handles_.size(); }
  /// Calls `see(slot, handle)` with every handle at its current place, by address.
  template <class Function>
  void each_place(Function see) const {
    for (std::uint64_t i = 0; i < slots_.size(); ++i) {
      const handle_record& there = handle_at(i);
      if (slots_[i].current != 0 && there.slot == i) see(i, there);
    }
  }
  /// Calls `see(slot, number)` with every mapping that was left behind, by address.
  template <class Function>
  void each_retained(Function see) const {
    for (std::uint64_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].retained != 0 && slots_[i].retained_offset == 0) see(i, slots_[i].retained);
  }

  // --- Changes ----------------------------------------------------------------------------------

  /// There is room for so many more handles, and for slots up to `top`.
  void prepare(std::size_t more_handles, std::size_t top);
  /// There is room to erase all handles.
  void prepare_erase() { spare_handles_.reserve(handles_.size()); }
  /// There is room for so many more slots.
  void prepare_slots(std::size_t more) { slots_.reserve(slots_.size() + more); }

  /// The arena has so many slots now, of which the new ones have no handle.
  void resize(std::uint64_t slots) { slots_.resize(slots); }
  /// A handle that has no place yet.
  [[nodiscard]] handle_number add(const vmm::physical& memory) noexcept;
  /// Its record is free again: it never had a place.
  void discard(handle_number number) noexcept;
  /// The handle's current place begins with the slot. `returns`: it was mapped there still.
  void enter(handle_number number, std::uint32_t slot, bool returns) noexcept;
  /// The handle has no current place any more; its mapping stays there.
  void leave(handle_number number) noexcept;
  /// The handle is gone, and what was mapped to the place that it left last.
  void erase(handle_number number) noexcept;
  /// The mapping that a handle left behind from this slot on is gone.
  void drop_retained(std::uint64_t first) noexcept;
  /// What memory the handle has now, and whether it is away.
  void set_memory(handle_number number, const vmm::physical& memory, bool away) noexcept {
    handles_[number].memory = memory;
    handles_[number].away = away;
  }
  void clear();

  [[nodiscard]] std::size_t footprint() const noexcept {
    return slots_.capacity() * sizeof(slot_record) + handles_.capacity() * sizeof(handle_record) +
           spare_handles_.capacity() * sizeof(handle_number);
  }

 private:
  std::uint64_t base_;
  std::uint64_t limit_;
  std::uint64_t slot_size_;
  std::vector<slot_record> slots_;  // up to the arena's end
  std::vector<handle_record> handles_;
  std::vector<handle_number> spare_handles_;  // whose records are free
};

}}}  // namespace weir::v0::placement

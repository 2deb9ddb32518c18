// SPDX-License-Identifier: Apache-2.0
// What an arena asks of the driver: creating, moving, releasing and unmapping handles.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/arena_core.hpp"
#include "placement/arena_types.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Carries out plans and enters them into the records of the arena.
///
///   carry_out   records are prepared, so that nothing fails once the driver has done its part
///               the stream waits for others that may use the bytes it gets
///               handles are created
///               mappings that handles left behind are unmapped where others come
///               handles are mapped
///      commit   addresses at the end get runs
///               places change hands: where a handle comes from is a hole now, where it goes is not
///               slots learn their handles
///               the window is cut out and handed out
///
/// A call that returns an error left everything as it was; memory that was created for it was given
/// back. A mapping that the driver neither finishes nor takes back blocks its addresses until it
/// does (block_kind::stuck). The old mapping of a handle that moved stays until something else is
/// mapped there, or, with placement_context::unmap_at_once, goes at once.
///
/// Owned by an arena, under the heap's lock. Functions that are not noexcept may throw
/// std::bad_alloc, and then nothing has changed.
class arena_mover {
 public:
  arena_mover(arena_core& core, arena_host& host) noexcept : core_{core}, host_{host} {}

  /// Makes the plan's window a block. no_block: the stream cannot be made to wait for the others.
  [[nodiscard]] result<block_index> carry_out(room_plan& room, const request& wanted,
                                              const context_scope& bound);
  /// Tries once more to take away mappings that block addresses.
  void unblock(const context_scope& bound) noexcept;

  /// Gives wholly free handles of everybody's runs to the driver, from the arena's end, until
  /// `most` bytes or more went. Returns how much went.
  [[nodiscard]] result<std::uint64_t> release(std::uint64_t most, const context_scope& bound);

  /// Lets the device reach all that is mapped.
  [[nodiscard]] result<void> grant(const vmm::access& peer, const context_scope& bound);
  /// Unmaps and releases everything, whatever it is used for. The first error is returned; all is
  /// attempted. The records stay as they were.
  [[nodiscard]] result<void> give_back_all(const context_scope& bound);

 private:
  // arena_mover.cpp
  void prepare_records(room_plan& room, const request& wanted);
  [[nodiscard]] result<bool> wait_for_others(const room_plan& room, const request& wanted,
                                             const context_scope& bound);
  [[nodiscard]] result<void> create_handles(room_plan& room, const context_scope& bound);
  [[nodiscard]] result<void> clear_the_way(const room_plan& room, const context_scope& bound);
  [[nodiscard]] result<void> map_handles(const room_plan& room, const context_scope& bound);
  void undo_mapping(const gap_filling& undone, const context_scope& bound) noexcept;
  void undo_creation(gap_filling& undone, const context_scope& bound) noexcept;
  void block_off(std::uint64_t low, std::uint64_t high) noexcept;
  [[nodiscard]] result<void> unmap_retained(std::uint32_t at_slot, const context_scope& bound);

  // arena_mover_commit.cpp
  [[nodiscard]] block_index commit(room_plan& room, const request& wanted) noexcept;
  void find_relocations(room_plan& room, const request& wanted) const noexcept;
  [[nodiscard]] block_index append_fresh(const std::vector<relocation>& relocations) noexcept;
  [[nodiscard]] block_index apply_changes(room_plan& room, block_index first) noexcept;
  void update_slots(const std::vector<relocation>& relocations) noexcept;
  [[nodiscard]] block_index hand_out_window(block_index taken, const request& wanted) noexcept;

  // arena_mover_release.cpp
  [[nodiscard]] result<bool> release_handle(handle_number number, block_index run,
                                            const context_scope& bound);

  arena_core& core_;
  arena_host& host_;
};

}}}  // namespace weir::v0::placement

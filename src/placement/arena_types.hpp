// SPDX-License-Identifier: Apache-2.0
// The small types that the parts of an arena exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/backing_store.hpp"
#include "placement/block.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {

// --- Handles and slots: arena_slots --------------------------------------------------------------

/// The record of a physical handle.
using handle_number = std::uint32_t;  // 0 is none

struct handle_record {
  vmm::physical memory{};  // handle 0: the record is free
  std::uint32_t slot = 0;  // first slot of the current place
  std::uint32_t slots = 0;
  std::uint32_t retained = 0;  // mappings left behind
  bool away = false;           // suspended: not mapped, and mostly without memory
};

struct slot_record {
  handle_number current = 0;
  handle_number retained = 0;         // mapped here still, though its current place is elsewhere
  std::uint32_t retained_offset = 0;  // of this slot from the first of that mapping
};

// --- What an arena holds -------------------------------------------------------------------------

/// Sums over the blocks and handles of an arena, in bytes.
struct arena_figures {
  std::uint64_t reserved = 0;
  std::uint64_t handed_out = 0;
  std::uint64_t peak_handed_out = 0;  // since memory was last released
};

// --- Rooms: where a request could go, and what that takes ----------------------------------------

/// Room for a request: bytes [start, end), some of them holes or beyond the arena's end.
struct room_window {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  std::uint64_t gap_slots = 0;  // to be mapped
  std::uint64_t left_over = 0;
  block_index first = no_block;  // the block that start lies in; no_block: at the arena's end
  bool exists = false;
};

/// Slots of a window that nothing is mapped to.
struct window_gap {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  block_index hole = no_block;  // that they are in; no_block: they are beyond the arena's end
};

/// What gaps may be filled with.
enum class fill_with : std::uint8_t {
  free_handles,  ///< free handles, and new ones where that is much cheaper
  new_handles,
  both,  ///< free handles as far as they go
};

/// A handle, or new memory, for some slots of a window.
struct gap_filling {
  std::uint32_t slot = 0;
  std::uint32_t slots = 0;
  handle_number from = 0;         // 0: new memory
  bool returns = false;           // to a mapping it left behind here
  bool fresh = false;             // created for this
  block_index source = no_block;  // the run its current place begins in
  block_index hole = no_block;    // the hole that is filled; no_block: beyond the end
};

/// Adjoining runs that a request may use.
struct run_stretch {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  block_index first = no_block;
};

/// A handle that is wholly free, and could be moved.
struct free_handle {
  handle_number number = 0;
  block_index run = no_block;  // where it begins
  std::uint64_t stretch_length = 0;
  bool kept = false;  // it is where it should be: others are moved first
  bool used = false;  // by the plan
};

/// A filling on its way into the metadata: where its handle was and when both places are ready.
struct relocation {
  const gap_filling* with = nullptr;
  std::uint32_t from_slot = 0;
  stamp used{};   // the last use of the old place
  stamp ready{};  // of the new place
};

/// A place that a filling's handle comes to or leaves.
struct place_change {
  std::uint64_t address = 0;
  const relocation* of = nullptr;
  bool leaves = false;
};

/// A window and all that it takes to make it a block.
struct room_plan {
  room_window window;
  std::vector<gap_filling> fillings;
  std::uint64_t new_slots = 0;
  bool complete = false;  // every slot of the window is or gets mapped
  // For whoever carries it out and must not fail at the end: there is room for all by then.
  std::vector<relocation> relocations;
  std::vector<place_change> changes;
  std::vector<std::uint32_t> left;  // places that handles move from
};

}}}  // namespace weir::v0::placement

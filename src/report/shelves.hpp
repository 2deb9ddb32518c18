// The blocks that the arena map shows, ordered so that those of a moment are found in few pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "report/chunks.hpp"
#include "report/groups.hpp"
#include "report/series.hpp"
#include "report/story.hpp"

namespace weir::inline v0::report {

/// Which blocks are in the page.
///
/// The moments that can be looked at are those of the finest bins, and the wanted ones. A block
/// that is not live at any of them cannot be seen and is left out. If the others are still too
/// many, only large blocks keep every moment; small ones are kept as of a few key moments, and in
/// the worst case the smallest are left out altogether. What is shown is therefore always exact,
/// for the moment it is shown of.
struct selection {
  std::vector<bool> kept;                  ///< for each block of the story
  std::vector<std::uint32_t> moments;      ///< that can be looked at, ascending
  std::vector<std::uint32_t> key_moments;  ///< ascending; empty if no block is small
  std::uint64_t small_below = 0;           ///< what a small block is
  std::uint64_t left_out_below = 0;        ///< smaller ones are not in the page; 0 is all are
};

/// Keeps at most `most` blocks. `wanted` are moments that must be exact.
[[nodiscard]] selection select_blocks(const story& what, const series& finest,
                                      std::vector<std::uint32_t> wanted, std::size_t most);

/// A level of shelves: shelf k holds what begins in events [k * width, (k + 1) * width) and lives
/// no longer than width, and longer than the width of the level before. So what is live at event e
/// stands in shelves e / width and e / width - 1 of each level.
struct shelf_level {
  std::uint64_t width = 0;
  std::uint64_t shelves = 0;
};

/// Puts blocks and spans on shelves, a piece of the store each; all shelves of the first level,
/// then of the next.
[[nodiscard]] std::vector<shelf_level> store_shelves(const story& what,
                                                     const std::vector<grouping>& groupings,
                                                     const selection& which, chunk_store& store);

/// A range of addresses that was used at some time.
struct region {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};

/// All addresses that ever held a block or physical memory, in whole pages, without the wide gaps
/// between them; at most `most` ranges.
[[nodiscard]] std::vector<region> used_addresses(const story& what, std::size_t most = 1024);

}  // namespace weir::inline v0::report

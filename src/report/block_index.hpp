// SPDX-License-Identifier: Apache-2.0
// An index of blocks by time, for the arena map: those of a moment are found in few pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "report/chunks.hpp"
#include "report/groups.hpp"
#include "report/history.hpp"
#include "report/series.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The blocks that are in the page.
///
/// The moments that can be shown are those of the finest bins, and the exact ones. A block
/// that is not live at any of them cannot be seen and is left out. If the others are still too
/// many, only large blocks keep every moment; small ones are kept as of a few key moments, and in
/// the worst case the smallest are left out altogether. What is shown is therefore always exact,
/// for the moment it is shown of.
struct selection {
  std::vector<bool> kept;                  ///< for each block of the history
  std::vector<std::uint32_t> moments;      ///< that can be shown, ascending
  std::vector<std::uint32_t> key_moments;  ///< ascending; empty if no block is small
  std::uint64_t small_below = 0;           ///< what a small block is
  std::uint64_t left_out_below = 0;        ///< smaller ones are not in the page; 0 is all are
};

/// Keeps at most `most` blocks. Those of the `exact` moments are complete.
[[nodiscard]] selection select_blocks(const history& history, const series& finest,
                                      std::vector<std::uint32_t> exact, std::size_t most);

/// A level of the index: bucket k holds the blocks and mappings that begin in events
/// [k * width, (k + 1) * width) and live no longer than width, and longer than the width of the
/// level before. So those that are live at event e stand in buckets e / width and e / width - 1 of
/// each level.
struct index_level {
  std::uint64_t width = 0;
  std::uint64_t buckets = 0;
};

/// Puts blocks and mappings into buckets, a piece of the store each; all buckets of the first
/// level, then of the next.
[[nodiscard]] std::vector<index_level> store_block_index(const history& history,
                                                         const std::vector<grouping>& groupings,
                                                         const selection& selected,
                                                         chunk_store& store);

/// A range of addresses that was used at some time.
struct region {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};

/// All addresses that ever held a block or physical memory, in whole pages, without the wide gaps
/// between them; at most `most` ranges.
[[nodiscard]] std::vector<region> used_addresses(const history& history, std::size_t most = 1024);

}}}  // namespace weir::v0::report

// SPDX-License-Identifier: Apache-2.0
// The best window for a request among rows of adjoining runs and holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/arena_slots.hpp"
#include "placement/arena_types.hpp"
#include "placement/place_chooser.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Compares all windows that a request could have. It is shown the blocks of an arena by address:
/// the runs that the request may use and the holes that can be filled make up rows; everything else
/// ends one. A window lies in a row, and the last row goes on beyond the arena's end.
///
///   | live | run | hole | run | live | run |   arena's end
///          '------ row -------'      '-- row, open ---> up to the last address
///            ^-------^                                  a window from the begin of a run
///                      ^------^                         and one laid against the end of a run
///
/// The best window has the fewest slots to map, then the least left over behind it, then the lowest
/// address. A value for one search, which costs as much as the rows have blocks.
class window_search {
 public:
  window_search(const arena_slots& slots, const place_chooser& places, const request& wanted);

  /// The next block of the row: a run, or a hole.
  void add(block_index index, const block& there, bool hole);
  /// No window may go over what lies here.
  void end_row();
  /// The last row ends with the arena. Where nothing else serves the window begins there.
  [[nodiscard]] room_window finish();

 private:
  struct row_block {
    block_index index = no_block;
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    bool hole = false;
  };

  void consider(const room_window& candidate) noexcept;
  void weigh_row(bool open);
  void weigh_from_start_of(std::size_t at, const window_limits& limits, std::uint64_t row_end);
  void weigh_from_end_of(std::size_t at, const window_limits& limits);
  [[nodiscard]] std::uint64_t gap_slots(std::size_t from, std::uint64_t start,
                                        std::uint64_t end) const noexcept;
  [[nodiscard]] std::uint64_t left_over(std::uint64_t end) const noexcept;

  const arena_slots& slots_;
  const place_chooser& places_;
  const request& wanted_;
  const std::uint64_t size_;
  const std::uint64_t step_;  // of the alignment
  std::vector<row_block> row_;
  room_window best_;
};

}}}  // namespace weir::v0::placement

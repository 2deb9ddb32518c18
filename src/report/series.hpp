// SPDX-License-Identifier: Apache-2.0
// Memory over time at every resolution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "report/chunks.hpp"
#include "report/groups.hpp"
#include "report/history.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// Memory over time, in bins of equally many events.
///
/// A bin shows the stack as it was at the bin's highest moment, which is exact and one moment for
/// all groupings; a coarser bin shows that of its highest part. So no peak is lost at any zoom and
/// every column adds up to what was live at some moment. The lowest total of the bin goes with it.
struct series {
  unsigned shift = 0;                              ///< a bin is 2^shift events
  std::vector<std::uint64_t> time;                 ///< of the bin's first event
  std::vector<std::uint32_t> moment;               ///< the event at which the bin is highest
  std::vector<std::uint64_t> low;                  ///< least live in the bin
  std::vector<std::uint64_t> reserved;             ///< most reserved in the bin; empty if not known
  std::vector<std::vector<std::uint64_t>> stacks;  ///< for each grouping: bins x groups

  [[nodiscard]] std::size_t bins() const noexcept { return time.size(); }
};

/// Each level has a quarter of the bins of the one below it.
inline constexpr unsigned level_shift = 2;
/// Bins that go into one piece of the store.
inline constexpr std::size_t tile_bins = 512;
/// The coarsest level has at most as many bins; the first picture is made of it.
inline constexpr std::size_t first_bins = 2048;

/// At most `most_bins` bins.
[[nodiscard]] series make_series(const recording& recording, const history& history,
                                 const std::vector<grouping>& groupings, std::size_t most_bins);

/// Puts all levels into the store, the coarsest first: for each tile its frame (times, moments,
/// lows, reserved) and then its stacks, a piece each. Returns how many levels there are.
unsigned store_series(const series& finest, const history& history,
                      const std::vector<grouping>& groupings, chunk_store& store);

}}}  // namespace weir::v0::report

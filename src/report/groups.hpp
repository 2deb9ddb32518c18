// SPDX-License-Identifier: Apache-2.0
// Groups of blocks: by tag, size, stream, pool and site; how much each held, and the few to show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/history.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The totals of the blocks of one key.
struct tally {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;     ///< of all of them together, over the whole recording
  std::uint64_t most = 0;      ///< live at a time
  std::uint64_t at_peak = 0;   ///< live when the most was live of all
  std::uint64_t at_end = 0;    ///< never freed
  std::uint64_t freed = 0;     ///< blocks
  std::uint64_t lifetime = 0;  ///< nanoseconds from allocation to free, of all that were freed
  std::uint64_t live = 0;      ///< only while counting
};

/// A way to divide the blocks, into few enough groups to tell their colours apart.
struct grouping {
  std::string name;
  /// Of the groups, most memory first. Where memory was ever suspended the last one is that of
  /// blocks without memory, whichever group they are of otherwise.
  std::vector<std::string> labels;
  std::vector<std::uint8_t> of_block;  ///< the group of each block of the history
};

/// More groups than this are drawn as one, "others".
inline constexpr std::size_t most_groups = 12;

/// The totals of each site; by history::sites.
[[nodiscard]] std::vector<tally> tally_sites(const recording& recording, const history& history);

/// By tag, size and stream, by site, and by pool if there is more than the allocator's own.
[[nodiscard]] std::vector<grouping> make_groupings(const recording& recording,
                                                   const history& history,
                                                   const std::vector<tally>& sites);

/// A few words for a site: the frame of the program that allocated, or the size.
[[nodiscard]] std::string site_label(const recording& recording, const site& site);
[[nodiscard]] std::string tag_label(const recording& recording, std::uint16_t tag);
[[nodiscard]] std::string stream_label(const recording& recording, std::uint32_t stream);

}}}  // namespace weir::v0::report

// SPDX-License-Identifier: Apache-2.0
// The report: one HTML file that shows a recording and needs nothing else.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "replay/fit.hpp"
#include "replay/replay.hpp"
#include "report/placement.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The input of a page. The recording outlives the call only.
struct page_source {
  const weir::recording& recording;
  std::string file;                         ///< the recording's name, for the title
  std::vector<replay::outcome> policies{};  ///< of replays, in the order to show them
  /// The least memory with which each of them plays the recording, 0 where there is none; empty if
  /// nobody asked.
  std::vector<bytes> fits{};
  /// How policies did on the card that was asked about, all on the same; empty if nobody asked.
  std::vector<replay::card_trial> card{};
  const report::placement* placement = nullptr;  ///< for recordings without real addresses
};

/// How much goes into a page. Details that do not fit are left out in steps, coarsely said: first
/// every moment of small blocks, then resolution in time.
struct page_limits {
  std::size_t bytes = 30'000'000;  ///< of the file
  std::size_t bins = 1 << 18;      ///< moments, at the finest resolution
  std::size_t blocks = 1'000'000;  ///< in the arena map, over all moments
};

/// The text of the page. Costs a few passes over the events and about 100 bytes an event.
///
/// Nothing of the recording stands in the page as text: names, tags and frames are packed, and the
/// page shows them as text and never as markup.
[[nodiscard]] std::string make_page(const page_source& source, const page_limits& limits = {});

/// A page with two runs and what differs between them. Either can be looked into; each gets half of
/// the limit in bytes.
[[nodiscard]] std::string make_page(const page_source& before, const page_source& after,
                                    const page_limits& limits = {});

}}}  // namespace weir::v0::report

// SPDX-License-Identifier: Apache-2.0
// Whether a recorded program fits on a card of some size, and what is in the way where it does not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replay/fit.hpp"
#include "report/history.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace report {

/// The live blocks of one tag, site or size.
struct holder {
  std::string label;
  std::uint64_t bytes = 0;
  std::uint64_t blocks = 0;

  friend bool operator==(const holder&, const holder&) = default;
};

/// What was live when a request came that a policy could not meet on the card.
struct card_shortage {
  std::uint32_t event = 0;    ///< the request
  std::uint64_t live = 0;     ///< before it, as requested
  std::uint64_t waiting = 0;  ///< freed, but not reusable yet: in use, and not live
  std::vector<holder> tags;   ///< of what was live; most first, at most most_holders
  std::vector<holder> sites;
  std::vector<holder> sizes;
};

inline constexpr std::size_t most_holders = 8;

/// `found` is of a replay of this recording. Costs a pass over its blocks.
[[nodiscard]] card_shortage explain_shortage(const recording& recording, const history& history,
                                             const replay::shortfall& found);

/// "balanced fits on a card of 24 GiB\n", or where and why it does not, in a few lines: what the
/// command prints.
[[nodiscard]] std::string card_text(const recording& recording, const history& history,
                                    const replay::card_trial& trial);

}}}  // namespace weir::v0::report

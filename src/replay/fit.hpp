// SPDX-License-Identifier: Apache-2.0
// The fit of a trace: the least device memory with which a policy still plays it to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "replay/replay.hpp"

namespace weir { inline namespace v0 { namespace replay {

/// The step of the search: the unit in which devices hand out physical memory.
inline constexpr bytes fit_step{std::uint64_t{2} << 20};

/// Whether a trace runs on a card of that size, of which the context takes its part.
struct card_fit {
  bytes card{};
  bool fits = false;

  friend bool operator==(const card_fit&, const card_fit&) = default;
};

/// How a trace does on one card under one policy. It fits where no request was left unmet.
struct card_trial {
  replay::policy policy{};
  bytes card{};
  bytes left{};  ///< of the card, for the program: its context takes the rest
  std::optional<shortfall> first_oom{};

  [[nodiscard]] bool fits() const noexcept { return !first_oom; }
};

/// Plays the script on a simulated card of that size, up to the first request that is not met.
/// Neither samples nor progress are reported. invalid_argument: the device is a real one, or the
/// card has no size; not_supported: the program suspended memory, which a replay does not.
[[nodiscard]] result<card_trial> try_card(const script& script, settings settings, bytes card);

/// The outcome of a search. With `capacity` the trace was played to its end; with one step less it
/// was played and was not, or that is less than what is in use at most.
struct fit {
  replay::policy policy{};
  std::uint64_t requested_peak = 0;
  bytes capacity{};               ///< for the program: what the context takes is not in it
  unsigned plays = 0;             ///< how many replays that took
  std::vector<card_fit> cards{};  ///< as they were asked for

  /// capacity / requested_peak.
  [[nodiscard]] double ratio() const noexcept;
};

/// Bisects the capacity in multiples of fit_step, on the simulator, between what is in use at most
/// and what the policy takes where there is enough; replays end at the first request that is not
/// met. More memory is nearly always enough where less was, but nothing guarantees it: a policy
/// places blocks elsewhere where it has more room. So the search ends at a limit, and there may be
/// others below it. Each card is played, not compared.
///
/// `settings.capacity` is the most memory to consider; neither samples nor progress are reported.
///
/// invalid_argument: the script asks for no memory, or the device is a real one; out_of_memory: the
/// most memory is not enough; not_supported: the program suspended memory, which a replay does not.
[[nodiscard]] result<fit> find_fit(const script& script, const settings& settings,
                                   const std::vector<bytes>& cards = {});

}}}  // namespace weir::v0::replay

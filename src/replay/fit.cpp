// SPDX-License-Identifier: Apache-2.0
// The search for the least memory: a bisection over replays that end where memory does.
#include "replay/fit.hpp"

#include <algorithm>

#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

constexpr std::uint64_t fit_unit = fit_step.count();

constexpr std::uint64_t rounded_up(std::uint64_t size) {
  return (size + fit_unit - 1) / fit_unit * fit_unit;
}

/// What a card has for a program.
bytes left_on(bytes card) {
  const bytes context = sim::device_spec{}.context_overhead;
  return card > context ? card - context : bytes{};
}

/// Blocks keep their memory in a replay: a program that does not fit there may well have fitted.
error no_verdict() {
  return {{.code = errc::not_supported,
           .detail =
               "the program suspended memory, which a replay does not do; --fit and --capacity are "
               "not supported for such a trace"}};
}

class fit_search {
 public:
  fit_search(const script& script, const replay::settings& settings)
      : script_{script}, settings_{settings} {
    settings_.samples = 0;
    settings_.progress = {};
    settings_.stops_when_out = true;
  }

  [[nodiscard]] unsigned plays() const noexcept { return plays_; }

  /// Whether the trace runs; `capacity` 0 is the whole device.
  result<bool> runs_with(std::uint64_t capacity) {
    settings_.capacity = bytes{capacity};
    WEIR_TRY_VALUE(played, play(script_, settings_));
    ++plays_;
    reserved_ = played.reserved_peak;
    return played.is_complete();
  }

  /// The least multiple of the step, or `most`, with which the trace runs; it runs with `most`,
  /// and was played with that last.
  result<std::uint64_t> least_up_to(std::uint64_t most) {
    // Less than is in use at most cannot do.
    std::uint64_t low = (script_.requested_peak - 1) / fit_unit * fit_unit;
    WEIR_TRY_VALUE(enough, enough_near(rounded_up(reserved_), low, most));
    std::uint64_t high = enough;
    while (high - low > fit_unit) {
      const std::uint64_t middle = low + std::max(fit_unit, (high - low) / 2 / fit_unit * fit_unit);
      WEIR_TRY_VALUE(runs, runs_with(middle));
      (runs ? high : low) = middle;
    }
    return high;
  }

 private:
  /// What a policy takes where it has room need not do where it has no more: it may have placed its
  /// blocks otherwise. Then the search begins further up, and `low` is what did not do.
  result<std::uint64_t> enough_near(std::uint64_t guess, std::uint64_t& low, std::uint64_t most) {
    for (std::uint64_t more = fit_unit; guess < most; more *= 2) {
      WEIR_TRY_VALUE(runs, runs_with(guess));
      if (runs) return guess;
      low = guess;
      guess += more;
    }
    return most;
  }

  const script& script_;
  replay::settings settings_;
  unsigned plays_ = 0;
  std::uint64_t reserved_ = 0;  // by the latest
};

}  // namespace

result<card_trial> try_card(const script& script, settings settings, bytes card) {
  if (!settings.target.simulated || card.count() == 0)
    return error{{.code = errc::invalid_argument,
                  .detail = "--card needs a size and works on the simulator only"}};
  if (script.suspensions != 0) return no_verdict();
  card_trial trial{.policy = settings.policy, .card = card, .left = left_on(card)};
  settings.samples = 0;
  settings.progress = {};
  settings.stops_when_out = true;
  // Of a card that its context fills a byte is left: none would mean the whole device.
  settings.capacity = std::max(trial.left, bytes{1});
  WEIR_TRY_VALUE(played, play(script, settings));
  trial.first_oom = played.first_oom;
  return trial;
}

double fit::ratio() const noexcept {
  if (requested_peak == 0) return 0;
  return static_cast<double>(capacity.count()) / static_cast<double>(requested_peak);
}

result<fit> find_fit(const script& script, const settings& settings,
                     const std::vector<bytes>& cards) {
  if (!settings.target.simulated)
    return error{{.code = errc::invalid_argument, .detail = "--fit works on the simulator only"}};
  if (script.suspensions != 0) return no_verdict();
  if (script.requested_peak == 0)
    return error{{.code = errc::invalid_argument, .detail = "the trace contains no allocation"}};
  const sim::device_spec device;
  const std::uint64_t most = settings.capacity.count() != 0
                                 ? settings.capacity.count()
                                 : device.capacity.count() - device.context_overhead.count();
  fit_search search{script, settings};
  WEIR_TRY_VALUE(runs, search.runs_with(most));
  if (!runs)
    return error{{.code = errc::out_of_memory,
                  .requested = bytes{script.requested_peak},
                  .detail = "the trace does not run with " + to_string(bytes{most})}};
  WEIR_TRY_VALUE(least, search.least_up_to(most));

  fit found{
      .policy = settings.policy, .requested_peak = script.requested_peak, .capacity = bytes{least}};
  for (const bytes card : cards) {
    card_fit answer{.card = card};
    const bytes left = left_on(card);
    if (left.count() >= script.requested_peak) {
      WEIR_TRY_VALUE(fits, search.runs_with(left.count()));
      answer.fits = fits;
    }
    found.cards.push_back(answer);
  }
  found.plays = search.plays();
  return found;
}

}}}  // namespace weir::v0::replay

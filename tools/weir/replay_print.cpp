// SPDX-License-Identifier: Apache-2.0
// weir replay: its findings as a table, as CSV and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "json.hpp"
#include "printable.hpp"
#include "replay.hpp"
#include "weir/base/version.hpp"

namespace weir::command {

namespace {

std::int64_t microseconds(std::chrono::nanoseconds time) { return (time.count() + 500) / 1000; }

std::string gibibytes(std::uint64_t size) {
  return fmt::format("{:.3f}", static_cast<double>(size) / 0x1p30);
}

/// With failed requests a ratio would mislead: their memory is in neither figure.
bool has_ratio(const replay::outcome& outcome) { return outcome.ooms == 0; }

json first_oom_json(const replay::outcome& outcome) {
  if (!outcome.first_oom) return {};
  const replay::shortfall& first = *outcome.first_oom;
  return {{"at_ns", first.time}, {"size", first.size}, {"in_use", first.in_use}};
}

}  // namespace

std::string out_of_memory_text(const replay::outcome& outcome) {
  const replay::shortfall first = outcome.first_oom.value_or(replay::shortfall{});
  return fmt::format(
      "out of memory at {}.{:09} s: a request of {} failed with {} in use; {} request{} failed",
      first.time / 1'000'000'000, first.time % 1'000'000'000, to_string(bytes{first.size}),
      to_string(bytes{first.in_use}), outcome.ooms, outcome.ooms == 1 ? "" : "s");
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char each : text) {
    if (each == '"') quoted += '"';
    quoted += each;
  }
  return quoted + '"';
}

std::string to_table(const std::vector<replay_row>& rows) {
  std::size_t width = 5;
  bool recorded = false;
  for (const replay_row& each : rows) {
    width = std::max(width, each.trace.size());
    recorded = recorded || each.recorded;
  }
  std::string text = fmt::format("{:<{}}  {:<16} {:>10} {:>9}", "trace", width, "policy",
                                 "in use GiB", "taken GiB");
  if (recorded) text += fmt::format(" {:>12}", "recorded GiB");
  text += fmt::format(" {:>6} {:>9} {:>9} {:>8} {:>5} {:>4}  {:>10}\n", "ratio", "calls",
                      "driver ms", "steady %", "waits", "ooms", "M events/s");
  const std::string* before = nullptr;
  for (const replay_row& each : rows) {
    const replay::outcome& outcome = each.outcome;
    const bool same = before != nullptr && *before == each.trace;
    if (before != nullptr && !same) text += '\n';
    before = &each.trace;
    fmt::format_to(std::back_inserter(text), "{:<{}}  {:<16} {:>10} {:>9}",
                   same ? "" : printable(each.trace), width, replay::name(outcome.policy),
                   gibibytes(outcome.requested_peak), gibibytes(outcome.reserved_peak));
    if (recorded)
      fmt::format_to(std::back_inserter(text), " {:>12}",
                     each.recorded ? gibibytes(*each.recorded) : "");
    fmt::format_to(
        std::back_inserter(text), " {:>6} {:>9} {:>9.1f} {:>8.2f} {:>5} {:>4}  {:>10.1f}\n",
        has_ratio(outcome) ? fmt::format("{:.3f}", outcome.ratio()) : "-", outcome.driver_calls,
        static_cast<double>(outcome.driver_time.count()) / 1e6, outcome.steady_driver_percent(),
        outcome.waits, outcome.ooms, outcome.events_per_second() / 1e6);
  }
  return text;
}

std::string to_csv(const std::vector<replay_row>& rows) {
  std::string text =
      "trace,policy,streams,allocs,requested_peak,reserved_peak,ratio,driver_calls,driver_us,"
      "steady_driver_pct,waits,ooms,events_per_s\n";
  for (const replay_row& each : rows) {
    const replay::outcome& outcome = each.outcome;
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{},{},{},{:.3f},{},{},{:.0f}\n",
                   csv_field(each.trace), replay::name(outcome.policy), outcome.streams,
                   outcome.allocations, outcome.requested_peak, outcome.reserved_peak,
                   has_ratio(outcome) ? fmt::format("{:.4f}", outcome.ratio()) : "",
                   outcome.driver_calls, microseconds(outcome.driver_time),
                   outcome.steady_driver_percent(), outcome.waits, outcome.ooms,
                   outcome.events_per_second());
  }
  return text;
}

std::string to_json(const std::vector<replay_row>& rows, const std::string& device) {
  json out{{"weir", version_text()}, {"device", device}, {"replays", json::array()}};
  for (const replay_row& each : rows) {
    const replay::outcome& outcome = each.outcome;
    out["replays"].push_back(
        {{"trace", each.trace},
         {"policy", replay::name(outcome.policy)},
         {"streams", outcome.streams},
         {"allocs", outcome.allocations},
         {"requested_peak", outcome.requested_peak},
         {"reserved_peak", outcome.reserved_peak},
         {"recorded_reserved_peak", each.recorded ? json(*each.recorded) : json{}},
         {"ratio", has_ratio(outcome) ? json(outcome.ratio()) : json{}},
         {"driver_calls", outcome.driver_calls},
         {"driver_us", microseconds(outcome.driver_time)},
         {"steady_driver_pct", outcome.steady_driver_percent()},
         {"waits", outcome.waits},
         {"ooms", outcome.ooms},
         {"first_oom", first_oom_json(outcome)},
         {"mismatches", outcome.mismatches},
         {"events_per_s", outcome.events_per_second()}});
    if (outcome.profile) out["replays"].back()["profile"] = profile_json(*outcome.profile);
  }
  return json_text(out);
}

std::string to_table(const std::vector<fit_row>& rows) {
  std::size_t width = 5;
  for (const fit_row& each : rows) width = std::max(width, each.trace.size());
  std::string text = fmt::format("{:<{}}  {:<16} {:>10} {:>13} {:>6} {:>5}", "trace", width,
                                 "policy", "in use GiB", "fits from GiB", "ratio", "plays");
  if (!rows.empty()) {
    for (const replay::card_fit& each : rows.front().fit.cards)
      fmt::format_to(std::back_inserter(text), "  {:>14}", "on " + to_string(each.card));
  }
  text += '\n';
  const std::string* before = nullptr;
  for (const fit_row& each : rows) {
    const replay::fit& fit = each.fit;
    const bool same = before != nullptr && *before == each.trace;
    if (before != nullptr && !same) text += '\n';
    before = &each.trace;
    fmt::format_to(std::back_inserter(text), "{:<{}}  {:<16} {:>10} {:>13} {:>6.3f} {:>5}",
                   same ? "" : printable(each.trace), width, replay::name(fit.policy),
                   gibibytes(fit.requested_peak), gibibytes(fit.capacity.count()), fit.ratio(),
                   fit.plays);
    for (const replay::card_fit& card : fit.cards)
      fmt::format_to(std::back_inserter(text), "  {:>14}", card.fits ? "yes" : "no");
    text += '\n';
  }
  return text;
}

std::string to_csv(const std::vector<fit_row>& rows, const std::vector<bytes>& cards) {
  std::string text = "trace,policy,requested_peak,fit_capacity,fit_ratio,plays";
  for (const bytes each : cards) fmt::format_to(std::back_inserter(text), ",fits_{}", each.count());
  text += '\n';
  for (const fit_row& each : rows) {
    const replay::fit& fit = each.fit;
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{:.4f},{}", csv_field(each.trace),
                   replay::name(fit.policy), fit.requested_peak, fit.capacity.count(), fit.ratio(),
                   fit.plays);
    for (const replay::card_fit& card : fit.cards) text += card.fits ? ",yes" : ",no";
    text += '\n';
  }
  return text;
}

std::string to_json(const std::vector<fit_row>& rows, const std::string& device) {
  json out{{"weir", version_text()},
           {"device", device},
           {"fit_step", replay::fit_step.count()},
           {"fits", json::array()}};
  for (const fit_row& each : rows) {
    const replay::fit& fit = each.fit;
    json cards = json::array();
    for (const replay::card_fit& card : fit.cards)
      cards.push_back({{"card", card.card.count()}, {"fits", card.fits}});
    out["fits"].push_back({{"trace", each.trace},
                           {"policy", replay::name(fit.policy)},
                           {"requested_peak", fit.requested_peak},
                           {"fit_capacity", fit.capacity.count()},
                           {"fit_ratio", fit.ratio()},
                           {"plays", fit.plays},
                           {"cards", cards}});
  }
  return json_text(out);
}

}  // namespace weir::command

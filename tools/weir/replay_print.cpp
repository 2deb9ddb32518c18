// weir replay: its findings as a table, as CSV and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "json.hpp"
#include "replay.hpp"
#include "weir/base/version.hpp"

namespace weir::command {

namespace {

std::int64_t microseconds(std::chrono::nanoseconds time) { return (time.count() + 500) / 1000; }

std::string gigabytes(std::uint64_t size) {
  return fmt::format("{:.3f}", static_cast<double>(size) / 1e9);
}

/// A field of CSV; only a trace's name can need quotes.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char each : text) {
    if (each == '"') quoted += '"';
    quoted += each;
  }
  return quoted + '"';
}

}  // namespace

std::string to_table(const std::vector<replay_row>& rows) {
  std::size_t width = 5;
  bool recorded = false;
  for (const replay_row& each : rows) {
    width = std::max(width, each.trace.size());
    recorded = recorded || each.recorded;
  }
  std::string text =
      fmt::format("{:<{}}  {:<16} {:>10} {:>9}", "trace", width, "policy", "in use GB", "taken GB");
  if (recorded) text += fmt::format(" {:>11}", "recorded GB");
  text += fmt::format(" {:>6} {:>9} {:>9} {:>8} {:>5} {:>4}  {:>10}\n", "ratio", "calls",
                      "driver ms", "steady %", "waits", "ooms", "M events/s");
  const std::string* before = nullptr;
  for (const replay_row& each : rows) {
    const replay::outcome& came = each.came;
    const bool same = before != nullptr && *before == each.trace;
    if (before != nullptr && !same) text += '\n';
    before = &each.trace;
    fmt::format_to(std::back_inserter(text), "{:<{}}  {:<16} {:>10} {:>9}", same ? "" : each.trace,
                   width, replay::name(came.how), gigabytes(came.requested_peak),
                   gigabytes(came.reserved_peak));
    if (recorded)
      fmt::format_to(std::back_inserter(text), " {:>11}",
                     each.recorded ? gigabytes(*each.recorded) : "");
    fmt::format_to(
        std::back_inserter(text), " {:>6.3f} {:>9} {:>9.1f} {:>8.2f} {:>5} {:>4}  {:>10.1f}\n",
        came.ratio(), came.driver_calls, static_cast<double>(came.driver_time.count()) / 1e6,
        came.steady_driver_percent(), came.waits, came.ooms, came.events_per_second() / 1e6);
  }
  return text;
}

std::string to_csv(const std::vector<replay_row>& rows) {
  std::string text =
      "trace,policy,streams,allocs,requested_peak,reserved_peak,ratio,driver_calls,driver_us,"
      "steady_driver_pct,waits,ooms,events_per_s\n";
  for (const replay_row& each : rows) {
    const replay::outcome& came = each.came;
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{:.4f},{},{},{:.3f},{},{},{:.0f}\n",
                   field(each.trace), replay::name(came.how), came.streams, came.allocations,
                   came.requested_peak, came.reserved_peak, came.ratio(), came.driver_calls,
                   microseconds(came.driver_time), came.steady_driver_percent(), came.waits,
                   came.ooms, came.events_per_second());
  }
  return text;
}

std::string to_json(const std::vector<replay_row>& rows, const std::string& device) {
  json_writer out;
  out.begin_object();
  out.member("weir", version_text());
  out.member("device", device);
  out.key("replays").begin_array();
  for (const replay_row& each : rows) {
    const replay::outcome& came = each.came;
    out.begin_object();
    out.member("trace", each.trace);
    out.member("policy", replay::name(came.how));
    out.member("streams", came.streams);
    out.member("allocs", came.allocations);
    out.member("requested_peak", came.requested_peak);
    out.member("reserved_peak", came.reserved_peak);
    if (each.recorded) {
      out.member("recorded_reserved_peak", *each.recorded);
    } else {
      out.key("recorded_reserved_peak").null();
    }
    out.member("ratio", came.ratio());
    out.member("driver_calls", came.driver_calls);
    out.member("driver_us", microseconds(came.driver_time));
    out.member("steady_driver_pct", came.steady_driver_percent());
    out.member("waits", came.waits);
    out.member("ooms", came.ooms);
    out.member("mismatches", came.mismatches);
    out.member("events_per_s", came.events_per_second());
    out.end_object();
  }
  out.end_array();
  out.end_object();
  return out.text();
}

}  // namespace weir::command

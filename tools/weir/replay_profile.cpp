// SPDX-License-Identifier: Apache-2.0
// weir replay --profile: where a replay's time went, as tables, as CSV and as JSON.
#include <fmt/format.h>

#include <iterator>

#include "json.hpp"
#include "printable.hpp"
#include "replay.hpp"

namespace weir::command {

namespace {

double in_us(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e3; }

double in_ms(std::chrono::nanoseconds time) { return static_cast<double>(time.count()) / 1e6; }

replay::cause_cost sum(const replay::profile& profile) {
  replay::cause_cost all;
  for (const replay::cause_cost& each : profile.causes) {
    all.count += each.count;
    all.driver_calls += each.driver_calls;
    all.driver_time += each.driver_time;
    all.host_time += each.host_time;
  }
  return all;
}

/// Calls see(name, cost) for every cause, in their order.
template <class See>
void each_cause(const replay::profile& profile, const See& see) {
  for (std::size_t i = 0; i < replay::cause_count; ++i)
    see(replay::name(static_cast<replay::cause>(i)), profile.causes[i]);
}

/// Calls see(name, tally) for every call that was made, in the order of the driver's table.
template <class See>
void each_call(const replay::profile& profile, const See& see) {
  for (std::size_t i = 0; i < driver::call_count; ++i) {
    if (profile.calls[i].count == 0) continue;
    see(driver::info(static_cast<driver::call>(i)).member, profile.calls[i]);
  }
}

/// Calls see(name, tally) for what the bytes at the peak are, in the order of docs/replay.md.
template <class See>
void each_space(const replay::free_space& space, const See& see) {
  see("reserved", space.reserved);
  see("requested", space.requested);
  see("rounding", space.rounding);
  see("thread_caches", space.thread_caches);
  see("unfinished_uses", space.unfinished_uses);
  see("private_pools", space.private_pools);
  see("headroom", space.headroom);
  for (std::size_t i = 0; i < replay::pin_count; ++i)
    see("pinned_by_" + std::string{replay::name(static_cast<replay::pin>(i))}, space.pinned[i]);
  for (std::size_t i = 0; i < replay::sliver_count; ++i)
    see("slivers_" + std::string{replay::sliver_name(i)}, space.slivers[i]);
  see("stream_bound", space.stream_bound);
}

void write_space(std::string& out, const replay::free_space& space) {
  const auto end = std::back_inserter(out);
  fmt::format_to(end, "  {:<35} {:>9} {:>20} {:>9}\n",
                 fmt::format("memory at the peak, step {}", space.steps), "count", "MiB", "%");
  each_space(space, [&](std::string_view name, const replay::space_tally& tally) {
    fmt::format_to(
        end, "  {:<35} {:>9} {:>20.3f} {:>9.2f}\n", name, tally.count,
        static_cast<double>(tally.bytes) / 0x1p20,
        100 * static_cast<double>(tally.bytes) / static_cast<double>(space.reserved.bytes));
  });
}

json space_json(const replay::free_space& space) {
  json written{{"steps", space.steps}, {"at_ns", space.time}};
  each_space(space, [&](std::string_view name, const replay::space_tally& tally) {
    written[std::string{name}] = {{"bytes", tally.bytes}, {"count", tally.count}};
  });
  return written;
}

void write_cause(std::string& out, std::string_view name, const replay::cause_cost& cost) {
  fmt::format_to(std::back_inserter(out), "  {:<35} {:>9} {:>9} {:>10.3f} {:>9.3f}\n", name,
                 cost.count, cost.driver_calls, in_ms(cost.driver_time), in_ms(cost.host_time));
}

}  // namespace

std::string to_profile_table(const std::vector<replay_row>& rows) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (const replay_row& row : rows) {
    const replay::profile& profile = *row.outcome.profile;
    if (!text.empty()) text += '\n';
    fmt::format_to(out, "{}, {}\n", printable(row.trace), replay::name(row.outcome.policy));
    fmt::format_to(out, "  {:<35} {:>9} {:>9} {:>10} {:>9}\n", "cause", "steps", "calls",
                   "driver ms", "host ms");
    each_cause(profile, [&](std::string_view name, const replay::cause_cost& cost) {
      if (cost.count != 0) write_cause(text, name, cost);
    });
    write_cause(text, "all", sum(profile));
    fmt::format_to(out, "  {:<35} {:>9} {:>9} {:>10}\n", "driver call", "", "calls", "driver ms");
    each_call(profile, [&](std::string_view name, const replay::call_tally& tally) {
      fmt::format_to(out, "  {:<35} {:>9} {:>9} {:>10.3f}\n", name, "", tally.count,
                     in_ms(tally.time));
    });
    fmt::format_to(out,
                   "  events: {} recorded, {} queried, {} waited for by the host, {} by streams\n",
                   profile.events_recorded(), profile.events_queried(), profile.events_waited(),
                   profile.waits_queued());
    fmt::format_to(out, "  lock: taken {} times\n", profile.locks);
    fmt::format_to(out,
                   "  steady: worst 100 ms {:.2f} % driver time, longest step {:.1f} us of it\n",
                   profile.worst_window_percent(), in_us(profile.longest_step));
    if (profile.at_peak) write_space(text, *profile.at_peak);
  }
  return text;
}

std::string to_profile_csv(const std::vector<replay_row>& rows) {
  std::string text = "trace,policy,kind,name,count,driver_calls,driver_us,host_us,bytes\n";
  const auto out = std::back_inserter(text);
  for (const replay_row& row : rows) {
    const replay::profile& profile = *row.outcome.profile;
    const std::string begin =
        fmt::format("{},{},", csv_field(row.trace), replay::name(row.outcome.policy));
    each_cause(profile, [&](std::string_view name, const replay::cause_cost& cost) {
      fmt::format_to(out, "{}cause,{},{},{},{:.3f},{:.3f},\n", begin, name, cost.count,
                     cost.driver_calls, in_us(cost.driver_time), in_us(cost.host_time));
    });
    each_call(profile, [&](std::string_view name, const replay::call_tally& tally) {
      fmt::format_to(out, "{}call,{},{},{},{:.3f},,\n", begin, name, tally.count, tally.count,
                     in_us(tally.time));
    });
    const auto figure = [&](std::string_view name, std::uint64_t count) {
      fmt::format_to(out, "{}figure,{},{},,,,\n", begin, name, count);
    };
    figure("events_recorded", profile.events_recorded());
    figure("events_queried", profile.events_queried());
    figure("events_waited", profile.events_waited());
    figure("waits_queued", profile.waits_queued());
    figure("locks", profile.locks);
    fmt::format_to(out, "{}figure,worst_100ms,,,{:.3f},,\n", begin, in_us(profile.worst_window));
    fmt::format_to(out, "{}figure,longest_step,,,{:.3f},,\n", begin, in_us(profile.longest_step));
    if (!profile.at_peak) continue;
    figure("peak_step", profile.at_peak->steps);
    each_space(*profile.at_peak, [&](std::string_view name, const replay::space_tally& tally) {
      fmt::format_to(out, "{}space,{},{},,,,{}\n", begin, name, tally.count, tally.bytes);
    });
  }
  return text;
}

json profile_json(const replay::profile& profile) {
  json causes = json::object();
  each_cause(profile, [&](std::string_view name, const replay::cause_cost& cost) {
    causes[std::string{name}] = {{"count", cost.count},
                                 {"driver_calls", cost.driver_calls},
                                 {"driver_us", in_us(cost.driver_time)},
                                 {"host_us", in_us(cost.host_time)}};
  });
  json calls = json::object();
  each_call(profile, [&](std::string_view name, const replay::call_tally& tally) {
    calls[std::string{name}] = {{"count", tally.count}, {"driver_us", in_us(tally.time)}};
  });
  json written{{"causes", causes},
               {"calls", calls},
               {"events_recorded", profile.events_recorded()},
               {"events_queried", profile.events_queried()},
               {"events_waited", profile.events_waited()},
               {"waits_queued", profile.waits_queued()},
               {"locks", profile.locks},
               {"worst_100ms_driver_pct", profile.worst_window_percent()},
               {"longest_step_driver_us", in_us(profile.longest_step)}};
  if (profile.at_peak) written["at_peak"] = space_json(*profile.at_peak);
  return written;
}

}  // namespace weir::command

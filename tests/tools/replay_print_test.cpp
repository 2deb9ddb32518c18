// The findings of weir replay as they are printed: every column, to the letter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay.hpp"
#include "weir/base/version.hpp"

namespace weir::command {
namespace {

using std::chrono::nanoseconds;

/// No two figures alike.
replay_row row(std::string trace, replay::policy policy, std::uint64_t from) {
  replay_row made;
  made.trace = std::move(trace);
  replay::outcome& outcome = made.outcome;
  outcome.policy = policy;
  outcome.streams = from + 1;
  outcome.allocations = from + 2;
  outcome.requested_peak = (from + 4) * 1'000'000'000;
  outcome.reserved_peak = (from + 5) * 1'000'000'000;
  outcome.driver_calls = from + 6;
  outcome.driver_time = nanoseconds{(from + 7) * 1'000'000 + 1500};
  outcome.steady_driver_time = nanoseconds{from + 8};
  outcome.steady_time = nanoseconds{100};
  outcome.waits = from + 9;
  outcome.ooms = from + 10;
  outcome.mismatches = from + 11;
  outcome.events = (from + 12) * 1'000'000;
  outcome.play_time = nanoseconds{1'000'000'000};
  return made;
}

TEST(replay_print, a_table_names_each_trace_once_and_leaves_a_line_between_them) {
  std::vector<replay_row> rows{row("a long name", replay::policy::torch_default, 0),
                               row("a long name", replay::policy::balanced, 20),
                               row("other", replay::policy::driver_pool, 40)};
  EXPECT_EQ(to_table(rows),
            "trace        policy            in use GB  taken GB  ratio     calls driver ms steady "
            "% waits "
            "ooms  M events/s\n"
            "a long name  torch-default         4.000     5.000  1.250         6       7.0     "
            "8.00     9 "
            "  10        12.0\n"
            "             balanced             24.000    25.000  1.042        26      27.0    "
            "28.00    29 "
            "  30        32.0\n"
            "\n"
            "other        driver-pool          44.000    45.000  1.023        46      47.0    "
            "48.00    49 "
            "  50        52.0\n");
  rows.resize(1);
  rows[0].trace = "x";
  rows[0].recorded = 3'456'000'000;
  rows.push_back(row("x", replay::policy::balanced, 20));
  EXPECT_EQ(to_table(rows),
            "trace  policy            in use GB  taken GB recorded GB  ratio     calls driver ms "
            "steady % "
            "waits ooms  M events/s\n"
            "x      torch-default         4.000     5.000       3.456  1.250         6       7.0   "
            "  8.00 "
            "    9   10        12.0\n"
            "       balanced             24.000    25.000              1.042        26      27.0   "
            " 28.00 "
            "   29   30        32.0\n");
}

TEST(replay_print, csv_has_a_line_a_replay) {
  EXPECT_EQ(
      to_csv({row("one", replay::policy::compact, 0), row("a,b", replay::policy::balanced, 20),
              row("say \"x\"", replay::policy::never_move, 40)}),
      "trace,policy,streams,allocs,requested_peak,reserved_peak,ratio,driver_calls,driver_us,"
      "steady_driver_pct,waits,ooms,events_per_s\n"
      "one,compact,1,2,4000000000,5000000000,1.2500,6,7002,8.000,9,10,12000000\n"
      "\"a,b\",balanced,21,22,24000000000,25000000000,1.0417,26,27002,28.000,29,30,32000000\n"
      "\"say \"\"x\"\"\",never-move,41,42,44000000000,45000000000,1.0227,46,47002,48.000,49,50,"
      "52000000\n");
}

TEST(replay_print, microseconds_are_rounded) {
  replay_row made = row("x", replay::policy::compact, 0);
  const auto driver_us = [&](std::int64_t time) {
    made.outcome.driver_time = nanoseconds{time};
    const std::string line = to_csv({made});
    std::size_t at = line.find("5000000000,1.2500,6,") + 20;
    return line.substr(at, line.find(',', at) - at);
  };
  EXPECT_EQ(driver_us(499), "0");
  EXPECT_EQ(driver_us(500), "1");
  EXPECT_EQ(driver_us(1499), "1");
}

TEST(replay_print, json_has_every_figure_by_name) {
  replay_row first = row("one", replay::policy::compact, 0);
  first.recorded = 99;
  EXPECT_EQ(to_json({first, row("two", replay::policy::throughput, 20)}, "cuda:1"),
            "{\n"
            "  \"weir\": \"" +
                std::string{version_text()} +
                "\",\n"
                "  \"device\": \"cuda:1\",\n"
                "  \"replays\": [\n"
                "    {\n"
                "      \"trace\": \"one\",\n"
                "      \"policy\": \"compact\",\n"
                "      \"streams\": 1,\n"
                "      \"allocs\": 2,\n"
                "      \"requested_peak\": 4000000000,\n"
                "      \"reserved_peak\": 5000000000,\n"
                "      \"recorded_reserved_peak\": 99,\n"
                "      \"ratio\": 1.25,\n"
                "      \"driver_calls\": 6,\n"
                "      \"driver_us\": 7002,\n"
                "      \"steady_driver_pct\": 8.0,\n"
                "      \"waits\": 9,\n"
                "      \"ooms\": 10,\n"
                "      \"mismatches\": 11,\n"
                "      \"events_per_s\": 12000000.0\n"
                "    },\n"
                "    {\n"
                "      \"trace\": \"two\",\n"
                "      \"policy\": \"throughput\",\n"
                "      \"streams\": 21,\n"
                "      \"allocs\": 22,\n"
                "      \"requested_peak\": 24000000000,\n"
                "      \"reserved_peak\": 25000000000,\n"
                "      \"recorded_reserved_peak\": null,\n"
                "      \"ratio\": 1.0416666666666667,\n"
                "      \"driver_calls\": 26,\n"
                "      \"driver_us\": 27002,\n"
                "      \"steady_driver_pct\": 28.0,\n"
                "      \"waits\": 29,\n"
                "      \"ooms\": 30,\n"
                "      \"mismatches\": 31,\n"
                "      \"events_per_s\": 32000000.0\n"
                "    }\n"
                "  ]\n"
                "}\n");
}

}  // namespace
}  // namespace weir::command

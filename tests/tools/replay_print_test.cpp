// SPDX-License-Identifier: Apache-2.0
// The findings of weir replay as they are printed: every column, to the letter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay.hpp"
#include "weir/base/version.hpp"

namespace weir::command { namespace {

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
            "trace        policy           in use GiB taken GiB  ratio     calls driver ms steady "
            "% waits "
            "ooms  M events/s\n"
            "a long name  torch-default         3.725     4.657  1.250         6       7.0     "
            "8.00     9 "
            "   0        12.0\n"
            "             balanced             22.352    23.283  1.042        26      27.0    "
            "28.00    29 "
            "   0        32.0\n"
            "\n"
            "other        driver-pool          40.978    41.910  1.023        46      47.0    "
            "48.00    49 "
            "   0        52.0\n");
  rows.resize(1);
  rows[0].trace = "x";
  rows[0].recorded = 3'456'000'000;
  rows.push_back(row("x", replay::policy::balanced, 20));
  EXPECT_EQ(
      to_table(rows),
      "trace  policy           in use GiB taken GiB recorded GiB  ratio     calls driver ms "
      "steady % "
      "waits ooms  M events/s\n"
      "x      torch-default         3.725     4.657        3.219  1.250         6       7.0   "
      "  8.00 "
      "    9    0        12.0\n"
      "       balanced             22.352    23.283               1.042        26      27.0   "
      " 28.00 "
      "   29    0        32.0\n");
}

TEST(replay_print, csv_has_a_line_a_replay) {
  EXPECT_EQ(
      to_csv({row("one", replay::policy::compact, 0), row("a,b", replay::policy::balanced, 20),
              row("say \"x\"", replay::policy::never_move, 40)}),
      "trace,policy,streams,allocs,requested_peak,reserved_peak,ratio,driver_calls,driver_us,"
      "steady_driver_pct,waits,ooms,events_per_s\n"
      "one,compact,1,2,4000000000,5000000000,1.2500,6,7002,8.000,9,0,12000000\n"
      "\"a,b\",balanced,21,22,24000000000,25000000000,1.0417,26,27002,28.000,29,0,32000000\n"
      "\"say \"\"x\"\"\",never-move,41,42,44000000000,45000000000,1.0227,46,47002,48.000,49,0,"
      "52000000\n");
}

TEST(replay_print, where_memory_ran_out_there_is_no_ratio) {
  replay_row made = row("x", replay::policy::compact, 0);
  made.outcome.ooms = 1;
  made.outcome.first_oom = replay::shortfall{7, 2'000'001'250, 3 << 20, 5 << 20};
  EXPECT_EQ(
      to_table({made}),
      "trace  policy           in use GiB taken GiB  ratio     calls driver ms steady % waits "
      "ooms  M events/s\n"
      "x      compact               3.725     4.657      -         6       7.0     8.00     9 "
      "   1        12.0\n");
  EXPECT_THAT(
      to_csv({made}),
      testing::HasSubstr("\nx,compact,1,2,4000000000,5000000000,,6,7002,8.000,9,1,12000000\n"));
  const json written = json::parse(to_json({made}, "sim"))["replays"][0];
  EXPECT_TRUE(written["ratio"].is_null());
  EXPECT_EQ(written["first_oom"],
            (json{{"at_ns", 2'000'001'250}, {"size", 3 << 20}, {"in_use", 5 << 20}}));
  EXPECT_EQ(out_of_memory_text(made.outcome),
            "out of memory at 2.000001250 s: a request of 3 MiB failed with 5 MiB in use; 1 "
            "request failed");
  made.outcome.ooms = 20;
  EXPECT_THAT(out_of_memory_text(made.outcome), testing::EndsWith("; 20 requests failed"));
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
                "      \"ooms\": 0,\n"
                "      \"first_oom\": null,\n"
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
                "      \"ooms\": 0,\n"
                "      \"first_oom\": null,\n"
                "      \"mismatches\": 31,\n"
                "      \"events_per_s\": 32000000.0\n"
                "    }\n"
                "  ]\n"
                "}\n");
}

// --- Fits ---------------------------------------------------------------------------------------

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

fit_row fitted(std::string trace, replay::policy policy, std::uint64_t capacity, unsigned plays) {
  replay::fit fit{.policy = policy,
                  .requested_peak = 4'000'000'000,
                  .capacity = bytes{capacity},
                  .plays = plays};
  fit.cards = {{bytes{24 * gib}, true}, {bytes{gib}, false}};
  return {std::move(trace), std::move(fit)};
}

TEST(fit_print, a_table_names_each_trace_once_and_has_a_column_a_card) {
  std::vector<fit_row> rows{fitted("a long name", replay::policy::balanced, 4'040'000'000, 9),
                            fitted("a long name", replay::policy::torch_default, 5'000'000'000, 13),
                            fitted("other", replay::policy::compact, 4'000'000'000, 2)};
  EXPECT_EQ(to_table(rows),
            "trace        policy           in use GiB fits from GiB  ratio plays       on 24 GiB"
            "        on 1 GiB\n"
            "a long name  balanced              3.725         3.763  1.010     9             yes"
            "              no\n"
            "             torch-default         3.725         4.657  1.250    13             yes"
            "              no\n"
            "\n"
            "other        compact               3.725         3.725  1.000     2             yes"
            "              no\n");
  for (fit_row& each : rows) each.fit.cards.clear();
  rows.resize(1);
  EXPECT_EQ(to_table(rows),
            "trace        policy           in use GiB fits from GiB  ratio plays\n"
            "a long name  balanced              3.725         3.763  1.010     9\n");
  rows.front().trace = "abc";
  EXPECT_EQ(to_table(rows),
            "trace  policy           in use GiB fits from GiB  ratio plays\n"
            "abc    balanced              3.725         3.763  1.010     9\n");
}

TEST(fit_print, csv_has_a_line_a_fit_and_its_cards_in_bytes) {
  const std::vector<bytes> cards{bytes{24 * gib}, bytes{gib}};
  EXPECT_EQ(to_csv({fitted("a,b", replay::policy::balanced, 4'040'000'000, 9)}, cards),
            "trace,policy,requested_peak,fit_capacity,fit_ratio,plays,fits_25769803776,"
            "fits_1073741824\n"
            "\"a,b\",balanced,4000000000,4040000000,1.0100,9,yes,no\n");
  EXPECT_EQ(to_csv(std::vector<fit_row>{}, {}),
            "trace,policy,requested_peak,fit_capacity,fit_ratio,plays\n");
}

TEST(fit_print, json_has_every_figure_by_name) {
  EXPECT_EQ(to_json({fitted("one", replay::policy::compact, 5'000'000'000, 7)}, "sim"),
            "{\n"
            "  \"weir\": \"" +
                std::string{version_text()} +
                "\",\n"
                "  \"device\": \"sim\",\n"
                "  \"fit_step\": 2097152,\n"
                "  \"fits\": [\n"
                "    {\n"
                "      \"trace\": \"one\",\n"
                "      \"policy\": \"compact\",\n"
                "      \"requested_peak\": 4000000000,\n"
                "      \"fit_capacity\": 5000000000,\n"
                "      \"fit_ratio\": 1.25,\n"
                "      \"plays\": 7,\n"
                "      \"cards\": [\n"
                "        {\n"
                "          \"card\": 25769803776,\n"
                "          \"fits\": true\n"
                "        },\n"
                "        {\n"
                "          \"card\": 1073741824,\n"
                "          \"fits\": false\n"
                "        }\n"
                "      ]\n"
                "    }\n"
                "  ]\n"
                "}\n");
}

// --- Profiles -----------------------------------------------------------------------------------

replay_row profiled(std::string trace) {
  replay_row made = row(std::move(trace), replay::policy::balanced, 0);
  replay::profile& profile = made.outcome.profile.emplace();
  const auto cause = [&](replay::cause at) -> replay::cause_cost& {
    return profile.causes[static_cast<std::size_t>(at)];
  };
  const auto call = [&](driver::call at) -> replay::call_tally& {
    return profile.calls[static_cast<std::size_t>(at)];
  };
  cause(replay::cause::thread_cache) = {1000, 0, nanoseconds{0}, nanoseconds{15'250}};
  cause(replay::cause::move) = {3, 17, nanoseconds{4'500'000}, nanoseconds{6'125}};
  cause(replay::cause::kept_free) = {900, 0, nanoseconds{0}, nanoseconds{9'000}};
  call(driver::call::mem_map) = {5, nanoseconds{5'000}};
  call(driver::call::event_record) = {6, nanoseconds{1'200}};
  call(driver::call::event_query) = {4, nanoseconds{700}};
  call(driver::call::event_synchronize) = {2, nanoseconds{0}};
  call(driver::call::stream_wait_event) = {1, nanoseconds{166}};
  profile.locks = 55;
  profile.worst_window = nanoseconds{3'210'000};
  profile.longest_step = nanoseconds{812'340};
  return made;
}

TEST(profile_print, a_table_has_the_causes_that_were_and_the_calls_that_were_made) {
  const std::string body =
      "  cause                                   steps     calls  driver ms   host ms\n"
      "  thread_cache                             1000         0      0.000     0.015\n"
      "  move                                        3        17      4.500     0.006\n"
      "  kept_free                                 900         0      0.000     0.009\n"
      "  all                                      1903        17      4.500     0.030\n"
      "  driver call                                       calls  driver ms\n"
      "  stream_wait_event                                     1      0.000\n"
      "  event_record                                          6      0.001\n"
      "  event_query                                           4      0.001\n"
      "  event_synchronize                                     2      0.000\n"
      "  mem_map                                               5      0.005\n"
      "  events: 6 recorded, 4 queried, 2 waited for by the host, 1 by streams\n"
      "  lock: taken 55 times\n"
      "  steady: worst 100 ms 3.21 % driver time, longest step 812.3 us of it\n";
  EXPECT_EQ(to_profile_table({profiled("one"), profiled("two")}),
            "one, balanced\n" + body + "\ntwo, balanced\n" + body);
}

TEST(profile_print, csv_has_every_cause_and_the_same_columns_for_all) {
  EXPECT_EQ(to_profile_csv({profiled("a,b")}),
            "trace,policy,kind,name,count,driver_calls,driver_us,host_us,bytes\n"
            "\"a,b\",balanced,cause,thread_cache,1000,0,0.000,15.250,\n"
            "\"a,b\",balanced,cause,free_range,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,completed,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,flushed,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,move,3,17,4500.000,6.125,\n"
            "\"a,b\",balanced,cause,move_behind_wait,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,pending_behind_wait,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,growth,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,release,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,wait,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,out_of_memory,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,driver_pool,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,kept_free,900,0,0.000,9.000,\n"
            "\"a,b\",balanced,cause,heap_free,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,cause,record_stream,0,0,0.000,0.000,\n"
            "\"a,b\",balanced,call,stream_wait_event,1,1,0.166,,\n"
            "\"a,b\",balanced,call,event_record,6,6,1.200,,\n"
            "\"a,b\",balanced,call,event_query,4,4,0.700,,\n"
            "\"a,b\",balanced,call,event_synchronize,2,2,0.000,,\n"
            "\"a,b\",balanced,call,mem_map,5,5,5.000,,\n"
            "\"a,b\",balanced,figure,events_recorded,6,,,,\n"
            "\"a,b\",balanced,figure,events_queried,4,,,,\n"
            "\"a,b\",balanced,figure,events_waited,2,,,,\n"
            "\"a,b\",balanced,figure,waits_queued,1,,,,\n"
            "\"a,b\",balanced,figure,locks,55,,,,\n"
            "\"a,b\",balanced,figure,worst_100ms,,,3210.000,,\n"
            "\"a,b\",balanced,figure,longest_step,,,812.340,,\n");
}

TEST(profile_print, json_has_it_beside_the_figures) {
  const json written = json::parse(to_json({profiled("one"), row("two", {}, 0)}, "sim"));
  EXPECT_FALSE(written["replays"][1].contains("profile"));
  const json& profile = written["replays"][0]["profile"];
  EXPECT_EQ(profile["causes"].size(), 15U);
  EXPECT_EQ(profile["causes"]["move"].dump(),
            R"({"count":3,"driver_calls":17,"driver_us":4500.0,"host_us":6.125})");
  EXPECT_EQ(
      profile["calls"].dump(),
      R"({"stream_wait_event":{"count":1,"driver_us":0.166},)"
      R"("event_record":{"count":6,"driver_us":1.2},"event_query":{"count":4,"driver_us":0.7},)"
      R"("event_synchronize":{"count":2,"driver_us":0.0},"mem_map":{"count":5,"driver_us":5.0}})");
  json rest = profile;
  rest.erase("causes");
  rest.erase("calls");
  EXPECT_FALSE(profile.contains("at_peak"));
  EXPECT_EQ(
      rest.dump(),
      R"({"events_recorded":6,"events_queried":4,"events_waited":2,"waits_queued":1,"locks":55,)"
      R"("worst_100ms_driver_pct":3.21,"longest_step_driver_us":812.34})");
}

/// With a different number in each place, so that none can be written for another.
replay_row surveyed() {
  replay_row made = profiled("one");
  replay::free_space& space = made.outcome.profile->at_peak.emplace();
  space.steps = 42;
  space.time = 1'250'000;
  std::uint64_t next = 0;
  const auto fill = [&](replay::space_tally& tally) {
    ++next;
    tally = {next << 18, next};
  };
  space.reserved = {std::uint64_t{100} << 20, 60};
  for (replay::space_tally* each : {&space.requested, &space.rounding, &space.thread_caches,
                                    &space.unfinished_uses, &space.private_pools, &space.headroom})
    fill(*each);
  for (replay::space_tally& each : space.pinned) fill(each);
  for (replay::space_tally& each : space.slivers) fill(each);
  fill(space.stream_bound);
  return made;
}

TEST(profile_print, a_table_ends_with_the_memory_at_the_peak) {
  const std::string plain = to_profile_table({profiled("one")});
  const std::string text = to_profile_table({surveyed()});
  ASSERT_EQ(text.substr(0, plain.size()), plain);
  EXPECT_EQ(text.substr(plain.size()),
            "  memory at the peak, step 42             count                  MiB         %\n"
            "  reserved                                   60              100.000    100.00\n"
            "  requested                                   1                0.250      0.25\n"
            "  rounding                                    2                0.500      0.50\n"
            "  thread_caches                               3                0.750      0.75\n"
            "  unfinished_uses                             4                1.000      1.00\n"
            "  private_pools                               5                1.250      1.25\n"
            "  headroom                                    6                1.500      1.50\n"
            "  pinned_by_long_lived                        7                1.750      1.75\n"
            "  pinned_by_small                             8                2.000      2.00\n"
            "  pinned_by_large                             9                2.250      2.25\n"
            "  pinned_by_thread_cache                     10                2.500      2.50\n"
            "  pinned_by_unfinished_use                   11                2.750      2.75\n"
            "  slivers_to_4_kib                           12                3.000      3.00\n"
            "  slivers_to_64_kib                          13                3.250      3.25\n"
            "  slivers_to_256_kib                         14                3.500      3.50\n"
            "  slivers_to_1_mib                           15                3.750      3.75\n"
            "  slivers_to_2_mib                           16                4.000      4.00\n"
            "  slivers_longer                             17                4.250      4.25\n"
            "  stream_bound                               18                4.500      4.50\n");
}

TEST(profile_print, csv_has_a_line_for_each_kind_of_bytes_at_the_peak) {
  const std::string plain = to_profile_csv({profiled("one")});
  const std::string text = to_profile_csv({surveyed()});
  ASSERT_EQ(text.substr(0, plain.size()), plain);
  EXPECT_EQ(text.substr(plain.size()),
            "one,balanced,figure,peak_step,42,,,,\n"
            "one,balanced,space,reserved,60,,,,104857600\n"
            "one,balanced,space,requested,1,,,,262144\n"
            "one,balanced,space,rounding,2,,,,524288\n"
            "one,balanced,space,thread_caches,3,,,,786432\n"
            "one,balanced,space,unfinished_uses,4,,,,1048576\n"
            "one,balanced,space,private_pools,5,,,,1310720\n"
            "one,balanced,space,headroom,6,,,,1572864\n"
            "one,balanced,space,pinned_by_long_lived,7,,,,1835008\n"
            "one,balanced,space,pinned_by_small,8,,,,2097152\n"
            "one,balanced,space,pinned_by_large,9,,,,2359296\n"
            "one,balanced,space,pinned_by_thread_cache,10,,,,2621440\n"
            "one,balanced,space,pinned_by_unfinished_use,11,,,,2883584\n"
            "one,balanced,space,slivers_to_4_kib,12,,,,3145728\n"
            "one,balanced,space,slivers_to_64_kib,13,,,,3407872\n"
            "one,balanced,space,slivers_to_256_kib,14,,,,3670016\n"
            "one,balanced,space,slivers_to_1_mib,15,,,,3932160\n"
            "one,balanced,space,slivers_to_2_mib,16,,,,4194304\n"
            "one,balanced,space,slivers_longer,17,,,,4456448\n"
            "one,balanced,space,stream_bound,18,,,,4718592\n");
}

TEST(profile_print, json_has_the_memory_at_the_peak) {
  const json written = json::parse(to_json({surveyed()}, "sim"));
  const json& space = written["replays"][0]["profile"]["at_peak"];
  EXPECT_EQ(space.size(), 21U);
  EXPECT_EQ(space["steps"], 42);
  EXPECT_EQ(space["at_ns"], 1'250'000);
  EXPECT_EQ(space["reserved"].dump(), R"({"bytes":104857600,"count":60})");
  EXPECT_EQ(space["headroom"].dump(), R"({"bytes":1572864,"count":6})");
  EXPECT_EQ(space["pinned_by_small"].dump(), R"({"bytes":2097152,"count":8})");
  EXPECT_EQ(space["slivers_longer"].dump(), R"({"bytes":4456448,"count":17})");
}

}  // namespace
}  // namespace weir::command

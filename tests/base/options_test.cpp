// SPDX-License-Identifier: Apache-2.0
// Options: reading, refusing, writing back, and the environment.
#include "weir/base/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace weir { namespace {

using namespace std::chrono_literals;
using namespace weir::literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(std::string_view name, std::string_view value) {
  options target;
  const auto done = set(target, name, value);
  EXPECT_EQ(target, options{}) << "a refused value changed something";
  if (done) {
    ADD_FAILURE() << name << " took " << value;
    return "";
  }
  EXPECT_EQ(done.code(), errc::bad_option);
  return done.error().detail();
}

TEST(options, start_with_the_table_s_values) {
  const options initial;
  EXPECT_EQ(initial.runtime, runtime_choice::automatic);
  EXPECT_EQ(initial.driver_path, "libcuda.so.1");
  EXPECT_EQ(initial.sim_devices, 1);
  EXPECT_EQ(initial.sim_capacity, bytes{150'109'880'320});
  EXPECT_EQ(initial.sim_seed, 1u);
  EXPECT_EQ(initial.sim_mode, sim_progress::seeded);
  EXPECT_EQ(initial.sim_lag, 0ns);
  EXPECT_TRUE(initial.sim_hazards);
}

TEST(options, of_every_type_are_read) {
  options target;
  EXPECT_TRUE(set(target, "runtime", "sim"));
  EXPECT_TRUE(set(target, "driver_path", "/opt/cuda/libcuda.so.1"));
  EXPECT_TRUE(set(target, "sim_devices", "8"));
  EXPECT_TRUE(set(target, "sim_capacity", "20GiB"));
  EXPECT_TRUE(set(target, "sim_seed", "18446744073709551615"));
  EXPECT_TRUE(set(target, "sim_mode", "manual"));
  EXPECT_TRUE(set(target, "sim_lag", "250us"));
  EXPECT_TRUE(set(target, "sim_hazards", "off"));
  EXPECT_EQ(target, (options{.runtime = runtime_choice::simulated,
                             .driver_path = "/opt/cuda/libcuda.so.1",
                             .sim_devices = 8,
                             .sim_capacity = 20_GiB,
                             .sim_seed = ~std::uint64_t{0},
                             .sim_mode = sim_progress::manual,
                             .sim_lag = 250us,
                             .sim_hazards = false}));
}

TEST(options, take_the_spellings_they_document) {
  options target;
  for (const char* on : {"on", "true", "1"}) {
    target.sim_hazards = false;
    EXPECT_TRUE(set(target, "sim_hazards", on));
    EXPECT_TRUE(target.sim_hazards) << on;
  }
  for (const char* off : {"off", "false", "0"}) {
    target.sim_hazards = true;
    EXPECT_TRUE(set(target, "sim_hazards", off));
    EXPECT_FALSE(target.sim_hazards) << off;
  }
  const std::map<std::string, std::chrono::nanoseconds> durations = {
      {"0", 0ns}, {"7ns", 7ns}, {"7us", 7us}, {"7ms", 7ms}, {"7s", 7s}, {"3600s", 1h}};
  for (const auto& [text, value] : durations) {
    EXPECT_TRUE(set(target, "sim_lag", text)) << text;
    EXPECT_EQ(target.sim_lag, value) << text;
  }
  EXPECT_TRUE(set(target, "sim_capacity", "2147483648"));
  EXPECT_EQ(target.sim_capacity, 2_GiB);
}

TEST(options, out_of_range_are_refused_with_the_range) {
  EXPECT_EQ(refusal("sim_devices", "0"),
            "sim_devices: expected a whole number from 1 to 16 (devices), got \"0\"");
  EXPECT_EQ(refusal("sim_devices", "17"),
            "sim_devices: expected a whole number from 1 to 16 (devices), got \"17\"");
  EXPECT_EQ(refusal("sim_capacity", "1MiB"),
            "sim_capacity: expected a size from 1GiB to 1TiB (bytes), got \"1MiB\"");
  EXPECT_EQ(refusal("sim_lag", "3601s"),
            "sim_lag: expected a duration from 0s to 3600s (ns, us, ms or s), got \"3601s\"");
  EXPECT_EQ(refusal("sim_lag", "-1ns"),
            "sim_lag: expected a duration from 0s to 3600s (ns, us, ms or s), got \"-1ns\"");
}

TEST(options, that_cannot_be_read_are_refused) {
  EXPECT_EQ(refusal("runtime", "gpu"), "runtime: expected one of auto, cuda, sim, got \"gpu\"");
  EXPECT_THAT(refusal("sim_hazards", "yes"), HasSubstr("expected a switch (on or off)"));
  for (const char* text : {"", "1x", " 1", "1 ", "0x1", "1.0", "99999999999999999999"})
    EXPECT_THAT(refusal("sim_devices", text), StartsWith("sim_devices: ")) << text;
  for (const char* text : {"", "5", "5 s", "5m", "s", "9223372036854775807s", "1e3ns"})
    EXPECT_THAT(refusal("sim_lag", text), StartsWith("sim_lag: ")) << text;
  // 2^55 s are a multiple of 2^64 ns.
  EXPECT_THAT(refusal("sim_lag", "36028797018963968s"), StartsWith("sim_lag: "));
  EXPECT_THAT(refusal("sim_seed", "-1"), StartsWith("sim_seed: "));
  EXPECT_THAT(refusal("sim_mode", "Manual"), StartsWith("sim_mode: "));
  EXPECT_THAT(refusal("driver_path", ""), StartsWith("driver_path: "));
  EXPECT_THAT(refusal("driver_path", std::string_view{"a\0b", 3}), StartsWith("driver_path: "));
}

TEST(options, that_cannot_be_read_leave_the_value_before) {
  options target;
  for (const char* text : {"", "x", "-", "18446744073709551616"}) {
    ASSERT_TRUE(set(target, "sim_seed", "77"));
    const auto refused = set(target, "sim_seed", text);  // at once: what it left behind is no value
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.code(), errc::bad_option) << text;
    EXPECT_EQ(target.sim_seed, 77u) << text;
  }
  for (const char* text : {"", "x", "ms", "-", "9223372036854775808ns"}) {
    ASSERT_TRUE(set(target, "sim_lag", "7ms"));
    const auto refused = set(target, "sim_lag", text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.code(), errc::bad_option) << text;
    EXPECT_EQ(target.sim_lag, 7ms) << text;
  }
}

TEST(options, with_an_unknown_name_are_refused_with_the_nearest) {
  EXPECT_EQ(refusal("sim_device", "2"),
            "unknown option \"sim_device\"; did you mean \"sim_devices\"?");
  EXPECT_THAT(refusal("simcapacity", "2"), HasSubstr("\"sim_capacity\""));
  EXPECT_THAT(refusal("Runtime", "2"), HasSubstr("\"runtime\""));
  EXPECT_EQ(refusal("", "2"), "unknown option \"\"; did you mean \"live\"?");
  // The whole name counts: three letters make "live" of it, four must be put before it.
  EXPECT_EQ(refusal("mode", "2"), "unknown option \"mode\"; did you mean \"live\"?");
  // Each letter put in, taken out or changed counts as much.
  EXPECT_EQ(refusal("rec", "2"), "unknown option \"rec\"; did you mean \"record\"?");
  EXPECT_EQ(refusal("ver", "2"), "unknown option \"ver\"; did you mean \"live\"?");
  // Of several that are as near, the table's first: sim_seed, before sim_mode and sim_lag.
  EXPECT_EQ(refusal("sim_xxxx", "2"), "unknown option \"sim_xxxx\"; did you mean \"sim_seed\"?");
  EXPECT_EQ(refusal(std::string(100'000, 'x'), "2"),
            "unknown option \"" + std::string(64, 'x') + "\"; did you mean \"heap_exportable\"?");
}

TEST(options, with_choices_take_and_write_each_of_them) {
  const auto expect_both_ways = [](std::string_view name, auto options::*member,
                                   const auto& spellings) {
    for (const auto& [text, value] : spellings) {
      options target;
      EXPECT_TRUE(set(target, name, text)) << text;
      EXPECT_EQ(target.*member, value) << text;
      EXPECT_EQ(*get(target, name), text);
      EXPECT_EQ(to_string(value), text);
    }
  };
  expect_both_ways("runtime", &options::runtime,
                   std::map<std::string, runtime_choice>{{"auto", runtime_choice::automatic},
                                                         {"cuda", runtime_choice::cuda},
                                                         {"sim", runtime_choice::simulated}});
  expect_both_ways("sim_mode", &options::sim_mode,
                   std::map<std::string, sim_progress>{{"seeded", sim_progress::seeded},
                                                       {"timed", sim_progress::timed},
                                                       {"manual", sim_progress::manual}});
  expect_both_ways("heap_policy", &options::heap_policy,
                   std::map<std::string, placement_policy>{
                       {"balanced", placement_policy::balanced},
                       {"throughput", placement_policy::throughput},
                       {"compact", placement_policy::compact},
                       {"never_move", placement_policy::never_move},
                       {"classic", placement_policy::classic},
                       {"classic_expandable", placement_policy::classic_expandable}});
  expect_both_ways(
      "heap_crossing", &options::heap_crossing,
      std::map<std::string, crossing_rule>{{"all_work", crossing_rule::all_work},
                                           {"declared_uses", crossing_rule::declared_uses}});
  expect_both_ways("heap_debug", &options::heap_debug,
                   std::map<std::string, debug_checks>{{"off", debug_checks::off},
                                                       {"red_zones", debug_checks::red_zones},
                                                       {"guard_pages", debug_checks::guard_pages}});
  expect_both_ways(
      "heap_rdma", &options::heap_rdma,
      std::map<std::string, rdma_use>{
          {"auto", rdma_use::automatic}, {"on", rdma_use::on}, {"off", rdma_use::off}});
  // A number that is no choice is shown as it is, and refused when it is read back.
  EXPECT_EQ(to_string(static_cast<runtime_choice>(7)), "7");
  EXPECT_EQ(refusal("runtime", "7"), "runtime: expected one of auto, cuda, sim, got \"7\"");
}

TEST(option_lists, set_several) {
  options target;
  EXPECT_TRUE(set_all(target, "runtime=sim,sim_devices=2"));
  EXPECT_EQ(target.runtime, runtime_choice::simulated);
  EXPECT_EQ(target.sim_devices, 2);
  EXPECT_TRUE(set_all(target, ""));
  EXPECT_TRUE(set_all(target, "sim_devices=3,sim_devices=4,"));  // the last one counts
  EXPECT_EQ(target.sim_devices, 4);
}

TEST(option_lists, keep_commas_and_backslashes_of_values) {
  options target;
  EXPECT_TRUE(set_all(target, R"(driver_path=/a\,b\\c=d,sim_devices=2)"));
  EXPECT_EQ(target.driver_path, R"(/a,b\c=d)");
  EXPECT_EQ(target.sim_devices, 2);
  EXPECT_TRUE(set_all(target, R"(driver_path=a\)")) << "nothing is left to be escaped";
  EXPECT_EQ(target.driver_path, R"(a\)");
}

TEST(option_lists, set_all_or_none) {
  options target;
  const auto done = set_all(target, "sim_devices=2,sim_lag=soon");
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().detail(), StartsWith("sim_lag: "));
  EXPECT_EQ(target, options{});
}

TEST(option_lists, refuse_what_is_no_pair) {
  options target;
  EXPECT_EQ(set_all(target, "sim_devices").error().detail(),
            "expected name=value, got \"sim_devices\"");
  EXPECT_FALSE(set_all(target, ",sim_devices=2"));
  EXPECT_FALSE(set_all(target, "sim_devices=2,,sim_seed=2"));
  EXPECT_EQ(target, options{});
}

TEST(options, survive_being_written_and_read) {
  for (const char* list :
       {"", "runtime=cuda", "sim_mode=timed,sim_lag=1500ns", "sim_capacity=1073741825",
        R"(driver_path=a\\b\,c=d)", "sim_hazards=off,sim_seed=0,sim_devices=16"}) {
    options first;
    ASSERT_TRUE(set_all(first, list)) << list;
    options second;
    second.sim_seed = 99;  // must be overwritten
    ASSERT_TRUE(set_all(second, to_string(first))) << to_string(first);
    EXPECT_EQ(second, first) << list;
  }
}

TEST(options, are_written_exactly_and_shortly) {
  EXPECT_EQ(
      to_string(options{}),
      "runtime=auto,driver_path=libcuda.so.1,sim_devices=1,sim_capacity=146591680KiB,sim_seed=1,"
      "sim_mode=seeded,sim_lag=0s,sim_hazards=on,heap_policy=balanced,heap_limit=0,"
      "heap_limit_percent=100,heap_thread_cache=64MiB,heap_crossing=all_work,"
      "heap_allow_unreleased_streams=off,heap_queued_waits=on,heap_detect_captures=off,"
      "heap_debug_unmap=off,heap_debug_stacks=off,heap_debug=off,heap_debug_quarantine=64GiB,"
      "heap_exportable=off,heap_rdma=auto,print_errors=auto,record=off,record_stacks=off,live=off,"
      "budget=off");
  EXPECT_EQ(*get(options{}, "sim_capacity"), "146591680KiB");
  EXPECT_EQ(*get(options{.heap_limit = 1_TiB}, "heap_limit"), "1TiB");
  EXPECT_EQ(*get(options{.heap_limit = 1024 * 1_TiB}, "heap_limit"), "1024TiB");
  EXPECT_EQ(*get(options{.heap_limit = 1025_KiB}, "heap_limit"), "1025KiB");
  EXPECT_EQ(get(options{}, "sim_capacit").code(), errc::bad_option);
}

// An environment that is not the process's.
environment pretend(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found != variables.end() ? found->second.c_str() : nullptr;
  };
}

TEST(options_from_environment, take_what_is_set) {
  const auto read = options_from_environment(
      pretend({{"WEIR_RUNTIME", "sim"}, {"WEIR_SIM_DEVICES", "2"}, {"WEIR_SIM_LAG", ""}}));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, (options{.runtime = runtime_choice::simulated, .sim_devices = 2}));
}

TEST(options_from_environment, stand_above_the_initial_values) {
  const options initial{.sim_devices = 4, .sim_seed = 5};
  const auto read = options_from_environment(pretend({{"WEIR_SIM_DEVICES", "2"}}), initial);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->sim_devices, 2);
  EXPECT_EQ(read->sim_seed, 5u);
}

TEST(options_from_environment, name_the_variable_that_is_wrong) {
  const auto read = options_from_environment(pretend({{"WEIR_SIM_DEVICES", "many"}}));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().detail(),
            "WEIR_SIM_DEVICES: sim_devices: expected a whole number from 1 to 16 (devices), got "
            "\"many\"");
}

TEST(options_from_environment, reads_the_process_s_own_by_default) {
  ASSERT_EQ(setenv("WEIR_SIM_SEED", "4711", 1), 0);
  const auto read = options_from_environment();
  unsetenv("WEIR_SIM_SEED");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->sim_seed, 4711u);
}

TEST(described_options, are_the_rows_of_the_table) {
  const auto rows = describe_options();
  std::set<std::string> names;
  std::set<std::string> variables;
  for (const option_info& row : rows) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(variables.insert(row.environment).second) << row.environment;
    EXPECT_THAT(row.environment, StartsWith("WEIR_"));
    EXPECT_FALSE(row.meaning.empty() || row.type.empty()) << row.name;
    // The initial value is one that the option itself takes.
    options target;
    EXPECT_TRUE(set(target, row.name, row.initial)) << row.name;
    EXPECT_EQ(target, options{}) << row.name;
    EXPECT_EQ(*get(options{}, row.name), row.initial);
  }
  EXPECT_TRUE(names.contains("sim_capacity"));
}

TEST(described_options, show_what_is_allowed) {
  std::map<std::string, std::string> values;
  for (const option_info& row : describe_options()) values[row.name] = row.values;
  EXPECT_EQ(values["runtime"], "auto, cuda, sim");
  EXPECT_EQ(values["sim_devices"], "1 to 16");
  EXPECT_EQ(values["sim_capacity"], "1GiB to 1TiB");
  EXPECT_EQ(values["sim_seed"], "");
}

}  // namespace
}  // namespace weir

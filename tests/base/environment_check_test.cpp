// SPDX-License-Identifier: Apache-2.0
// Mistakes in the environment are named once, and what can be read counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/environment.hpp"
#include "weir/allocator/allocator_options.hpp"

namespace weir { namespace {

using namespace weir::literals;

struct variable {
  const char* name;
  const char* value;
};

/// In a process of its own, because mistakes are named once in a process: writes what is reported
/// to standard error.
[[noreturn]] void check_with(const std::vector<variable>& variables) {
  for (const variable& each : variables) ::setenv(each.name, each.value, 1);
  set_error_handler(nullptr);
  detail::check_environment();
  detail::check_environment();
  std::_Exit(0);
}

struct environment_check : ::testing::Test {
  environment_check() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

constexpr auto ended = [](int status) { return ::testing::ExitedWithCode(0)(status); };
constexpr const char* bad = "weir: bad_option: unknown option or invalid value: ";

TEST_F(environment_check, names_the_nearest_variable_once) {
  EXPECT_EXIT(check_with({{"WEIR_HEAP_LIMT", "1GiB"}}), ended,
              "^" + std::string{bad} +
                  "the environment variable WEIR_HEAP_LIMT is unknown and ignored; did you mean "
                  "WEIR_HEAP_LIMIT.\n$");
  EXPECT_EXIT(check_with({{"WEIR_RUNTIM", "sim"}}), ended, "did you mean WEIR_RUNTIME.\n$");
  EXPECT_EXIT(check_with({{"WEIR_LIVE_FOLDR", "/tmp"}}), ended,
              "did you mean WEIR_LIVE_FOLDER.\n$");
}

TEST_F(environment_check, names_a_value_that_cannot_be_read_once) {
  EXPECT_EXIT(check_with({{"WEIR_HEAP_LIMIT", "much"}}), ended,
              "^" + std::string{bad} +
                  "WEIR_HEAP_LIMIT: heap_limit: expected a size [^\n]*, got \"much\"\n$");
}

TEST_F(environment_check, says_nothing_of_known_variables_and_of_empty_ones) {
  EXPECT_EXIT(check_with({{"WEIR_HEAP_LIMIT", "1GiB"},
                          {"WEIR_LIBRARY", "/usr/lib/libweir.so"},
                          {"WEIR_RUN_PROCESS", "1"},
                          {"WEIR_UNKNOWN", ""},
                          {"WEIRD_VARIABLE", "1"}}),
              ended, "^$");
}

TEST_F(environment_check, leaves_out_what_cannot_be_read) {
  ::setenv("WEIR_SIM_DEVICES", "2", 1);
  ::setenv("WEIR_SIM_SEED", "many", 1);
  std::vector<std::string> reported;
  set_error_handler([&](const error& reason) { reported.push_back(reason.detail()); });
  const options read = detail::environment_defaults({.sim_devices = 4, .sim_seed = 5});
  static_cast<void>(detail::environment_defaults());
  set_error_handler(nullptr);
  ::unsetenv("WEIR_SIM_DEVICES");
  ::unsetenv("WEIR_SIM_SEED");
  EXPECT_EQ(read.sim_devices, 2);
  EXPECT_EQ(read.sim_seed, 5u);
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_THAT(
      reported.front(),
      ::testing::StartsWith("WEIR_SIM_SEED: sim_seed: expected a whole number, got \"many\""));
}

TEST(allocator_options, have_the_values_of_the_environment_where_the_program_sets_none) {
  const allocator_options initial;
  EXPECT_EQ(initial, allocator_options::from(options{}));
  const std::vector<variable> variables{
      {"WEIR_HEAP_POLICY", "compact"},         {"WEIR_HEAP_LIMIT", "3GiB"},
      {"WEIR_HEAP_LIMIT_PERCENT", "50"},       {"WEIR_HEAP_THREAD_CACHE", "1MiB"},
      {"WEIR_HEAP_CROSSING", "declared_uses"}, {"WEIR_HEAP_ALLOW_UNRELEASED_STREAMS", "on"},
      {"WEIR_HEAP_QUEUED_WAITS", "off"},       {"WEIR_HEAP_DETECT_CAPTURES", "on"},
      {"WEIR_HEAP_DEBUG_UNMAP", "on"},         {"WEIR_HEAP_DEBUG_STACKS", "on"},
      {"WEIR_HEAP_DEBUG", "red_zones"},        {"WEIR_HEAP_DEBUG_QUARANTINE", "1GiB"},
      {"WEIR_HEAP_EXPORTABLE", "on"},          {"WEIR_HEAP_RDMA", "off"}};
  for (const variable& each : variables) ::setenv(each.name, each.value, 1);
  const allocator_options none_set;
  const allocator_options some_set{.policy = placement_policy::balanced, .limit = bytes{}};
  const options all = options_from_environment().value();
  for (const variable& each : variables) ::unsetenv(each.name);
  EXPECT_EQ(none_set, allocator_options::from(all));
  EXPECT_EQ(none_set.debug_quarantine, 1_GiB);
  EXPECT_EQ(some_set.policy, placement_policy::balanced);
  EXPECT_EQ(some_set.limit, bytes{});
  EXPECT_EQ(some_set.limit_percent, 50);
  EXPECT_EQ(allocator_options::from(options{}), initial);
}

}  // namespace
}  // namespace weir

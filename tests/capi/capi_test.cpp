// The C ABI: called from C (c_caller.c), from several threads, and compared with the C++ side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capi/guard.hpp"
#include "weir.h"
#include "weir/error.hpp"
#include "weir/options.hpp"
#include "weir/sim.hpp"
#include "weir/version.hpp"  // beside weir.h: a difference in a version macro is a diagnostic

extern "C" {
const char* weir_test_version(void);
const char* weir_test_errors(void);
const char* weir_test_runtime(void);
const char* weir_test_bad_input(void);
}

namespace weir {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(called_from_c, version) { EXPECT_STREQ(weir_test_version(), nullptr); }
TEST(called_from_c, errors) { EXPECT_STREQ(weir_test_errors(), nullptr); }
TEST(called_from_c, runtime) { EXPECT_STREQ(weir_test_runtime(), nullptr); }
TEST(called_from_c, bad_input) { EXPECT_STREQ(weir_test_bad_input(), nullptr); }

TEST(c_errors, are_the_errors_of_cpp) {
#define WEIR_ERRC(code, value, text)                                            \
  EXPECT_EQ(weir_error_##code, static_cast<weir_error>(errc::code));            \
  EXPECT_EQ(weir_error_name(weir_error_##code), std::string{name(errc::code)}); \
  EXPECT_EQ(weir_error_meaning(weir_error_##code), std::string{meaning(errc::code)});
#include "weir/errc.def"
#undef WEIR_ERRC
}

TEST(c_errors, belong_to_their_thread) {
  weir_runtime* none = nullptr;
  ASSERT_EQ(weir_runtime_open("sim_seed=here", &none), weir_error_bad_option);
  std::thread{[] {
    EXPECT_STREQ(weir_last_error_message(), "");
    weir_runtime* other = nullptr;
    EXPECT_EQ(weir_runtime_open("sim_seed=there", &other), weir_error_bad_option);
    EXPECT_THAT(weir_last_error_message(), HasSubstr("there"));
  }}.join();
  EXPECT_THAT(weir_last_error_message(), HasSubstr("here"));
}

TEST(c_errors, are_cut_where_they_are_too_long) {
  weir_runtime* none = nullptr;
  const std::string list = "runtime=cuda,driver_path=/" + std::string(5000, 'x');
  ASSERT_EQ(weir_runtime_open(list.c_str(), &none), weir_error_driver_unavailable);
  EXPECT_EQ(std::string{weir_last_error_message()}.size(), 1023u);
}

TEST(the_wall, stops_every_exception) {
  EXPECT_EQ(capi::guarded([]() -> result<void> { return {}; }), weir_ok);
  EXPECT_EQ(capi::guarded([]() -> result<void> {
              return error{.code = errc::device_lost, .native = 719, .call = "cuEventQuery"};
            }),
            weir_error_device_lost);
  EXPECT_EQ(weir_last_error_native(), 719);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("(cuEventQuery = 719)"));

  EXPECT_EQ(capi::guarded([]() -> result<void> { raise({.code = errc::bad_stream}); }),
            weir_error_bad_stream);
  EXPECT_EQ(capi::guarded([]() -> result<void> { raise({.code = errc::out_of_memory}); }),
            weir_error_out_of_memory);
  EXPECT_EQ(capi::guarded([]() -> result<void> { throw std::bad_alloc{}; }), weir_error_system);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("no host memory"));
  EXPECT_EQ(capi::guarded([]() -> result<void> { throw std::logic_error{"x"}; }),
            weir_error_internal);
  EXPECT_EQ(capi::guarded([]() -> result<void> { throw 42; }), weir_error_internal);
  EXPECT_EQ(weir_last_error_native(), 0);  // not that of the failure before
}

TEST(c_runtimes, read_the_environment_only_when_asked) {
  ASSERT_EQ(setenv("WEIR_RUNTIME", "sim", 1), 0);
  ASSERT_EQ(setenv("WEIR_SIM_DEVICES", "3", 1), 0);
  const auto devices_of = [](auto open, const char* list) {
    weir_runtime* runtime = nullptr;
    weir_runtime_info about{};
    about.struct_size = sizeof(about);
    EXPECT_EQ(open(list, &runtime), weir_ok) << weir_last_error_message();
    EXPECT_EQ(weir_runtime_get_info(runtime, &about), weir_ok) << weir_last_error_message();
    EXPECT_EQ(weir_runtime_close(runtime), weir_ok);
    return about.device_count;
  };
  EXPECT_EQ(devices_of(weir_runtime_open, "runtime=sim"), 1);
  EXPECT_EQ(devices_of(weir_runtime_open_from_environment, nullptr), 3);
  EXPECT_EQ(devices_of(weir_runtime_open_from_environment, "sim_devices=2"), 2);

  ASSERT_EQ(setenv("WEIR_SIM_DEVICES", "three", 1), 0);
  weir_runtime* none = nullptr;
  EXPECT_EQ(weir_runtime_open_from_environment(nullptr, &none), weir_error_bad_option);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("WEIR_SIM_DEVICES"));
  unsetenv("WEIR_RUNTIME");
  unsetenv("WEIR_SIM_DEVICES");
}

// Closing is safe while others ask: each call either finishes or finds the runtime closed.
TEST(c_runtimes, may_be_closed_while_in_use) {
  for (int round = 0; round < 20; ++round) {
    weir_runtime* runtime = nullptr;
    ASSERT_EQ(weir_runtime_open("runtime=sim,sim_capacity=1GiB", &runtime), weir_ok);
    std::vector<std::thread> users;
    for (int i = 0; i < 3; ++i) {
      users.emplace_back([&] {
        for (;;) {
          weir_device_info info{};
          info.struct_size = sizeof(info);
          const weir_error answer = weir_device_get_info(runtime, 0, &info);
          if (answer == weir_error_already_freed) return;
          ASSERT_EQ(answer, weir_ok) << weir_last_error_message();
          ASSERT_EQ(info.total_memory, std::uint64_t{1} << 30);
        }
      });
    }
    EXPECT_EQ(weir_runtime_close(runtime), weir_ok);
    for (auto& user : users) user.join();
  }
}

TEST(c_runtimes, of_the_past_are_never_taken_for_one_of_today) {
  weir_runtime* first = nullptr;
  weir_runtime* second = nullptr;
  ASSERT_EQ(weir_runtime_open("runtime=sim", &first), weir_ok);
  ASSERT_EQ(weir_runtime_close(first), weir_ok);
  ASSERT_EQ(weir_runtime_open("runtime=sim", &second), weir_ok);
  EXPECT_NE(first, second);
  EXPECT_EQ(weir_runtime_close(first), weir_error_already_freed);
  EXPECT_EQ(weir_runtime_close(second), weir_ok);
}

// What the table of options calls initial is what the simulated machine calls default.
TEST(options_of_the_simulated_machine, have_its_own_defaults) {
  const options initial;
  const sim::machine_options machine;
  ASSERT_EQ(machine.devices.size(), static_cast<std::size_t>(initial.sim_devices));
  EXPECT_EQ(machine.devices[0].capacity, initial.sim_capacity);
  EXPECT_EQ(machine.seed, initial.sim_seed);
  EXPECT_EQ(machine.lag, initial.sim_lag);
  EXPECT_EQ(machine.check_hazards, initial.sim_hazards);
  EXPECT_EQ(machine.mode, sim::progress::seeded);
  EXPECT_EQ(initial.sim_mode, sim_progress::seeded);
}

}  // namespace
}  // namespace weir

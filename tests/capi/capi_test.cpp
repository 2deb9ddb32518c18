// SPDX-License-Identifier: Apache-2.0
// The C ABI: called from C (c_*.c), and compared with the C++ side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "c_tests.h"
#include "capi/guard.hpp"
#include "support/scratch.hpp"
#include "weir.h"
#include "weir/base/error.hpp"
#include "weir/base/options.hpp"
#include "weir/base/version.hpp"  // beside weir.h: a difference in a version macro is a diagnostic
#include "weir/sim/machine.hpp"

extern "C" const char* weir_test_folder(void) {
  static const weir::testing_support::scratch_folder folder;
  static const std::string path = folder.path("");
  return path.c_str();
}

namespace weir { namespace {

using ::testing::HasSubstr;

#define WEIR_RUN(name)                                                      \
  TEST(called_from_c, name) {                                               \
    EXPECT_STREQ(weir_test_##name(), nullptr) << weir_last_error_message(); \
  }
WEIR_C_TESTS(WEIR_RUN)
#undef WEIR_RUN

TEST(called_from_c, links) {
  weir_runtime* machine = nullptr;
  ASSERT_EQ(weir_runtime_open(SMALL_MACHINE, &machine), weir_ok);
  int32_t sockets[2] = {-1, -1};
  ASSERT_EQ(weir_link_create_sockets(sockets), weir_ok) << weir_last_error_message();
  weir_link* giver = nullptr;
  weir_link* taker = nullptr;
  std::thread other{[&] { EXPECT_EQ(weir_link_open(machine, sockets[1], 5000, &taker), weir_ok); }};
  EXPECT_EQ(weir_link_open(machine, sockets[0], 5000, &giver), weir_ok);
  other.join();
  EXPECT_STREQ(weir_test_link(machine, giver, taker), nullptr) << weir_last_error_message();

  EXPECT_EQ(weir_link_create_sockets(nullptr), weir_error_invalid_argument);
  EXPECT_EQ(weir_link_open(machine, -1, 10, &giver), weir_error_invalid_argument);
  EXPECT_EQ(weir_runtime_close(machine), weir_ok);
}

TEST(called_from_c, two_processes) {
  int32_t sockets[2] = {-1, -1};
  ASSERT_EQ(weir_link_create_sockets(sockets), weir_ok) << weir_last_error_message();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(sockets[0]);
    const char* const failed = weir_test_other_process(sockets[1]);
    if (failed != nullptr) std::fprintf(stderr, "%s: %s\n", failed, weir_last_error_message());
    ::_exit(failed == nullptr ? 0 : 1);
  }
  ::close(sockets[1]);
  EXPECT_STREQ(weir_test_this_process(sockets[0]), nullptr) << weir_last_error_message();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(c_errors, are_the_errors_of_cpp) {
#define WEIR_ERRC(code, value, text)                                            \
  EXPECT_EQ(weir_error_##code, static_cast<weir_error>(errc::code));            \
  EXPECT_EQ(weir_error_name(weir_error_##code), std::string{name(errc::code)}); \
  EXPECT_EQ(weir_error_meaning(weir_error_##code), std::string{meaning(errc::code)});
#include "weir/base/errc.def"
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
              return error{{.code = errc::device_lost, .native = 719, .call = "cuEventQuery"}};
            }),
            weir_error_device_lost);
  EXPECT_EQ(weir_last_error_native(), 719);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("(cuEventQuery = 719)"));

  EXPECT_EQ(capi::guarded([]() -> result<void> { raise({{.code = errc::bad_stream}}); }),
            weir_error_bad_stream);
  EXPECT_EQ(capi::guarded([]() -> result<void> { raise({{.code = errc::out_of_memory}}); }),
            weir_error_out_of_memory);
  EXPECT_EQ(capi::guarded([]() -> result<void> { throw std::bad_alloc{}; }),
            weir_error_no_host_memory);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("the host is out of memory"));
  EXPECT_EQ(capi::guarded([]() -> result<void> { throw std::logic_error{"x"}; }),
            weir_error_internal);
  EXPECT_EQ(capi::guarded([]() -> result<void> { throw 42; }), weir_error_internal);
  EXPECT_EQ(weir_last_error_native(), 0);  // not that of the failure before
}

TEST(c_runtimes, take_from_the_environment_what_the_list_does_not_name) {
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
  EXPECT_EQ(devices_of(weir_runtime_open, "runtime=sim"), 3);
  EXPECT_EQ(devices_of(weir_runtime_open, "sim_devices=2"), 2);
  EXPECT_EQ(devices_of(weir_runtime_open_from_environment, nullptr), 3);
  EXPECT_EQ(devices_of(weir_runtime_open_from_environment, "sim_devices=2"), 2);

  ASSERT_EQ(setenv("WEIR_HEAP_LIMIT", "77MiB", 1), 0);
  const auto limit_of = [](auto create, const char* list) {
    weir_runtime* runtime = nullptr;
    weir_allocator* memory = nullptr;
    std::uint64_t most = 0;
    EXPECT_EQ(weir_runtime_open("runtime=sim", &runtime), weir_ok);
    EXPECT_EQ(create(runtime, 0, list, &memory), weir_ok) << weir_last_error_message();
    EXPECT_EQ(weir_allocator_get_limit(memory, &most), weir_ok);
    EXPECT_EQ(weir_allocator_close(memory), weir_ok);
    EXPECT_EQ(weir_runtime_close(runtime), weir_ok);
    return most;
  };
  EXPECT_EQ(limit_of(weir_allocator_create, nullptr), 77u << 20);
  EXPECT_EQ(limit_of(weir_allocator_create, "heap_limit=5MiB"), 5u << 20);
  EXPECT_EQ(limit_of(weir_allocator_create_from_environment, nullptr), 77u << 20);
  EXPECT_EQ(limit_of(weir_allocator_create_from_environment, "heap_limit=5MiB"), 5u << 20);
  unsetenv("WEIR_HEAP_LIMIT");

  ASSERT_EQ(setenv("WEIR_SIM_DEVICES", "three", 1), 0);
  weir_runtime* none = nullptr;
  EXPECT_EQ(weir_runtime_open_from_environment(nullptr, &none), weir_error_bad_option);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("WEIR_SIM_DEVICES"));
  EXPECT_EQ(devices_of(weir_runtime_open, nullptr), 1);  // as if it were not set
  unsetenv("WEIR_RUNTIME");
  unsetenv("WEIR_SIM_DEVICES");
}

TEST(c_runtimes, of_the_past_are_never_taken_for_one_of_today) {
  weir_runtime* first = nullptr;
  weir_runtime* second = nullptr;
  ASSERT_EQ(weir_runtime_open("runtime=sim", &first), weir_ok);
  ASSERT_EQ(weir_runtime_close(first), weir_ok);
  ASSERT_EQ(weir_runtime_open("runtime=sim", &second), weir_ok);
  EXPECT_NE(first, second);
  EXPECT_EQ(weir_runtime_close(first), weir_error_closed);
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

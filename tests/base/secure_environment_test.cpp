// SPDX-License-Identifier: Apache-2.0
// Environment variables in programs that run with other rights than their caller.
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "support/scratch.hpp"
#include "weir/base/options.hpp"

namespace weir { namespace {

constexpr int not_secure = 77;

/// Runs in a set-uid copy of this program, which the test below starts.
TEST(secure_environment, DISABLED_child) {
  if (::getauxval(AT_SECURE) == 0) std::_Exit(not_secure);
  ASSERT_NE(nullptr, std::getenv("WEIR_DRIVER"));
  const auto settings = options_from_environment();
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(to_string(options{}), to_string(*settings));
  // Without the search for leaks at the end of a sanitizer's build: ptrace() refuses such programs.
  std::_Exit(HasFailure() ? 1 : 0);
}

int run_child(const std::string& program) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("WEIR_DRIVER", "/tmp/of_the_caller.so", 1);
    ::setenv("WEIR_RECORD", "/tmp/of_the_caller", 1);
    ::setenv("WEIR_HEAP_POLICY", "not a policy", 1);
    ::execl(program.c_str(), program.c_str(), "--gtest_also_run_disabled_tests",
            "--gtest_filter=secure_environment.DISABLED_child", nullptr);
    ::_exit(126);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(secure_environment, of_a_set_uid_program_is_ignored) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a program to another user";
  const testing_support::scratch_folder scratch;
  const std::string program = scratch.path("program");
  std::filesystem::copy_file("/proc/self/exe", program);
  ASSERT_EQ(0, ::chmod(scratch.path(".").c_str(), 0755));
  ASSERT_EQ(0, ::chown(program.c_str(), 65534, 65534));
  ASSERT_EQ(0, ::chmod(program.c_str(), 04755));
  const int status = run_child(program);
  if (status == not_secure) GTEST_SKIP() << "the folder for temporary files is mounted nosuid";
  EXPECT_EQ(0, status);
}

}  // namespace
}  // namespace weir

// SPDX-License-Identifier: Apache-2.0
// Processes, and when they began.
#include "base/process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

namespace weir { namespace {

TEST(processes, are_known_by_number_and_start) {
  const auto self = detail::own_process();
  EXPECT_EQ(self.number, ::getpid());
  EXPECT_TRUE(detail::is_running(self));
  EXPECT_FALSE(detail::is_running({self.number, self.start + 1}));
  EXPECT_FALSE(detail::is_running({self.number, 0}));
  EXPECT_FALSE(detail::is_running({1 << 30, 0})) << "no process is none that is there";
  EXPECT_EQ(detail::start_of_process(0), 0u);
  EXPECT_EQ(detail::start_of_process(-1), 0u);
  EXPECT_EQ(detail::start_of_process(1 << 30), 0u);
  EXPECT_EQ(detail::name_of_process(1 << 30), "");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(detail::start_of_process(child), 0u) << "it has ended, though nobody asked how";
  ::waitpid(child, nullptr, 0);
}

TEST(processes, began_at_the_same_time_in_every_time_namespace) {
  const pid_t parent = ::getpid();
  const std::uint64_t start = detail::start_of_process(parent);
  const pid_t outside = ::fork();
  if (outside == 0) {
    // Children of this process are in a time namespace whose clocks are an hour ahead.
    constexpr int not_possible = 77;
    if (::unshare(CLONE_NEWTIME) != 0) ::_exit(not_possible);
    const int offsets = ::open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    if (::write(offsets, "boottime 3600 0", 15) != 15) ::_exit(not_possible);
    const pid_t inside = ::fork();
    if (inside == 0) {
      const std::string program = "/proc/self/exe";
      ::setenv("WEIR_TEST_PROCESS", std::to_string(parent).c_str(), 1);
      ::setenv("WEIR_TEST_START", std::to_string(start).c_str(), 1);
      ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
      ::execl(program.c_str(), program.c_str(), "--gtest_also_run_disabled_tests",
              "--gtest_filter=processes.DISABLED_in_a_time_namespace", nullptr);
      ::_exit(126);
    }
    int status = -1;
    ::waitpid(inside, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(outside, &status, 0), outside);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no time namespaces for this user";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

/// Runs in the namespace that the test above makes.
TEST(processes, DISABLED_in_a_time_namespace) {
  const int parent = std::atoi(std::getenv("WEIR_TEST_PROCESS"));
  EXPECT_EQ(std::to_string(detail::start_of_process(parent)), std::getenv("WEIR_TEST_START"));
  timespec now{};
  ASSERT_EQ(::clock_gettime(CLOCK_REALTIME, &now), 0);
  EXPECT_FALSE(detail::began_after(parent, now));
  now.tv_sec -= 3600;
  EXPECT_TRUE(detail::began_after(::getpid(), now));
}

TEST(processes, begin_after_what_was_before_them) {
  timespec now{};
  ASSERT_EQ(::clock_gettime(CLOCK_REALTIME, &now), 0);
  // This one began a moment ago, at most a few minutes.
  timespec before = now;
  before.tv_sec -= 3600;
  EXPECT_TRUE(detail::began_after(::getpid(), before));
  EXPECT_FALSE(detail::began_after(::getpid(), now));
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  timespec long_before = now;
  long_before.tv_sec -= 3;
  EXPECT_TRUE(detail::began_after(child, long_before));
  EXPECT_FALSE(detail::began_after(child, now)) << "clocks may differ by a second";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(detail::began_after(child, before)) << "it is gone";
  EXPECT_FALSE(detail::began_after(1 << 30, before)) << "there was none";
  EXPECT_FALSE(detail::began_after(1 << 30, timespec{-5, 0})) << "whatever it is compared with";
}

}  // namespace
}  // namespace weir

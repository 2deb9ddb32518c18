// Processes, and when they began.
#include "base/process.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace weir {
namespace {

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

// SPDX-License-Identifier: Apache-2.0
// The end of a process, in any order: exit status 0, and not a word.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

// NOLINTNEXTLINE(readability-redundant-declaration): POSIX names it, not every header does
extern char** environ;

namespace weir::testing_support { namespace {

struct ending {
  int status = -1;  // 128 + n after signal n
  std::string said;
};

ending run_child(const std::string& scenario) {
  ending seen;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return seen;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::string program = WEIR_EXIT_CHILD;
  std::string argument = scenario;
  std::array<char*, 3> arguments{program.data(), argument.data(), nullptr};
  pid_t child = -1;
  const int failed =
      ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::array<char, 4096> some{};
  for (ssize_t size = 0; (size = ::read(ends[0], some.data(), some.size())) > 0;)
    seen.said.append(some.data(), static_cast<std::size_t>(size));
  ::close(ends[0]);
  int status = 0;
  if (failed != 0 || ::waitpid(child, &status, 0) != child) return seen;
  seen.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return seen;
}

class exit_test : public ::testing::TestWithParam<const char*> {};

TEST_P(exit_test, is_clean_and_silent) {
  // What threads do at the end is a matter of luck.
  for (int i = 0; i < 5; ++i) {
    const ending seen = run_child(GetParam());
    ASSERT_EQ(seen.status, 0) << seen.said;
    ASSERT_EQ(seen.said, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, exit_test,
                         ::testing::Values("static_allocator", "allocator_last", "never_destroyed",
                                           "detached_thread", "sleeping_thread",
                                           "machine_shut_down", "exit_in_thread", "fork_then_exit",
                                           "fork_beside_threads", "thread_local_handle",
                                           "allocates_at_exit", "quick_exit"),
                         [](const auto& chosen) { return std::string{chosen.param}; });

TEST(exit_child, says_when_it_is_not_asked_for_an_end) {
  const ending seen = run_child("no such end");
  EXPECT_EQ(seen.status, 64);
  EXPECT_NE(seen.said, "");
}

}  // namespace
}  // namespace weir::testing_support

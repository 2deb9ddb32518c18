// SPDX-License-Identifier: Apache-2.0
// What the subcommands share: a trace's name, its warnings, and the line that shows progress.
#include "traces.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

namespace weir::command { namespace {

/// The error output is something else as long as this lives: a terminal, or a pipe.
class other_stderr {
 public:
  enum class kind { terminal, pipe };

  explicit other_stderr(kind wanted) {
    int ends[2] = {-1, -1};
    if (wanted == kind::terminal) {
      ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
      EXPECT_EQ(::grantpt(ends[0]) + ::unlockpt(ends[0]), 0);
      ends[1] = ::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    } else {
      EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    }
    ours_ = ends[0];
    before_ = ::dup(STDERR_FILENO);
    EXPECT_EQ(::dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    ::close(ends[1]);
  }
  ~other_stderr() {
    if (before_ >= 0) end();
    ::close(ours_);
  }
  other_stderr(const other_stderr&) = delete;
  other_stderr& operator=(const other_stderr&) = delete;

  /// What was written since the last call, or nothing; does not wait.
  [[nodiscard]] std::string read() const {
    std::string text;
    pollfd ready{ours_, POLLIN, 0};
    while (::poll(&ready, 1, 0) == 1 && (ready.revents & POLLIN) != 0) {
      char part[4096];
      const ssize_t size = ::read(ours_, part, sizeof part);
      if (size <= 0) break;
      text.append(part, static_cast<std::size_t>(size));
    }
    return text;
  }

  void end() {
    std::fflush(stderr);
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    before_ = -1;
  }

 private:
  int ours_ = -1;
  int before_ = -1;
};

/// Adds nothing, again and again, until the line is printed once more.
std::string next_print(progress_line& line, const other_stderr& terminal) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  std::string text;
  // It comes whole, though maybe in parts.
  while (!text.ends_with('%') && std::chrono::steady_clock::now() < end) {
    line.add(0);
    text += terminal.read();
  }
  return text;
}

std::string bar(std::size_t filled, std::string_view percent) {
  return "\rplaying [" + std::string(filled, '#') + std::string(40 - filled, ' ') + "] " +
         std::string{percent} + " %";
}

TEST(progress_line, shows_on_a_terminal_how_far_it_is_and_disappears) {
  other_stderr terminal{other_stderr::kind::terminal};
  const auto begin = std::chrono::steady_clock::now();
  {
    progress_line line{"playing", 1000};
    line.add(200);
    line.add(50);
    EXPECT_EQ(next_print(line, terminal), bar(10, " 25"));
    line.add(500);
    EXPECT_EQ(next_print(line, terminal), bar(30, " 75"));
    line.add(400);  // more than there is
    EXPECT_EQ(next_print(line, terminal), bar(40, "100"));
    // Three times, and not more often than ten times a second.
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{300});
  }
  std::string rest;
  while (rest.size() < 4) rest += terminal.read();
  EXPECT_EQ(rest, "\r\033[K");
}

TEST(progress_line, is_told_by_its_parts_how_far_they_are) {
  other_stderr terminal{other_stderr::kind::terminal};
  progress_line line{"playing", 1000};
  const auto first = line.part();
  const auto second = line.part();
  first(100);
  second(50);
  first(300);
  second(200);
  EXPECT_EQ(next_print(line, terminal), bar(20, " 50"));
}

TEST(progress_line, shows_its_end_however_soon_it_comes) {
  other_stderr terminal{other_stderr::kind::terminal};
  progress_line line{"playing", 1000};
  line.add(999);
  line.add(1);
  std::string text;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (!text.ends_with("] 100 %") && std::chrono::steady_clock::now() < end)
    text += terminal.read();
  EXPECT_TRUE(text.ends_with(bar(40, "100"))) << text;
}

TEST(progress_line, of_nothing_is_complete) {
  other_stderr terminal{other_stderr::kind::terminal};
  progress_line line{"playing", 0};
  EXPECT_EQ(next_print(line, terminal), bar(40, "100"));
}

TEST(progress_line, is_not_shown_elsewhere) {
  other_stderr pipe{other_stderr::kind::pipe};
  {
    progress_line line{"playing", 10};
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds{120};
    while (std::chrono::steady_clock::now() < end) line.add(1);
  }
  EXPECT_EQ(pipe.read(), "");
}

TEST(stage_line, shows_on_a_terminal_what_takes_long_and_disappears) {
  other_stderr terminal{other_stderr::kind::terminal};
  const auto read_until = [&](std::string_view ending) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{5};
    std::string text;
    while (!text.ends_with(ending) && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
      text += terminal.read();
    }
    return text;
  };
  std::optional<stage_line> line{"reading"};
  const std::string shown = read_until(" s\033[K");
  EXPECT_TRUE(shown.starts_with("\rreading, ")) << shown;
  EXPECT_TRUE(shown.ends_with(" s\033[K")) << shown;
  line.reset();
  EXPECT_TRUE(read_until("\r\033[K").ends_with("\r\033[K"));
}

TEST(trace_name, has_no_folder_and_no_extension) {
  EXPECT_EQ(trace_name("a/b.c/moe_train.trace.gz"), "moe_train");
  EXPECT_EQ(trace_name("moe.gz.trace"), "moe");
  EXPECT_EQ(trace_name("x.snapshot.pickle.zst"), "x");
  EXPECT_EQ(trace_name("/x.weirtrace"), "x");
  EXPECT_EQ(trace_name("x.trace.csv.log.pkl"), "x");
  EXPECT_EQ(trace_name(".gz"), ".gz");
  EXPECT_EQ(trace_name("y.html"), "y.html");
  EXPECT_EQ(trace_name("folder/"), "");
}

/// What it prints about `recording`, and whether it warns.
std::pair<bool, std::string> warning(const recording& recording) {
  other_stderr pipe{other_stderr::kind::pipe};
  const bool warned = warn_if_damaged("plan", "a/file", recording);
  pipe.end();
  return {warned, pipe.read()};
}

TEST(warn_if_damaged, says_what_is_missing) {
  recording whole;
  whole.events.resize(3);
  EXPECT_EQ(warning(whole), std::pair(false, std::string{}));
  recording torn = whole;
  torn.damage = trace_damage{77, "it ends here"};
  const std::string damaged =
      "weir plan: a/file: damaged at byte 77: it ends here; read 3 events before it\n";
  EXPECT_EQ(warning(torn), std::pair(true, damaged));
  recording late = whole;
  late.dropped = 1;
  EXPECT_EQ(warning(late),
            std::pair(true, std::string{"weir plan: a/file: the recorder dropped 1 event; figures "
                                        "are too low\n"}));
  torn.dropped = 5;
  EXPECT_EQ(
      warning(torn),
      std::pair(
          true,
          damaged + "weir plan: a/file: the recorder dropped 5 events; figures are too low\n"));
}

TEST(print_error, prefers_the_detail) {
  other_stderr pipe{other_stderr::kind::pipe};
  print_error("plan", error{{.code = errc::bad_option, .detail = "this is wrong"}});
  print_error("diff", error{{.code = errc::no_device}});
  pipe.end();
  EXPECT_EQ(pipe.read(), "weir plan: this is wrong\nweir diff: " +
                             error{{.code = errc::no_device}}.message() + "\n");
}

}  // namespace
}  // namespace weir::command

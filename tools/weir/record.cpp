// SPDX-License-Identifier: Apache-2.0
// weir record: runs a program so that weir in it records what it does.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "printable.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"

namespace weir::command {

namespace {

constexpr std::string_view record_subcommand = "record";
constexpr int nothing_recorded = 3;

constexpr const char* record_explanation =
    "Examples:\n"
    "  weir record -o run.weirtrace -- ./program --its-option\n"
    "  weir record --stacks -- python train.py\n"
    "\n"
    "Records every allocator of weir in the program, also in weir's plug-ins for frameworks: the\n"
    "first one to FILE, further ones beside it. While the program runs, weir top shows its\n"
    "memory, unless WEIR_LIVE=off. For programs that do not use weir: weir run --record.\n"
    "\n"
    "Exit codes:\n"
    "  1         the program ended with 0, but the recording is incomplete\n"
    "  3         the program ended with 0, but nothing was recorded\n"
    "  64        the command line is invalid, or FILE exists or cannot be created\n"
    "  126, 127  the program could not be started, or was not found\n"
    "  others    the program's own; 128 plus the number of the signal that ended it";

struct record_arguments {
  std::string output;
  bool stacks = false;
  std::vector<std::string> command;
};

struct program_end {
  int exit_code = 0;  // as a shell has it
  bool was_started = true;
};

std::atomic<pid_t> running_program{0};
static_assert(std::atomic<pid_t>::is_always_lock_free);

/// While it lives the signals of the terminal are the program's alone, as it gets them itself, and
/// SIGTERM, which reaches the command alone, is handed on to it.
class signals_of_program {
 public:
  signals_of_program() {
    sigset_t handed_on;
    sigemptyset(&handed_on);
    sigaddset(&handed_on, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &handed_on, &mask_);
    struct sigaction ignored {};
    ignored.sa_handler = SIG_IGN;
    ::sigaction(SIGINT, &ignored, &interrupt_);
    ::sigaction(SIGQUIT, &ignored, &quit_);
    ::sigaction(SIGTERM, nullptr, &terminate_);
  }
  ~signals_of_program() { restore(); }
  signals_of_program(const signals_of_program&) = delete;
  signals_of_program& operator=(const signals_of_program&) = delete;

  void hand_on_to(pid_t program) {
    running_program = program;
    struct sigaction handed_on {};
    handed_on.sa_handler = [](int signal) {
      const int before = errno;
      ::kill(running_program, signal);
      errno = before;
    };
    handed_on.sa_flags = SA_RESTART;
    if (terminate_.sa_handler != SIG_IGN) ::sigaction(SIGTERM, &handed_on, nullptr);
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }
  void restore() {
    ::sigaction(SIGINT, &interrupt_, nullptr);
    ::sigaction(SIGQUIT, &quit_, nullptr);
    ::sigaction(SIGTERM, &terminate_, nullptr);
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
  }

 private:
  struct sigaction interrupt_ {};
  struct sigaction quit_ {};
  struct sigaction terminate_ {};
  sigset_t mask_{};
};

/// Runs it and waits.
program_end run_program(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& each : command) words.push_back(const_cast<char*>(each.c_str()));
  words.push_back(nullptr);
  signals_of_program signals;
  // Starting the program closes it; a byte says that it could not be started.
  std::array<int, 2> refusal{-1, -1};
  const bool is_told = ::pipe2(refusal.data(), O_CLOEXEC) == 0;
  const pid_t child = ::fork();
  if (child == 0) {
    signals.restore();
    ::signal(SIGPIPE, SIG_DFL);  // the command's own choice, not the program's
    ::signal(SIGXFSZ, inherited_sigxfsz);
    ::execvp(words.front(), words.data());
    const int code = errno == ENOENT ? 127 : 126;
    const std::string text =
        fmt::format("weir record: {}: {}\n", printable(command.front()), std::strerror(errno));
    [[maybe_unused]] auto written = ::write(STDERR_FILENO, text.data(), text.size());
    if (is_told) written = ::write(refusal[1], "x", 1);
    ::_exit(code);
  }
  if (child > 0) signals.hand_on_to(child);
  bool was_started = child > 0;
  if (is_told) {
    char byte = 0;
    ::close(refusal[1]);
    ssize_t count = 0;
    while ((count = ::read(refusal[0], &byte, 1)) < 0 && errno == EINTR) {
    }
    was_started = was_started && count == 0;
    ::close(refusal[0]);
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (child < 0) {
    print_error(record_subcommand,
                fmt::format("the program could not be started: {}", std::strerror(errno)));
    return {126, false};
  }
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), was_started};
}

/// Reads a name from its front.
class name_reader {
 public:
  explicit name_reader(std::string_view name) : rest_{name} {}

  [[nodiscard]] bool skip(std::string_view text) {
    const bool is_there = rest_.starts_with(text);
    if (is_there) rest_.remove_prefix(text.size());
    return is_there;
  }
  [[nodiscard]] bool skip_digits() {
    const auto length = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    rest_.remove_prefix(length);
    return length != 0;
  }
  [[nodiscard]] bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

/// Whether a trace of a program that records to `output` has this name: it, further ones with a
/// number before the ending, and of each what a crash left behind. %p is the program's process.
bool is_trace_of(const std::filesystem::path& output, const std::string& name, bool has_number) {
  const std::string stem = output.stem().string();
  const auto placeholder = stem.find("%p");
  name_reader reader{name};
  if (!reader.skip(stem.substr(0, placeholder))) return false;
  if (placeholder != stem.npos &&
      !(reader.skip_digits() && reader.skip(stem.substr(placeholder + 2))))
    return false;
  if (has_number && !(reader.skip(".") && reader.skip_digits())) return false;
  if (!reader.skip(output.extension().string())) return false;
  if (reader.is_at_end()) return true;
  if (!(reader.skip(".") && reader.skip_digits() && reader.skip("."))) return false;
  if (reader.skip_digits() && !reader.skip(".")) return false;
  return reader.skip("part") && reader.is_at_end();
}

/// The trace and what stands beside it: a process's further allocators, a crash's remains.
std::vector<std::filesystem::path> recorded_at(const std::filesystem::path& output) {
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& each : std::filesystem::directory_iterator{output.parent_path(), ignored}) {
    const std::string name = each.path().filename().string();
    const bool is_trace = is_trace_of(output, name, false) || is_trace_of(output, name, true);
    if (is_trace && each.is_regular_file(ignored)) files.push_back(each.path());
  }
  return files;
}

int run_record(const record_arguments& args) {
  std::string name = args.output;
  if (name.empty()) {
    const auto program = std::filesystem::path{args.command.front()}.filename().string();
    name = fmt::format("{}-{}.weirtrace", program, ::getpid());
  }
  const auto found = new_trace(record_subcommand, name);
  if (!found) return bad_usage;
  const std::filesystem::path& output = *found;
  const auto before = recorded_at(output);
  ::setenv("WEIR_RECORD", output.c_str(), 1);
  ::setenv("WEIR_LIVE", "on", 0);  // for weir top, meanwhile
  if (args.stacks) ::setenv("WEIR_RECORD_STACKS", "on", 1);
  ::setenv("WEIR_PRINT_ERRORS", "on", 0);  // so that a recording that fails says why
  const auto [exit_code, was_started] = run_program(args.command);
  if (!was_started) return exit_code;
  bool any = false;
  bool is_whole = true;
  for (const auto& each : recorded_at(output)) {
    if (std::find(before.begin(), before.end(), each) != before.end()) continue;
    any = true;
    std::error_code code;
    const std::uint64_t size = std::filesystem::file_size(each, code);
    const bool is_part = each.extension() == ".part";
    is_whole = is_whole && !is_part;
    print_error(record_subcommand,
                fmt::format("{} ({}){}", each.string(), to_string(bytes{code ? 0 : size}),
                            is_part ? ": incomplete; it ends where the recording stopped" : ""));
  }
  if (any) return exit_code == 0 && !is_whole ? incomplete : exit_code;
  print_error(record_subcommand,
              "nothing was recorded: the program created no allocator of weir; a program that does "
              "not use weir is recorded with weir run --record FILE -- PROGRAM");
  return exit_code == 0 ? nothing_recorded : exit_code;
}

}  // namespace

void add_record(CLI::App& application, int& exit_code) {
  auto* const record = application.add_subcommand(
      "record", "Run a program that uses weir and record its memory events");
  const auto args = std::make_shared<record_arguments>();
  record
      ->add_option("-o,--output", args->output,
                   "The trace to write (default: PROGRAM-PID.weirtrace)")
      ->type_name("FILE");
  record->add_flag("--stacks", args->stacks, "Record the call stack of each allocation and free");
  record->add_option("command", args->command, "The program and its arguments, after --")
      ->type_name("COMMAND")
      ->required();
  record->footer(record_explanation);
  record->callback([args, &exit_code] { exit_code = run_record(*args); });
}

}  // namespace weir::command

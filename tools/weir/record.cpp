// weir record: runs a program so that weir in it records what it does.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
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
    "Every allocator of weir in the program, its plug-ins for frameworks among them, is\n"
    "recorded: the first to FILE, further ones beside it. While it runs, weir top PID shows\n"
    "what it holds, unless WEIR_LIVE=off.\n"
    "\n"
    "Exit codes:\n"
    "  3         the program ended well, but nothing was recorded\n"
    "  64        the command line could not be understood, or FILE is there already\n"
    "  126, 127  the program could not be started, or not be found\n"
    "  others    the program's own; 128 and the signal's number if one ended it";

struct record_arguments {
  std::string output;
  std::vector<std::string> command;
};

struct program_end {
  int exit_code = 0;  // as a shell has it
  bool was_started = true;
};

/// Runs it and waits.
program_end run_program(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& each : command) words.push_back(const_cast<char*>(each.c_str()));
  words.push_back(nullptr);
  // The terminal's signals are meant for the program; we stay to list what it left behind.
  struct sigaction ignore {};
  struct sigaction interrupt {};
  struct sigaction quit {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGINT, &ignore, &interrupt);
  ::sigaction(SIGQUIT, &ignore, &quit);
  // Starting the program closes it; a byte says that it could not be started.
  std::array<int, 2> refusal{-1, -1};
  const bool is_told = ::pipe2(refusal.data(), O_CLOEXEC) == 0;
  const pid_t child = ::fork();
  if (child == 0) {
    ::sigaction(SIGINT, &interrupt, nullptr);
    ::sigaction(SIGQUIT, &quit, nullptr);
    ::signal(SIGPIPE, SIG_DFL);  // the command's own choice, not the program's
    ::execvp(words.front(), words.data());
    const int code = errno == ENOENT ? 127 : 126;
    const std::string text =
        fmt::format("weir record: {}: {}\n", printable(command.front()), std::strerror(errno));
    [[maybe_unused]] auto written = ::write(STDERR_FILENO, text.data(), text.size());
    if (is_told) written = ::write(refusal[1], "x", 1);
    ::_exit(code);
  }
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
  ::sigaction(SIGINT, &interrupt, nullptr);
  ::sigaction(SIGQUIT, &quit, nullptr);
  if (child < 0) {
    print_error(record_subcommand,
                fmt::format("the program could not be started: {}", std::strerror(errno)));
    return {126, false};
  }
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), was_started};
}

/// The trace and what stands beside it: a process's further allocators, a crash's remains.
std::vector<std::filesystem::path> recorded_at(const std::filesystem::path& output) {
  std::vector<std::filesystem::path> files;
  const auto folder = output.has_parent_path() ? output.parent_path() : ".";
  const std::string stem = output.stem().string();
  std::error_code ignored;
  for (const auto& each : std::filesystem::directory_iterator{folder, ignored}) {
    const std::string name = each.path().filename().string();
    const bool is_trace_file = name == output.filename() || name.starts_with(stem + ".");
    if (is_trace_file && each.is_regular_file(ignored)) files.push_back(each.path());
  }
  return files;
}

int run_record(const record_arguments& args) {
  std::filesystem::path output = args.output;
  if (output.empty()) {
    const auto program = std::filesystem::path{args.command.front()}.filename().string();
    output = fmt::format("{}-{}.weirtrace", program, ::getpid());
  }
  // Absolute: the program may change its folder.
  std::error_code code;
  output = std::filesystem::absolute(output, code);
  const bool is_there = !code && std::filesystem::exists(output, code);
  if (code || is_there) {
    print_error(record_subcommand,
                fmt::format("{}: {}", output.string(),
                            code ? code.message() : "is there already, and is left alone"));
    return bad_usage;
  }
  const auto before = recorded_at(output);
  ::setenv("WEIR_RECORD", output.c_str(), 1);
  ::setenv("WEIR_LIVE", "on", 0);  // for weir top, meanwhile
  const auto [exit_code, was_started] = run_program(args.command);
  if (!was_started) return exit_code;
  bool any = false;
  for (const auto& each : recorded_at(output)) {
    if (std::find(before.begin(), before.end(), each) != before.end()) continue;
    any = true;
    const std::uint64_t size = std::filesystem::file_size(each, code);
    print_error(record_subcommand,
                fmt::format("{} ({})", each.string(), to_string(bytes{code ? 0 : size})));
  }
  if (any) return exit_code;
  print_error(record_subcommand, "nothing was recorded: the program made no allocator of weir");
  return exit_code == 0 ? nothing_recorded : exit_code;
}

}  // namespace

void add_record(CLI::App& application, int& exit_code) {
  auto* const record = application.add_subcommand(
      "record", "Run a program that uses weir and record what happens to its memory");
  const auto args = std::make_shared<record_arguments>();
  record->add_option("-o,--output", args->output, "The trace (else PROGRAM-PID.weirtrace)")
      ->type_name("FILE");
  record->add_option("command", args->command, "The program and its arguments, after --")
      ->type_name("COMMAND")
      ->required();
  record->footer(record_explanation);
  record->callback([args, &exit_code] { exit_code = run_record(*args); });
}

}  // namespace weir::command

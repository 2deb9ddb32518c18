// SPDX-License-Identifier: Apache-2.0
// weir run: runs an unmodified program on weir's GPU memory.
//
// The command becomes the program: exit code and signals are the program's own, and nothing of the
// command is left to clean up after it.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "run_program.hpp"
#include "traces.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/options.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr std::string_view run_subcommand = "run";

constexpr const char* run_explanation =
    "Examples:\n"
    "  weir run -- ./program      device memory of the program comes from weir\n"
    "  weir run -- python job.py  weir is enabled when torch, cupy or numba is imported\n"
    "  weir run --limit 20GiB --record run.weirtrace -- ./program\n"
    "\n"
    "A preloaded library replaces the driver's memory functions. Calls that it does not replace\n"
    "are left to the driver and reported once. docs/run.md lists them.\n"
    "\n"
    "Exit codes:\n"
    "  64        the command line is invalid, or the trace exists or cannot be created\n"
    "  126, 127  the program could not be started, or was not found\n"
    "  others    the program's own, signals included";

struct run_arguments {
  std::string limit{};
  std::string policy{};
  std::string record{};
  std::vector<std::string> options{};
  std::vector<std::string> keep{};
  std::string free = "wait";
  std::string python = "auto";
  bool record_stacks = false;
  bool live = false;
  bool record_only = false;
  bool children = true;
  bool quiet = false;
  std::vector<std::string> command{};
};

/// Sets an option's environment variable; false, with the reason printed, if the value is invalid.
bool set_option(std::string_view name, const std::string& value) {
  weir::options ignored;
  if (const auto checked = weir::set(ignored, name, value); !checked) {
    print_error(run_subcommand, checked.error().detail());
    return false;
  }
  for (const option_info& each : describe_options())
    if (each.name == name) ::setenv(each.environment.c_str(), value.c_str(), 1);
  return true;
}

bool set_options(const run_arguments& args) {
  if (!args.limit.empty()) {
    if (const auto limit = size_argument("--limit", args.limit); !limit) {
      print_error(run_subcommand, limit.error());
      return false;
    }
    if (!set_option("heap_limit", args.limit)) return false;
  }
  if (!args.policy.empty() && !set_option("heap_policy", args.policy)) return false;
  if (args.live && !set_option("live", "on")) return false;
  if (args.record_stacks && !set_option("record_stacks", "on")) return false;
  for (const std::string& each : args.options) {
    const auto equals = each.find('=');
    if (equals == each.npos) {
      print_error(run_subcommand, fmt::format("--option: expected NAME=VALUE, got {}", each));
      return false;
    }
    if (!set_option(each.substr(0, equals), each.substr(equals + 1))) return false;
  }
  return true;
}

/// The variable with one more entry, at that end of the list.
void add_to_list(const char* variable, const std::string& entry, bool in_front) {
  const char* const before = std::getenv(variable);
  std::string list = entry;
  if (before != nullptr && *before != '\0')
    list = in_front ? entry + ":" + before : std::string{before} + ":" + entry;
  ::setenv(variable, list.c_str(), 1);
}

void prepare_python(const run_arguments& args, const preload_files& files,
                    const std::string& trace) {
  if (!trace.empty()) ::setenv("WEIR_RECORD", trace.c_str(), 1);
  add_to_list("PYTHONPATH", files.python.string(), true);
  ::setenv("WEIR_RUN_PYTHON", files.python.c_str(), 1);
  if (!args.children) ::setenv("WEIR_RUN_CHILDREN", "off", 1);
}

void prepare_preload(const run_arguments& args, const preload_files& files,
                     const std::string& trace) {
  const auto set_list = [](const char* name, const std::vector<std::string>& words) {
    if (!words.empty()) ::setenv(name, fmt::format("{}", fmt::join(words, ",")).c_str(), 1);
  };
  if (!trace.empty()) ::setenv("WEIR_RUN_RECORD", trace.c_str(), 1);
  if (args.record_only) ::setenv("WEIR_RUN_RECORD_ONLY", "on", 1);
  ::setenv("WEIR_RUN_FREE", args.free.c_str(), 1);
  set_list("WEIR_RUN_KEEP", args.keep);
  ::setenv("WEIR_RUN_PROCESS", std::to_string(::getpid()).c_str(), 1);
  if (!args.children) {
    const char* const before = std::getenv("LD_PRELOAD");
    ::setenv("WEIR_RUN_PRELOAD", before != nullptr ? before : "", 1);
    ::setenv("WEIR_RUN_CHILDREN", "off", 1);
  }
  // Behind what is preloaded already: sanitizers insist on being the first.
  add_to_list("LD_PRELOAD", files.library.string(), false);
}

int run_as_program(const run_arguments& args) {
  if (args.record_only && !(args.limit.empty() && args.policy.empty())) {
    print_error(run_subcommand,
                "--record-only serves no memory, so --limit and --policy cannot be used with it");
    return bad_usage;
  }
  if (args.record_only && args.record.empty()) {
    print_error(run_subcommand, "--record-only needs --record FILE");
    return bad_usage;
  }
  if (!set_options(args)) return bad_usage;
  std::string trace;
  if (!args.record.empty()) {
    const auto file = new_trace(run_subcommand, args.record);
    if (!file) return bad_usage;
    trace = file->string();
  }
  const auto files = find_preload_files();
  if (!files) {
    print_error(run_subcommand,
                "libweir_preload.so was not found beside the command; install weir again");
    return failed;
  }
  // The loader takes both for the end of a name.
  if (files->library.string().find_first_of(" :") != std::string::npos) {
    print_error(run_subcommand,
                fmt::format("{}: a library cannot be preloaded from a path with a space or a "
                            "colon; install weir elsewhere",
                            files->library.string()));
    return failed;
  }
  const program_file program = examine_program(args.command);
  const bool is_python = !args.record_only && args.python != "off" &&
                         (args.python == "on" || (program.is_python && !program.is_isolated));
  if (!args.quiet && is_python && program.is_isolated)
    print_error(run_subcommand,
                fmt::format("{} ignores PYTHONPATH (-E, -I or -S), so weir is not enabled in it; "
                            "leave --python on out to preload the library instead",
                            args.command.front()));
  if (args.quiet) ::setenv("WEIR_RUN_QUIET", "on", 1);
  if (is_python) {
    prepare_python(args, *files, trace);
  } else {
    prepare_preload(args, *files, trace);
  }
  if (!args.quiet && !is_python && !program.obstacle.empty())
    print_error(run_subcommand, fmt::format("{} {}", args.command.front(), program.obstacle));

  std::vector<char*> words;
  for (const std::string& each : args.command) words.push_back(const_cast<char*>(each.c_str()));
  words.push_back(nullptr);
  ::signal(SIGPIPE, inherited_sigpipe);
  ::signal(SIGXFSZ, inherited_sigxfsz);
  ::execvp(words.front(), words.data());
  const int reason = errno;
  print_error(run_subcommand, fmt::format("{}: {}", args.command.front(), std::strerror(reason)));
  return reason == ENOENT ? 127 : 126;
}

}  // namespace

void add_run(CLI::App& application, int& exit_code) {
  auto* const run_command =
      application.add_subcommand("run", "Run an unmodified program on weir's GPU memory");
  const auto args = std::make_shared<run_arguments>();
  run_command
      ->add_option("--limit", args->limit, "The most memory to take from each device, as in 20GiB")
      ->type_name("SIZE");
  run_command
      ->add_option("--policy", args->policy,
                   "The placement policy, such as balanced or compact (docs/tuning.md)")
      ->type_name("PLACEMENT");
  run_command->add_option("--record", args->record, "Record the program's memory events in FILE")
      ->type_name("FILE");
  run_command->add_flag("--record-stacks", args->record_stacks,
                        "Also record the call stack of each allocation and free");
  run_command->add_flag("--record-only", args->record_only,
                        "Serve nothing; only record what the program requests from the driver");
  run_command->add_flag("--live", args->live, "Publish the program's memory for weir top");
  run_command->add_option("--option", args->options, "Set an option of docs/options.md; repeatable")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  run_command
      ->add_option("--free", args->free,
                   "Whether cuMemFree waits for the device, as the driver's does: wait or async")
      ->type_name("HOW")
      ->check(one_of({"wait", "async"}))
      ->capture_default_str();
  run_command
      ->add_option("--keep", args->keep,
                   "Leave this call to the driver: cuMemAlloc or cuMemAllocAsync; repeatable")
      ->type_name("CALL")
      ->allow_extra_args(false)
      ->check(one_of({"cuMemAlloc", "cuMemAllocAsync"}));
  run_command->add_flag("--children,!--no-children", args->children,
                        "Also run child processes on weir, or not (default: --children)");
  run_command
      ->add_option("--python", args->python,
                   "Enable weir inside Python instead of preloading: auto (if COMMAND is Python), "
                   "on or off")
      ->type_name("WHEN")
      ->check(one_of({"auto", "on", "off"}))
      ->capture_default_str();
  run_command->add_flag("--quiet", args->quiet, "Do not report what is left to the driver");
  run_command->add_option("command", args->command, "The program and its arguments, after --")
      ->type_name("COMMAND")
      ->required();
  run_command->footer(run_explanation);
  run_command->callback([args, &exit_code] { exit_code = run_as_program(*args); });
}

}  // namespace weir::command

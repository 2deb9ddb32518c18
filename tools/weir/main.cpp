// SPDX-License-Identifier: Apache-2.0
// The command `weir`: chooses the subcommand and turns every outcome into an exit code.
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include "commands.hpp"
#include "output.hpp"
#include "printable.hpp"
#include "replay/check_environment.hpp"
#include "usage.hpp"
#include "weir/base/version.hpp"
#include "words.hpp"

namespace weir::command { namespace {

constexpr const char* application_explanation =
    "Examples:\n"
    "  weir run --limit 20GiB --record run.weirtrace -- ./program\n"
    "  weir replay run.weirtrace --policy all\n"
    "  weir report run.weirtrace -o run.html\n"
    "\n"
    "weir COMMAND --help explains a command. docs/tutorial.md takes ten minutes.";

int run(int argc, char** argv) {
  CLI::App application{"weir: record, replay and explain what programs do with GPU memory", "weir"};
  application.formatter(std::make_shared<help_formatter>());
  application.set_version_flag("--version", "weir " + std::string{version_text()});
  application.require_subcommand(1);
  application.footer(application_explanation);
  int exit_code = 0;
  add_doctor(application, exit_code);
  add_replay(application, exit_code);
  add_plan(application, exit_code);
  add_diff(application, exit_code);
  add_report(application, exit_code);
  add_export(application, exit_code);
  add_symbolize(application, exit_code);
  add_record(application, exit_code);
  add_run(application, exit_code);
  add_top(application, exit_code);
  add_budget(application, exit_code);
  add_help(application, exit_code);
  add_completion(application, exit_code);
  for (CLI::App* const each : application.get_subcommands({})) each->group("Commands");
  try {
    application.parse(argc, argv);
  } catch (const CLI::ParseError& outcome) {
    // Help and version arrive here too, as the error whose code is 0.
    if (outcome.get_exit_code() == 0) return application.exit(outcome);
    if (argc <= 1)
      std::cerr << application.help();
    else
      std::cerr << printable_lines(refusal_text(application, outcome, argc, argv));
    return bad_usage;
  }
  return exit_code;
}

/// Flushes the standard output; a full disk shows only here. Empty if everything was written.
std::string output_problem() {
  const bool is_flushed = std::fflush(stdout) == 0;
  if (is_flushed && std::ferror(stdout) == 0) return {};
  const std::string reason = is_flushed ? "" : std::string{": "} + std::strerror(errno);
  return "the output could not be written" + reason;
}

}}  // namespace weir::command

int main(int argc, char** argv) {
  using namespace weir::command;
  inherited_sigpipe = std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is seen below
  inherited_sigxfsz = std::signal(SIGXFSZ, SIG_IGN);
  int exit_code = 70;  // EX_SOFTWARE of sysexits.h
  std::string problem;
  try {
    weir::replay::check_environment();
    exit_code = run(argc, argv);
  } catch (const std::exception& unexpected) {
    if (is_output_closed()) return 0;
    problem = unexpected.what();
  }
  if (const std::string lost = output_problem(); !lost.empty()) {
    if (is_output_closed()) return 0;  // the reader has seen enough, as with `| head`
    exit_code = output_lost;
    problem = lost;
  }
  if (!problem.empty()) std::cerr << "weir: " << problem << '\n';
  return exit_code;
}

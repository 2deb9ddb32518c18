// SPDX-License-Identifier: Apache-2.0
// The command `weir`: chooses the subcommand and turns every outcome into an exit code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "commands.hpp"
#include "printable.hpp"
#include "weir/base/version.hpp"
#include "words.hpp"

namespace weir::command { namespace {

int run(int argc, char** argv) {
  CLI::App application{"weir: GPU memory, on a real machine and on a simulated one", "weir"};
  application.set_version_flag("--version", "weir " + std::string{version_text()});
  application.require_subcommand(1);
  int exit_code = 0;
  add_doctor(application, exit_code);
  add_replay(application, exit_code);
  add_plan(application, exit_code);
  add_diff(application, exit_code);
  add_report(application, exit_code);
  add_export(application, exit_code);
  add_record(application, exit_code);
  add_run(application, exit_code);
  add_top(application, exit_code);
  add_budget(application, exit_code);
  add_help(application, exit_code);
  add_completion(application, exit_code);
  try {
    application.parse(argc, argv);
  } catch (const CLI::ParseError& outcome) {
    // Help and version arrive here too, as the error whose code is 0.
    if (outcome.get_exit_code() != 0) {
      if (const std::string meant = correction(application, argc, argv); !meant.empty()) {
        std::cerr << "weir: " << printable(meant) << "\nRun with --help for more information.\n";
        return bad_usage;
      }
    }
    if (outcome.get_exit_code() == 0) return application.exit(outcome);
    std::ostringstream out;
    std::ostringstream refusal;
    application.exit(outcome, out, refusal);
    std::cerr << printable_lines(refusal.str());  // it quotes arguments
    return bad_usage;
  }
  return exit_code;
}

/// Much is written only now, so that a full disk shows here. Empty: all arrived.
std::string output_problem() {
  const bool is_flushed = std::fflush(stdout) == 0;
  if (is_flushed && std::ferror(stdout) == 0) return {};
  const std::string reason = is_flushed ? "" : std::string{": "} + std::strerror(errno);
  return "the output could not be written" + reason;
}

}  // namespace

}  // namespace weir::command

int main(int argc, char** argv) {
  using namespace weir::command;
  inherited_sigpipe = std::signal(SIGPIPE, SIG_IGN);  // a reader who left is an error like others
  inherited_sigxfsz = std::signal(SIGXFSZ, SIG_IGN);
  int exit_code = 70;  // EX_SOFTWARE of sysexits.h
  std::string problem;
  try {
    exit_code = run(argc, argv);
  } catch (const std::exception& unexpected) {
    problem = unexpected.what();
  }
  if (const std::string lost = output_problem(); !lost.empty()) {
    exit_code = output_lost;
    problem = lost;
  }
  if (!problem.empty()) std::cerr << "weir: " << problem << '\n';
  return exit_code;
}

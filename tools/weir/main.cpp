// The command `weir`: chooses the subcommand and turns every outcome into an exit code.
#include <exception>
#include <iostream>
#include <string>

#include "commands.hpp"
#include "weir/base/version.hpp"

int main(int argc, char** argv) {
  try {
    CLI::App application{"weir: GPU memory, on a real machine and on a simulated one", "weir"};
    application.set_version_flag("--version", "weir " + std::string{weir::version_text()});
    application.require_subcommand(1);
    int exit_code = 0;
    weir::command::add_doctor(application, exit_code);
    weir::command::add_replay(application, exit_code);
    weir::command::add_plan(application, exit_code);
    weir::command::add_diff(application, exit_code);
    weir::command::add_report(application, exit_code);
    weir::command::add_export(application, exit_code);
    weir::command::add_record(application, exit_code);
    weir::command::add_top(application, exit_code);
    weir::command::add_help(application, exit_code);
    try {
      application.parse(argc, argv);
    } catch (const CLI::ParseError& outcome) {
      // Help and version arrive here too, as the error whose code is 0.
      return application.exit(outcome) == 0 ? 0 : weir::command::bad_usage;
    }
    return exit_code;
  } catch (const std::exception& unexpected) {
    std::cerr << "weir: " << unexpected.what() << '\n';
    return 70;  // EX_SOFTWARE of sysexits.h
  }
}

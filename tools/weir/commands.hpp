// SPDX-License-Identifier: Apache-2.0
// The subcommands of `weir`: each adds itself to the application.
#pragma once

#include <CLI/CLI.hpp>
#include <csignal>
#include <vector>

namespace weir::command {

/// The exit code of a subcommand that did not understand its arguments (EX_USAGE of sysexits.h).
inline constexpr int bad_usage = 64;

/// The exit code of a subcommand that did its work, but not on all there was: a damaged trace, a
/// request that could not be met.
inline constexpr int incomplete = 1;
/// The exit code of a subcommand that could not do its work: no such file, no such device.
inline constexpr int failed = 2;

/// The exit code where what was printed did not arrive, as on a full disk (EX_IOERR of sysexits.h).
inline constexpr int output_lost = 74;

/// What SIGPIPE did before the command ignored it: programs that it starts get it back.
inline void (*inherited_sigpipe)(int) = SIG_DFL;
/// The same of files that grow beyond a limit (ulimit -f).
inline void (*inherited_sigxfsz)(int) = SIG_DFL;

// Each adds its subcommand; if that is chosen, its exit code goes to `exit_code`.

void add_doctor(CLI::App& application, int& exit_code);
void add_replay(CLI::App& application, int& exit_code);
void add_plan(CLI::App& application, int& exit_code);
void add_diff(CLI::App& application, int& exit_code);
void add_report(CLI::App& application, int& exit_code);
void add_export(CLI::App& application, int& exit_code);
void add_symbolize(CLI::App& application, int& exit_code);
void add_record(CLI::App& application, int& exit_code);
void add_run(CLI::App& application, int& exit_code);
void add_top(CLI::App& application, int& exit_code);
void add_budget(CLI::App& application, int& exit_code);
// About everything that was added before or is added later.
void add_help(CLI::App& application, int& exit_code);
void add_completion(CLI::App& application, int& exit_code);

/// All of them, as they were added.
std::vector<const CLI::App*> subcommands(const CLI::App& application);

}  // namespace weir::command

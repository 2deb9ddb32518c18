// The subcommands of `weir`: each adds itself to the application.
#pragma once

#include <CLI/CLI.hpp>

namespace weir::command {

/// What a subcommand that did not understand its arguments exits with (EX_USAGE of sysexits.h).
inline constexpr int bad_usage = 64;

/// Adds `weir doctor`; if it is chosen, its exit code goes to `exit_code`.
void add_doctor(CLI::App& application, int& exit_code);

}  // namespace weir::command

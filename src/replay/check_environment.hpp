// SPDX-License-Identifier: Apache-2.0
// Mistakes in the environment, for the command, some of whose subcommands open no runtime.
#pragma once

namespace weir { inline namespace v0 { namespace replay {

/// Writes mistakes in variables of weir to standard error, once in a process; opening a runtime
/// does the same.
void check_environment() noexcept;

}}}  // namespace weir::v0::replay

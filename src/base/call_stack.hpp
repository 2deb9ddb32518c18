// SPDX-License-Identifier: Apache-2.0
// Where code is: the calls that a thread is in, and the names of their addresses.
#pragma once

#include <string>
#include <vector>

namespace weir { inline namespace v0 { namespace detail {

/// Return addresses of the calling thread, innermost first, from `caller` outwards, or all of them
/// if that is not among them; 48 at most. The first walk of a process loads a library.
[[nodiscard]] std::vector<void*> call_stack(const void* caller);

/// "function+0x1c at library", or what is known of it.
[[nodiscard]] std::string describe_address(void* code);

/// The same for whoever reads it elsewhere, with the program or library at hand: "function+0x1c at
/// /path/library+0x4711 (build 0123ab)", where 0x4711 is the address in the file and the build what
/// the linker called it. As above where the file has no such name.
[[nodiscard]] std::string describe_frame(void* code);

/// A stack for a report: "function+0x1c at /path/program+0x4711 (build 0123456789ab)" for each
/// call, beginning with the innermost that is not weir's own. Also names functions that are not
/// exported. `weir symbolize` replaces such texts by function, file and line.
[[nodiscard]] std::vector<std::string> describe_calls(const std::vector<void*>& stack);

}}}  // namespace weir::v0::detail

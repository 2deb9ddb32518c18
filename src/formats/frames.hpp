// SPDX-License-Identifier: Apache-2.0
// Frames of recorded stacks: where their code is, and which of them a block is put down to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// A frame as the recorder writes it: "function+0x1c at /path/library+0x4711 (build 0123ab)".
struct coded_frame {
  std::string function{};     ///< "function+0x1c"; empty: it has no name that the program exports
  std::string file{};         ///< the program or library
  std::uint64_t address = 0;  ///< in the file, behind the call
  std::string build{};        ///< what the linker called that file
};

/// Nothing: the frame says where it is in words already.
[[nodiscard]] std::optional<coded_frame> parse_frame(std::string_view frame);

/// "function+0x1c at /path/library", or "/path/library+0x4711" without a name.
[[nodiscard]] std::string plain_text(const coded_frame& frame);

/// The frame that a stack's blocks are put down to: the innermost that is not of weir, of torch, of
/// a Python package or of a system's header, or the innermost of all. `stack` is its number plus
/// one. Empty: there is no such stack, or nothing in it.
[[nodiscard]] std::string_view site_frame(const recording& recording, std::uint32_t stack);

/// Replaces addresses in the recording's frames by function, file and line, read from the programs
/// and libraries that they name and from the debug files of these (by build, or by the link in the
/// file), where those are the very builds that were recorded. Calls that were inlined become frames
/// of their own. Where the debug information is missing, or this was built without libdw, a frame
/// says what is known: function and offset, or file and offset.
void name_frames(recording& recording);

/// Whether debug information can be read: this was built with libdw.
[[nodiscard]] bool reads_debug_information() noexcept;

}}}  // namespace weir::v0::formats

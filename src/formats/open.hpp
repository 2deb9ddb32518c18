// SPDX-License-Identifier: Apache-2.0
// Reading a recording from any file that weir understands, whatever it is called.
#pragma once

#include <string>
#include <string_view>

#include "formats/input.hpp"
#include "formats/torch_snapshot.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// Reads a .weirtrace, a CSV trace, a PyTorch snapshot or an RMM log, plain or compressed with gzip
/// or zstd, from the standard input for "-"; distinguished by their content, not by their names. A
/// trace that has a row in a peaks.csv beside it gets its recorded peaks from there. `choice` is
/// about snapshots; other files have one device.
///
/// not_found: no such file; invalid_argument: it is empty, none of these, or says what cannot be;
/// limit_exceeded: it is larger than `limits`; system: it cannot be read or its compression is
/// damaged. The detail begins with the path, and names the line or offset where there is one. A
/// damaged .weirtrace is no error: see recording::damage.
[[nodiscard]] result<recording> read_recording(const std::string& path,
                                               const input_limits& limits = {},
                                               const device_choice& choice = {});

/// The same of what was read already; `name` is for messages and the recording's title. It reads
/// no other file.
[[nodiscard]] result<recording> read_recording_from(std::string_view bytes, std::string_view name,
                                                    const input_limits& limits = {},
                                                    const device_choice& choice = {});

}}}  // namespace weir::v0::formats

// SPDX-License-Identifier: Apache-2.0
// CSV traces: one event a line, `op,id,bytes,stream,t_us`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/input.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// Whether the text looks like a CSV trace.
[[nodiscard]] bool is_csv_trace(std::string_view text) noexcept;

/// Operation a allocates, r frees, f says that other streams could have the memory, s that the
/// stream uses the block. f may be missing, also for some blocks only. An id is one block until it
/// is freed; ids are the recording's addresses, which are not real. Times are microseconds, with up
/// to three decimals; the recording begins with the first. Lines that begin
/// with # and a line with the columns' names are skipped. invalid_argument with `name` and line: no
/// event, or one that cannot be.
[[nodiscard]] result<recording> read_csv_trace(std::string_view text, std::string_view name,
                                               const input_limits& limits = {});

/// A CSV trace of what such a trace can say: blocks, streams, recorded streams and times. Ids are
/// the recording's own where its addresses only tell blocks apart, else blocks are numbered in the
/// order of their allocation. It is replayed as the recording is, but for pools, which a CSV trace
/// does not have.
[[nodiscard]] std::string csv_trace_of(const recording& recording);
/// The same into a file, which appears when it is whole.
[[nodiscard]] result<void> write_csv_trace(const recording& recording, const std::string& path);

/// The peaks that a peaks.csv names for that trace; none if it has no row of that name.
/// invalid_argument with `name` and line: it is no such file.
[[nodiscard]] result<std::vector<recorded_peak>> read_csv_peaks(std::string_view text,
                                                                std::string_view name,
                                                                std::string_view trace);

}}}  // namespace weir::v0::formats

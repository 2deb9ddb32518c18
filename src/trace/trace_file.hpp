// SPDX-License-Identifier: Apache-2.0
// Reading and writing traces with a given libzstd, or none.
#pragma once

#include <string>
#include <string_view>

#include "trace/zstd.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir { inline namespace v0 { namespace trace {

[[nodiscard]] result<recording> read_trace_with(std::string_view bytes, const trace_limits& limits,
                                                const zstd* library);
[[nodiscard]] result<void> write_trace_with(const recording& recording, const std::string& path,
                                            const trace_write_options& options,
                                            const zstd* library);

}}}  // namespace weir::v0::trace

// SPDX-License-Identifier: Apache-2.0
// Chrome's trace event format, for Perfetto and chrome://tracing.
#pragma once

#include <string>

#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

struct chrome_options {
  bool blocks = true;  ///< a slice a block, from its allocation to its free; else counters alone
};

/// Counters of live and reserved memory and of the live memory of each tag, at most one a
/// microsecond; a slice for each block; waits, moves, markers and failed requests as moments.
[[nodiscard]] std::string chrome_trace_of(const recording& recording,
                                          const chrome_options& options = {});
/// The same into a file, which appears when it is whole.
[[nodiscard]] result<void> write_chrome_trace(const recording& recording, const std::string& path,
                                              const chrome_options& options = {});

}}}  // namespace weir::v0::formats

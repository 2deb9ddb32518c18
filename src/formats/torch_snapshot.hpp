// PyTorch memory snapshots: what torch.cuda.memory._dump_snapshot writes, and what reads it.
#pragma once

#include <string>
#include <string_view>

#include "formats/input.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir::inline v0::formats {

/// Reads a snapshot; of several devices the one with most events.
///
/// What was live before the history begins, because it was switched on late or its ring was full,
/// is rebuilt from the frees and from the final segments: it is allocated at time 0, before a
/// marker that says so. Annotations and snapshots become markers, user metadata tags. The streams
/// that were recorded for a block are not in a snapshot; `reusable` says when they were done with
/// it. invalid_argument: no pickle, or not of a snapshot.
[[nodiscard]] result<recording> read_torch_snapshot(std::string_view bytes, std::string_view name,
                                                    const input_limits& limits = {});

/// A snapshot that torch's own viewers read: the recording as the history of device 0, and what is
/// reserved and live at its end as the segments. Where the recording does not say what was
/// reserved, each run of live blocks counts as a segment of its size: see memory_map.
[[nodiscard]] std::string torch_snapshot_of(const recording& recording);
/// The same into a file, which appears when it is whole.
[[nodiscard]] result<void> write_torch_snapshot(const recording& recording,
                                                const std::string& path);

}  // namespace weir::inline v0::formats

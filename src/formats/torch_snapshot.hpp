// SPDX-License-Identifier: Apache-2.0
// PyTorch memory snapshots: what torch.cuda.memory._dump_snapshot writes, and what reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "formats/input.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// Which device of a snapshot of several is read.
struct device_choice {
  /// Nothing: that which held the most bytes; of equal ones that with the longest history.
  std::optional<std::uint64_t> device{};
  /// Where not null: gets a sentence that lists the devices, if there are several.
  std::string* remark = nullptr;
  /// Where not null: set to true if a device was chosen and the file is not a snapshot.
  bool* is_ignored = nullptr;
};

/// Reads one device of a snapshot.
///
/// What was reserved and live before the history begins, because it was switched on late or its
/// ring was full, is rebuilt from the history and from the final segments: it is reserved and
/// allocated at time 0, before a marker that says so. Annotations and snapshots become markers,
/// user metadata tags. The streams that were recorded for a block are not in a snapshot; `reusable`
/// says when they were done with it. A history that was recorded without `free_requested` frees
/// blocks where it says `free_completed`. invalid_argument: no pickle, not of a snapshot, or
/// without the device that is asked for.
[[nodiscard]] result<recording> read_torch_snapshot(std::string_view bytes, std::string_view name,
                                                    const input_limits& limits = {},
                                                    const device_choice& choice = {});

/// Under this key an exported snapshot has the events that PyTorch has no action for and that a
/// replay needs: recorded streams and released pools. `before` is a position in the history.
inline constexpr std::string_view own_events_key = "weir_events";

/// This key marks a free_completed of an exported snapshot that the recording does not have.
inline constexpr std::string_view invented_key = "weir_invented";

/// A snapshot that torch's own viewers read: the recording as the history of device 0, and what is
/// reserved and live at its end as the segments. Where the recording does not say what was
/// reserved, each run of live blocks counts as a segment of its size: see memory_map.
[[nodiscard]] std::string torch_snapshot_of(const recording& recording);
/// The same into a file, which appears when it is whole.
[[nodiscard]] result<void> write_torch_snapshot(const recording& recording,
                                                const std::string& path);

}}}  // namespace weir::v0::formats

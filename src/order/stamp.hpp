// SPDX-License-Identifier: Apache-2.0
// The numbers that stream order is kept in: streams by slot, time by epoch.
#pragma once

#include <cstdint>

namespace weir { inline namespace v0 { namespace order {

/// A stream's number inside one stream_order. 0 is no_stream: what belongs to it is quiescent.
using stream_slot = std::uint32_t;
constexpr stream_slot no_stream = 0;

/// A stretch of time, counted up. Wraps around, so compare with is_after() only.
using epoch = std::uint32_t;
[[nodiscard]] constexpr bool is_after(epoch a, epoch b) noexcept {
  return static_cast<std::int32_t>(a - b) > 0;
}

/// Whose memory it is, and when it was freed: what was queued by the end of the epoch may use it.
struct stamp {
  stream_slot stream = no_stream;
  order::epoch epoch = 0;

  friend bool operator==(const stamp&, const stamp&) = default;
};

}}}  // namespace weir::v0::order

// SPDX-License-Identifier: Apache-2.0
// One capture: streams whose work becomes nodes of a graph instead of being done.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/graph.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// A capture from its begin to its end. While it lasts, every member stream's `capturing` points
/// here, and graph_set lists it; both ends are cut when it ends. Events that were recorded in it
/// may keep it longer: then only `ended` says anything.
class capture {
 public:
  struct member {
    std::shared_ptr<stream_state> stream;
    /// What the next node of the stream will depend on.
    std::vector<driver::CUgraphNode> next;
  };

  std::uint64_t id = 0;  ///< no two captures of the process have the same
  driver::CUstreamCaptureMode mode = driver::CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t thread = 0;  ///< thread_state::number of the thread that began it
  std::shared_ptr<graph> building{};
  driver::CUgraph handle = nullptr;
  std::vector<member> members{};  ///< the first is the stream it began on
  bool invalidated = false;
  bool ended = false;

  [[nodiscard]] driver::CUstreamCaptureStatus status() const noexcept {
    return invalidated ? driver::CU_STREAM_CAPTURE_STATUS_INVALIDATED
                       : driver::CU_STREAM_CAPTURE_STATUS_ACTIVE;
  }
  [[nodiscard]] bool began_on(const stream_state& stream) const noexcept {
    return !members.empty() && members.front().stream.get() == &stream;
  }
  /// The stream must be a member.
  [[nodiscard]] member& at(const stream_state& stream) noexcept;
  /// Whether a blocking stream of the device is a member: then the legacy stream cannot be used.
  [[nodiscard]] bool blocks_legacy(int device) const noexcept;
};

/// Adds what is not there yet.
void merge(std::vector<driver::CUgraphNode>& nodes, const std::vector<driver::CUgraphNode>& added);

}}}  // namespace weir::v0::sim

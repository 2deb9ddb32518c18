// SPDX-License-Identifier: Apache-2.0
// torch's settings (PYTORCH_ALLOC_CONF and its run-time form), as far as weir follows them.
#pragma once

#include <atomic>
#include <functional>

#include "compat.hpp"
#include "size_rounding.hpp"

namespace weir_torch {

/// A copy of the settings that requests depend on. torch parses the text, keeps the values and
/// refuses what it does not know; docs/pytorch.md has a table of what weir does with each key.
///
/// Any thread may read; every read is a load. refresh() is called whenever they may have changed.
class torch_settings {
 public:
  /// Reads them from torch, and names keys once that have no effect here.
  void refresh();

  /// roundup_power2_divisions
  [[nodiscard]] const size_rounding& rounding() const noexcept { return rounding_; }
  /// garbage_collection_threshold; 0: none.
  [[nodiscard]] double collection_threshold() const noexcept {
    return collection_threshold_.load(std::memory_order_relaxed);
  }
  /// graph_capture_record_stream_reuse
  [[nodiscard]] bool reuses_in_captures() const noexcept {
    return reuses_in_captures_.load(std::memory_order_relaxed);
  }

 private:
  size_rounding rounding_;
  std::atomic<double> collection_threshold_{0};
  std::atomic<bool> reuses_in_captures_{false};
};

/// Has torch parse the environment's settings if it has not: later it would compare the backend
/// that they name with weir. Then calls `on_change` after every change at run time, where torch
/// tells of them (from 2.10 on). There, where `memory_is_mapped`, expandable_segments is on from
/// now on.
void watch_settings(bool memory_is_mapped, std::function<void()> on_change);

}  // namespace weir_torch

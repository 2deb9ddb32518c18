// torch's settings (PYTORCH_ALLOC_CONF and its run-time form), as far as weir follows them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>

#include "compat.hpp"

namespace weir_torch {

/// A copy of the settings that requests depend on. torch parses the text, keeps the values and
/// refuses what it does not know; docs/pytorch.md has a table of what weir does with each key.
///
/// Any thread may read; every read is a load. refresh() is called whenever they may have changed.
class torch_settings {
 public:
  /// Reads them from torch, and names keys once that have no effect here.
  void refresh();

  /// Whether any size is rounded to more than a multiple of 512 bytes.
  [[nodiscard]] bool rounds_up() const noexcept {
    return rounds_up_.load(std::memory_order_relaxed);
  }
  /// The size of the block for a request, as roundup_power2_divisions has it.
  [[nodiscard]] std::size_t round(std::size_t size) const noexcept;
  /// garbage_collection_threshold; 0: none.
  [[nodiscard]] double collection_threshold() const noexcept {
    return collection_threshold_.load(std::memory_order_relaxed);
  }
  /// graph_capture_record_stream_reuse
  [[nodiscard]] bool reuses_in_captures() const noexcept {
    return reuses_in_captures_.load(std::memory_order_relaxed);
  }

 private:
  /// From 1 MiB to 64 GiB, one for each power of two.
  static constexpr std::size_t intervals = 16;
  std::array<std::atomic<std::size_t>, intervals> divisions_{};
  std::atomic<bool> rounds_up_{false};
  std::atomic<double> collection_threshold_{0};
  std::atomic<bool> reuses_in_captures_{false};
};

/// Has torch parse the environment's settings if it has not: later it would compare the backend
/// that they name with weir. Then calls `on_change` after every change at run time, where torch
/// tells of them (from 2.10 on).
void watch_settings(std::function<void()> on_change);

}  // namespace weir_torch

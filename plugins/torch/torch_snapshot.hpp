// SPDX-License-Identifier: Apache-2.0
// A pool's snapshot in torch's terms: segments, which are ranges with memory, cut into blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"

namespace weir_torch {

struct snapshot_block {
  enum class kind : std::uint8_t {
    allocated,     ///< "active_allocated"
    pending_free,  ///< "active_pending_free": freed, and another stream may still use it
    inactive,      ///< "inactive": cached
  };
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t requested = 0;  ///< only of allocated ones
  kind state = kind::inactive;
  weir::stream_id stream{};
};

struct snapshot_segment {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t requested = 0;
  std::uint64_t allocated = 0;
  std::uint64_t active = 0;
  weir::stream_id stream{};  ///< of its first block that has one
  std::uint32_t number = 0;  ///< of the first physical_info in it
  std::vector<snapshot_block> blocks;
};

/// The pool's segments or, of an arena, its contiguous ranges that have memory, by address. Their
/// sizes add up to what the pool reserves.
[[nodiscard]] std::vector<snapshot_segment> segments_of(const weir::pool_snapshot& pool);

}  // namespace weir_torch

// SPDX-License-Identifier: Apache-2.0
// Records of many threads as one sequence of events that can have happened.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "trace/ring.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// Puts records in order. They come with times that are right up to `slack` ticks; what the times
/// leave open is decided by what can be: a block is freed after it was allocated and allocated
/// again after it was freed. What cannot be in any order, because records are missing, is mended: a
/// free of an unknown block is left out, and a block that is still there when its address is
/// allocated again is freed first. Once records were dropped, the free of an unknown block may be
/// that of a block whose allocation is missing: then no later allocation is moved before it. One
/// thread.
class merger {
 public:
  explicit merger(std::uint64_t slack) noexcept : slack_{slack} {}

  /// More records; those of one thread come in their order.
  [[nodiscard]] std::vector<record>& incoming() noexcept { return pending_; }
  /// Some records were dropped, or will be before the next merge_until().
  void expect_gaps() noexcept { has_gaps_ = true; }
  /// Appends everything that happened before `settled` to `out`, in order. All records with times
  /// before it have come in.
  void merge_until(std::uint64_t settled, std::vector<record>& out);

 private:
  struct block {
    std::uint64_t size = 0;
    std::uint64_t stream = 0;
    std::uint16_t tag = 0;
    std::uint32_t pool = 0;
  };

  [[nodiscard]] bool is_possible(const record& next) const;
  /// Moves the records that must come before the one at `index` there; false if there are none.
  [[nodiscard]] bool reorder(std::size_t index, std::size_t count);
  void emit(const record& next, std::vector<record>& out);

  std::vector<record> pending_;
  std::unordered_map<std::uint64_t, block> live_;
  std::uint64_t slack_;
  bool has_gaps_ = false;
};

}}}  // namespace weir::v0::trace

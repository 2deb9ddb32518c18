// SPDX-License-Identifier: Apache-2.0
// How much memory each of torch's pools reserves, also of pools that are gone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace weir_torch {

/// Counters of pools by torch's id, kept after the pool is gone until they are reset.
///
/// They change with what note() is told, so memory that comes and goes between two calls is missing
/// in the sums, but not in the peak. Not for several threads at a time.
class pool_reserves {
 public:
  using pool = std::pair<std::uint64_t, std::uint64_t>;
  struct counters {
    std::uint64_t current = 0;
    std::uint64_t peak = 0;
    std::uint64_t allocated = 0;
    std::uint64_t freed = 0;

    friend bool operator==(const counters&, const counters&) = default;
  };

  /// What the pool reserves now, and its peak since the last reset_peaks().
  void note(pool id, std::uint64_t current, std::uint64_t peak) {
    counters& known = counters_[id];
    if (current > known.current) known.allocated += current - known.current;
    if (current < known.current) known.freed += known.current - current;
    known.current = current;
    known.peak = std::max({known.peak, current, peak});
  }
  void reset_sums() {
    for (auto& [id, known] : counters_) known.allocated = known.freed = 0;
  }
  void reset_peaks() {
    for (auto& [id, known] : counters_) known.peak = known.current;
  }

  [[nodiscard]] const std::map<pool, counters>& all() const noexcept { return counters_; }
  /// The pools that reserved memory when they were last noted.
  [[nodiscard]] std::vector<pool> with_memory() const {
    std::vector<pool> ids;
    for (const auto& [id, known] : counters_)
      if (known.current != 0) ids.push_back(id);
    return ids;
  }

 private:
  std::map<pool, counters> counters_;
};

}  // namespace weir_torch

// SPDX-License-Identifier: Apache-2.0
// How torch rounds the sizes of requests: roundup_power2_divisions.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <vector>

namespace weir_torch {

/// Between a power of two and the next lie so many sizes of blocks, a number for each power of two
/// from 1 MiB on; of smaller requests that of 1 MiB counts. 0 or 1: blocks are the next multiple of
/// 512 bytes.
///
/// Any thread; every read is a load.
class size_rounding {
 public:
  void set(const std::vector<std::size_t>& divisions) noexcept {
    bool rounds_up = false;
    for (std::size_t i = 0; i < intervals; ++i) {
      const std::size_t value = i < divisions.size() ? divisions[i] : 0;
      divisions_[i].store(value, std::memory_order_relaxed);
      rounds_up = rounds_up || value > 1;
    }
    rounds_up_.store(rounds_up, std::memory_order_relaxed);
  }

  /// Whether any size is rounded to more than a multiple of 512 bytes.
  [[nodiscard]] bool rounds_up() const noexcept {
    return rounds_up_.load(std::memory_order_relaxed);
  }
  /// The size of the block for a request.
  [[nodiscard]] std::size_t round(std::size_t size) const noexcept {
    if (size >> 60 != 0) return size;  // there is no such block, and the sums below stay small
    const std::size_t in_units = (size + unit - 1) / unit * unit;
    if (size < unit) return in_units;
    const auto log = static_cast<std::size_t>(std::bit_width(size)) - 1;
    const std::size_t index = std::min(log - std::min(log, first_log), intervals - 1);
    const std::size_t divisions = divisions_[index].load(std::memory_order_relaxed);
    if (divisions <= 1 || size <= unit * divisions) return in_units;
    const std::size_t step =
        std::bit_floor(size) >> (static_cast<std::size_t>(std::bit_width(divisions)) - 1);
    return (size + step - 1) / step * step;
  }

 private:
  static constexpr std::size_t unit = 512;
  static constexpr std::size_t first_log = 20;  // of 1 MiB
  static constexpr std::size_t intervals = 16;  // up to 64 GiB

  std::array<std::atomic<std::size_t>, intervals> divisions_{};
  std::atomic<bool> rounds_up_{false};
};

}  // namespace weir_torch

// SPDX-License-Identifier: Apache-2.0
// All that the kernels of a program have read, as one number.
#pragma once

#include <atomic>
#include <cstdint>

namespace weir::order_test {

/// Does not depend on the order in which kernels ran. Any thread.
class read_checksum {
 public:
  /// The kernel `reader`, a number that no other one has, has read `content`.
  void add(std::uint64_t reader, std::uint64_t content) noexcept {
    std::uint64_t mixed = reader * 0x9e3779b97f4a7c15ULL ^ content;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    sum_.fetch_add(mixed ^ (mixed >> 27), std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t sum() const noexcept { return sum_; }

 private:
  std::atomic<std::uint64_t> sum_{0};
};

}  // namespace weir::order_test

// SPDX-License-Identifier: Apache-2.0
// Segments that threads are pinning.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <vector>

#include "base/condition.hpp"
#include "base/mutex.hpp"

namespace weir { inline namespace v0 { namespace host {

/// What is being pinned, so that a request can wait for it instead of pinning as much again.
/// Owned by an arena, whose lock every call needs.
class pins_under_way {
 public:
  /// Throws std::bad_alloc.
  void begin(std::uint64_t size) { sizes_.push_back(size); }
  void end(std::uint64_t size) noexcept {
    const auto at = std::find(sizes_.begin(), sizes_.end(), size);
    *at = sizes_.back();
    sizes_.pop_back();
    changed_.notify_all();
  }
  [[nodiscard]] std::uint64_t total() const noexcept {
    std::uint64_t total = 0;
    for (const std::uint64_t each : sizes_) total += each;
    return total;
  }
  /// Whether one of them will have room for so much.
  [[nodiscard]] bool any_of(std::uint64_t size) const noexcept {
    return std::any_of(sizes_.begin(), sizes_.end(),
                       [&](std::uint64_t each) { return each >= size; });
  }
  [[nodiscard]] bool empty() const noexcept { return sizes_.empty(); }
  /// Waits until one of them has ended, without the lock.
  void wait(detail::mutex& held) WEIR_REQUIRES(held) { detail::wait_on(changed_, held); }

 private:
  std::vector<std::uint64_t> sizes_;
  std::condition_variable_any changed_;
};

}}}  // namespace weir::v0::host

// SPDX-License-Identifier: Apache-2.0
// Blocks that are larger than requests of their size are otherwise (roundup_power2_divisions).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace weir_torch {

/// What was requested of live blocks that torch's settings made larger: weir counts the block's own
/// size as requested, and torch wants to know both. Any thread; any() is a load.
class padded_blocks {
 public:
  /// True: it is the only one, and any() has become true.
  [[nodiscard]] bool add(const void* block, std::uint64_t requested, std::uint64_t taken) {
    const std::lock_guard lock{mutex_};
    blocks_.insert_or_assign(block, entry{requested, taken - requested});
    padding_.fetch_add(taken - requested, std::memory_order_relaxed);
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return blocks_.size() == 1;
  }
  void remove(const void* block) noexcept {
    const std::lock_guard lock{mutex_};
    const auto known = blocks_.find(block);
    if (known == blocks_.end()) return;
    padding_.fetch_sub(known->second.padding, std::memory_order_relaxed);
    blocks_.erase(known);
    count_.store(blocks_.size(), std::memory_order_relaxed);
  }
  [[nodiscard]] std::optional<std::uint64_t> requested_of(const void* block) const {
    const std::lock_guard lock{mutex_};
    const auto known = blocks_.find(block);
    if (known == blocks_.end()) return std::nullopt;
    return known->second.requested;
  }
  [[nodiscard]] bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  /// Bytes that no request asked for, of all of them.
  [[nodiscard]] std::uint64_t padding() const noexcept {
    return padding_.load(std::memory_order_relaxed);
  }

 private:
  struct entry {
    std::uint64_t requested;
    std::uint64_t padding;
  };
  mutable std::mutex mutex_;
  std::unordered_map<const void*, entry> blocks_;
  std::atomic<std::uint64_t> padding_{0};
  std::atomic<std::size_t> count_{0};
};

}  // namespace weir_torch

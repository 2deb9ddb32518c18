// SPDX-License-Identifier: Apache-2.0
// Blocks that came from cudaMalloc, because the cache was switched off.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_set>

namespace weir_torch {

/// The live blocks that are not weir's: torch.cuda.caching_allocator_enable(False), or
/// PYTORCH_NO_CUDA_MEMORY_CACHING, sends requests to cudaMalloc. A free looks here to tell them
/// from weir's, whether or not the cache was switched on again meanwhile.
///
/// Any thread. any() is a load; the rest takes a lock.
class uncached_blocks {
 public:
  void add(const void* block) {
    const std::lock_guard lock{mutex_};
    blocks_.insert(block);
    count_.store(blocks_.size(), std::memory_order_relaxed);
  }
  /// False: it is none of them.
  [[nodiscard]] bool remove(const void* block) noexcept {
    const std::lock_guard lock{mutex_};
    const bool removed = blocks_.erase(block) != 0;
    count_.store(blocks_.size(), std::memory_order_relaxed);
    return removed;
  }
  [[nodiscard]] bool contains(const void* block) const {
    const std::lock_guard lock{mutex_};
    return blocks_.count(block) != 0;
  }
  [[nodiscard]] bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<const void*> blocks_;
  std::atomic<std::size_t> count_{0};
};

}  // namespace weir_torch

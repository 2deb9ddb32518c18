// SPDX-License-Identifier: Apache-2.0
// Blocks that must not be reused while captures are under way.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

namespace weir_torch {

/// The frees of held blocks are kept, in their order, until take_freed(). Only the first free of a
/// block is.
///
/// Not for several threads at a time.
class held_blocks {
 public:
  void hold(void* block) { is_freed_.emplace(block, false); }
  /// Keeps the free of the block; false: it is not held, or was freed.
  [[nodiscard]] bool defer_free(void* block) {
    const auto held = is_freed_.find(block);
    if (held == is_freed_.end() || held->second) return false;
    freed_.push_back(block);
    held->second = true;
    return true;
  }
  /// Whether a free of the block is kept.
  [[nodiscard]] bool is_freed(void* block) const {
    const auto held = is_freed_.find(block);
    return held != is_freed_.end() && held->second;
  }
  /// The block is held no longer; false: it was not, or was freed.
  [[nodiscard]] bool release(void* block) {
    const auto held = is_freed_.find(block);
    if (held == is_freed_.end() || held->second) return false;
    is_freed_.erase(held);
    return true;
  }
  /// The blocks whose frees were kept; they are held no longer.
  [[nodiscard]] std::vector<void*> take_freed() {
    for (void* const block : freed_) is_freed_.erase(block);
    return std::exchange(freed_, {});
  }
  [[nodiscard]] bool empty() const noexcept { return is_freed_.empty(); }

 private:
  std::unordered_map<void*, bool> is_freed_;
  std::vector<void*> freed_;
};

}  // namespace weir_torch

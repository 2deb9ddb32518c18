// SPDX-License-Identifier: Apache-2.0
// The last entries of a history: a ring that overwrites its oldest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace weir_torch {

/// Keeps the last `capacity()` entries that were added. Grows as it fills, so a capacity that
/// nobody reaches costs nothing. The owner serialises calls.
template <class Entry>
class ring {
 public:
  /// At least one entry. A ring that becomes smaller keeps its newest.
  void set_capacity(std::size_t capacity) {
    capacity = std::max<std::size_t>(capacity, 1);
    if (entries_.size() > capacity) {
      std::vector<Entry> kept = all();
      kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(capacity));
      entries_ = std::move(kept);
      oldest_ = 0;
    } else if (oldest_ != 0) {
      entries_ = all();  // it will grow behind its newest
      oldest_ = 0;
    }
    capacity_ = capacity;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

  void add(Entry entry) {
    if (entries_.size() < capacity_) {
      entries_.push_back(std::move(entry));
      return;
    }
    entries_[oldest_] = std::move(entry);
    oldest_ = (oldest_ + 1) % entries_.size();
  }

  /// Oldest first.
  [[nodiscard]] std::vector<Entry> all() const {
    std::vector<Entry> ordered;
    ordered.reserve(entries_.size());
    std::rotate_copy(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(oldest_),
                     entries_.end(), std::back_inserter(ordered));
    return ordered;
  }

  void clear() {
    std::vector<Entry>{}.swap(entries_);
    oldest_ = 0;
  }

 private:
  std::vector<Entry> entries_;
  std::size_t capacity_ = 1;
  std::size_t oldest_ = 0;
};

}  // namespace weir_torch

// SPDX-License-Identifier: Apache-2.0
// torch's ids of weir's pools.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_set>
#include <vector>

#include "weir/observe/events.hpp"

namespace weir_torch {

/// By weir's id, also of pools that torch has released and that live on with their blocks or until
/// streams come to rest; those that are to be emptied when torch says so are found by torch's id. A
/// program may make pools without end, so those that have ended are forgotten now and then: when
/// is_due(), the owner asks the allocator which pools there are.
///
/// Not for several threads at a time.
template <class TorchId>
class pool_names {
 public:
  static constexpr std::size_t first_check = 256;

  void add(weir::pool_id pool, const TorchId& id) { ids_[pool] = id; }
  /// That of no pool, TorchId{}, where none was added.
  [[nodiscard]] TorchId find(weir::pool_id pool) const {
    const auto known = ids_.find(pool);
    return known == ids_.end() ? TorchId{} : known->second;
  }
  [[nodiscard]] std::size_t size() const noexcept { return ids_.size(); }

  /// Torch uses the pool no more, and it is to be emptied later.
  void add_released(weir::pool_id pool, const TorchId& id) { released_.emplace(id, pool); }
  /// Those of this id that were added since the last call.
  [[nodiscard]] std::vector<weir::pool_id> take_released(const TorchId& id) {
    std::vector<weir::pool_id> pools;
    const auto [first, last] = released_.equal_range(id);
    for (auto pool = first; pool != last; ++pool) pools.push_back(pool->second);
    released_.erase(first, last);
    return pools;
  }
  [[nodiscard]] std::size_t released() const noexcept { return released_.size(); }

  /// Whether there are twice as many as forget_ended() left.
  [[nodiscard]] bool is_due() const noexcept { return ids_.size() >= next_check_; }
  [[nodiscard]] std::vector<weir::pool_id> all() const {
    std::vector<weir::pool_id> pools;
    for (const auto& [pool, id] : ids_) pools.push_back(pool);
    return pools;
  }
  /// Forgets those of `known` that are not `alive`. Pools that were added since are kept.
  void forget_ended(const std::vector<weir::pool_id>& known,
                    const std::unordered_set<weir::pool_id>& alive) {
    std::unordered_set<weir::pool_id> ended;
    for (const weir::pool_id pool : known)
      if (alive.count(pool) == 0) ended.insert(pool);
    for (const weir::pool_id pool : ended) ids_.erase(pool);
    std::erase_if(released_, [&](const auto& entry) { return ended.count(entry.second) != 0; });
    next_check_ = std::max(first_check, 2 * ids_.size());
  }

 private:
  std::map<weir::pool_id, TorchId> ids_;
  std::multimap<TorchId, weir::pool_id> released_;
  std::size_t next_check_ = first_check;
};

}  // namespace weir_torch

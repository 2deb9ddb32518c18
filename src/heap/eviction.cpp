// SPDX-License-Identifier: Apache-2.0
// What may be evicted, whether that would help, and waiting for what leaves anyway.
#include "heap/eviction.hpp"

#include <algorithm>
#include <optional>
#include <thread>

#include "heap/backup.hpp"

namespace weir { inline namespace v0 { namespace heap {

using order::driver_access;

bool eviction::is_evictable_for(const pool_state& pool, const pool_state* asking) const {
  const auto& rules = pool.suspendable;
  if (!rules || !rules->evictable || pool.where != residence::resident) return false;
  if (&pool == asking || pool.reserved() == 0 || !host_.may_suspend(pool)) return false;
  const bool bound_by_priority =
      asking != nullptr && asking->suspendable && asking->suspendable->evictable;
  return !bound_by_priority || rules->priority < asking->suspendable->priority;
}

/// Whether `needed` bytes would fit under the limit and on the device if every pool that may be
/// evicted for them were suspended. Pools on their way and memory that waits for streams count as
/// gone.
bool eviction::fits_beside_live(const pool_state& asking, std::uint64_t needed) {
  const auto stays = [&](const pool_state& pool) {
    core_.mutex_.assert_held();
    if (pool.memory == nullptr || pool.source != nullptr || pool.is_moving()) return false;
    if (pool.where == residence::suspended) return &pool == &asking;
    return !is_evictable_for(pool, &asking);
  };
  const auto is_kept = [&](const pool_state& pool) {
    core_.mutex_.assert_held();
    return &pool != &asking && core_.captures_.keeps_memory(pool);
  };
  std::uint64_t kept = 0;
  for (const auto& each : core_.pools_)
    if (stays(*each)) kept += is_kept(*each) ? each->reserved() : each->memory->handed_out();
  for (const order::pending_frees::waiting& each : core_.pending_.all()) {
    const block& waits = core_.blocks_[each.index];
    if (stays(core_.pool_of(waits)) && !is_kept(core_.pool_of(waits)))
      kept -= std::min(kept, waits.size());
  }
  const std::uint64_t most =
      std::min(core_.placement_.reserved_limit, core_.placement_.supply.total());
  return kept <= most && needed <= most - kept;
}

/// The same without what threads cache, which counts as handed out.
bool eviction::could_fit(const pool_state& asking, std::uint64_t needed) {
  core_.mutex_.assert_held();
  if (fits_beside_live(asking, needed)) return true;
  host_.flush_caches();
  return fits_beside_live(asking, needed);
}

result<bool> eviction::evict_for(const pool_state* asking, std::uint64_t needed,
                                 driver_access& driver) {
  core_.mutex_.assert_held();
  if (asking != nullptr && !could_fit(*asking, needed)) return false;
  std::vector<pool_id> tried;
  for (;;) {
    pool_state* victim = nullptr;
    for (const auto& each : core_.pools_) {
      if (!is_evictable_for(*each, asking)) continue;
      if (std::find(tried.begin(), tried.end(), each->id) != tried.end()) continue;
      if (victim == nullptr || each->suspendable->priority < victim->suspendable->priority)
        victim = each.get();
    }
    if (victim == nullptr) return false;
    WEIR_TRY_VALUE(capturing, host_.any_capturing(driver));
    if (capturing) return false;
    tried.push_back(victim->id);
    const suspend_options how = victim->suspendable->eviction;
    const auto outcome = host_.suspend_pools({victim}, how);
    if (outcome && outcome->released != bytes{}) return true;
    WEIR_TRY(core_.usable());
    // One whose contents find no place stays; the next one may go.
  }
}

result<bool> eviction::evict(pool_state* asking, bytes needed, driver_access& driver) {
  core_.mutex_.assert_held();
  std::optional<pool_hold> held;
  if (asking != nullptr) held.emplace(core_, *asking);
  WEIR_TRY_VALUE(left, await_leaving(asking));
  if (left) return true;
  return evict_for(asking, needed.count(), driver);
}

/// What is on its way out anyway comes before what would have to go, whoever suspends it. So does
/// what is on its way back and has all its memory: some of it may be free. False: nothing is, or a
/// progress callback asks, which cannot wait.
result<bool> eviction::await_leaving(const pool_state* asking) {
  core_.mutex_.assert_held();
  const auto self = std::this_thread::get_id();
  const auto leaves = [&](const auto& each) {
    if (each.get() == asking) return false;
    if (each->is_arriving()) return true;
    return each->where == residence::suspending && !each->taken_back && each->moved_by != self;
  };
  if (heap_of_progress == &core_ || std::none_of(core_.pools_.begin(), core_.pools_.end(), leaves))
    return false;
  WEIR_TRY(host_.await_move());
  return true;
}

}}}  // namespace weir::v0::heap

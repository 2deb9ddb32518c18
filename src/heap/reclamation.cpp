// SPDX-License-Identifier: Apache-2.0
// Flushing, retiring, releasing and waiting, so that a request finds room.
#include "heap/reclamation.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// Whether the blocks of a pool can lie apart and go when they are freed: not where graphs use them
/// again, where others give the memory, or where it is to be suspended.
bool is_checked(const pool_state& pool) noexcept {
  return !pool.of_graphs() && !pool.segments && !pool.suspendable;
}

}  // namespace

result<account_number> reclamation::prepare(pool_state& pool, bytes needed, driver_access& driver) {
  core_.mutex_.assert_held();
  core_.placement_.supply.forget();
  if (pool.where != residence::resident) [[unlikely]]
    WEIR_TRY(residency_.await_residence(pool, needed.count()));
  WEIR_TRY_VALUE(account, core_.accounts_.number_of(pool.id, current_tag()));
  WEIR_TRY(make_table_room());
  if (!core_.blocks_.prepare(4)) return no_host_memory();
  if (pool.memory == nullptr) {
    WEIR_TRY(driver.entered());
    WEIR_TRY_VALUE(store,
                   make_backing_store(core_.placement_, pool.id, traits_of(pool), driver.enter()));
    pool.memory = std::move(store);
  }
  return account;
}

result<void> reclamation::make_table_room() {
  if (!core_.table_.full()) [[likely]]
    return {};
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  if (!core_.table_.grow()) return no_host_memory();
  return {};
}

store_traits reclamation::traits_of(const pool_state& pool) const {
  core_.mutex_.assert_held();
  return {.policy = core_.policy_,
          .exportable = core_.exportable_ || pool.exportable,
          .one_slot_handles = pool.exportable,
          .moves = !pool.of_graphs(),
          .takes_addresses = pool.for_graphs,
          .segments = pool.segments,
          .splits = pool.splits,
          .of_graphs = pool.of_graphs(),
          .suspendable = pool.suspendable.has_value(),
          .source = pool.source,
          .checks = is_checked(pool) ? core_.checks_ : debug_checks::off,
          .quarantine = core_.quarantine_};
}

void reclamation::flush_unbinned(thread_cache& own) noexcept {
  core_.mutex_.assert_held();
  if (own.has_remote()) own.take_in_remote(core_.blocks_);
  if (own.unplaced != no_block) flusher_.flush_unplaced(own);
  if (own.large != no_block) flusher_.flush_large(own);
}

bool reclamation::flush_others(thread_cache* own) noexcept {
  core_.mutex_.assert_held();
  const thread_caches::stop stopped{core_.caches_, own};
  return flusher_.flush_all();
}

result<bool> reclamation::retire_completed(stream_slot spared, pool_state& asking,
                                           driver_access& driver) {
  core_.mutex_.assert_held();
  WEIR_TRY_VALUE(any, progress_.poll_streams(driver, spared));
  if (core_.pools_to_sweep_) WEIR_TRY(pools_.sweep(asking, driver));
  return any;
}

bool reclamation::any_pending_like(const request& wanted, const pool_state& pool) const noexcept {
  core_.mutex_.assert_held();
  const auto& waiting = core_.pending_.all();
  return std::any_of(waiting.begin(), waiting.end(), [&](const auto& each) {
    core_.mutex_.assert_held();
    const block& block = core_.blocks_[each.index];
    return block.units == wanted.units && each.freed.stream == wanted.stream &&
           core_.accounts_.pool_of(block.account) == pool.id;
  });
}

bool reclamation::queues_waits() const noexcept {
  core_.mutex_.assert_held();
  return core_.placement_.queues_waits;
}

result<bool> reclamation::take_pending_behind_waits(const request& wanted, const pool_state& pool,
                                                    driver_access& driver) {
  core_.mutex_.assert_held();
  // The smallest that is large enough.
  if (pool.memory->inspects()) return false;  // it gives nothing again
  const auto& waiting = core_.pending_.all();
  std::size_t best = waiting.size();
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    const block& candidate = core_.blocks_[waiting[i].index];
    const bool fits =
        candidate.units >= wanted.units_with_alignment() && &core_.pool_of(candidate) == &pool;
    if (!fits) continue;
    if (best == waiting.size() || candidate.units < core_.blocks_[waiting[best].index].units)
      best = i;
  }
  if (best == waiting.size()) return false;
  // Behind the waits it is the stream's own memory, and becomes that where nothing may fail.
  pool.memory->prepare_free(wanted.stream);
  const order::pending_frees::waiting& chosen = waiting[best];
  WEIR_TRY_VALUE(waits, core_.placement_.wait(wanted.stream, chosen.freed, driver.enter()));
  if (!waits) return false;
  for (const stamp& each : chosen.others) {
    WEIR_TRY_VALUE(queued, core_.placement_.wait_for_stream(wanted.stream, each, driver.enter()));
    if (!queued) return false;
  }
  // Behind the waits the stream may use it as if it had freed it itself.
  const block_index index = core_.pending_.take(best).index;
  host_.free_waited(index, core_.order_.now(wanted.stream));
  return true;
}

result<fallback_room> reclamation::fit_in_fallback(const request& wanted) {
  core_.mutex_.assert_held();
  if (wanted.whole_handle) return fallback_room{};  // those of other pools may be released
  for (const auto& each : core_.pools_) {
    if (!each->is_fallback || each->memory == nullptr) continue;
    if (each->where != residence::resident) continue;
    WEIR_TRY_VALUE(account, core_.accounts_.number_of(each->id, current_tag()));
    const block_index room = each->memory->fit(wanted);
    if (room != no_block) return fallback_room{each.get(), account, room};
  }
  return fallback_room{};
}

/// Whether the request could be met if all free memory went back to the driver. Otherwise nobody
/// should lose a cache for it.
result<bool> reclamation::release_can_help(const request& wanted, const pool_state& asking,
                                           driver_access& driver) {
  core_.mutex_.assert_held();
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t free = unused(asking);
  if (size <= free + placement::planned_without_question) return true;
  const std::uint64_t granularity = core_.device_.capabilities().granularity.count();
  if (granularity == 0) return true;  // no virtual memory: a segment is one call
  return can_take((size - free) / granularity * granularity, driver);
}

/// Whether the request could be met if the streams were done with all that was freed. Otherwise
/// nobody should wait for them: their work may need the very thread that asks.
result<bool> reclamation::wait_can_help(const request& wanted, const pool_state& asking,
                                        driver_access& driver) {
  core_.mutex_.assert_held();
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t free = unused(asking) + core_.accounts_.total().pending;
  if (size <= free) return true;
  if (asking.source != nullptr) return true;  // it may have more than the device says
  const std::uint64_t granularity = core_.device_.capabilities().granularity.count();
  if (granularity == 0) return true;
  return can_take((size - free + granularity - 1) / granularity * granularity, driver);
}

std::uint64_t reclamation::unused(const pool_state& asking) const noexcept {
  std::uint64_t sum = 0;
  for (const auto& each : core_.pools_) {
    const bool kept = each.get() != &asking && core_.captures_.keeps_memory(*each);
    if (each->memory != nullptr && !kept) sum += each->memory->unused();
  }
  return sum;
}

result<bool> reclamation::can_take(std::uint64_t size, driver_access& driver) {
  if (!core_.placement_.may_reserve(size)) return false;
  WEIR_TRY(driver.entered());
  return core_.placement_.supply.can_give(size, {}, driver.enter());
}

/// A pool whose memory is on its way has it still, so nobody ends the pool meanwhile.
result<bytes> reclamation::release_from_others(pool_state& asking, bytes most,
                                               driver_access& driver) {
  core_.mutex_.assert_held();
  const pool_hold held{core_, asking};
  for (pool_state* each = core_.pools_.front().get(); each != nullptr;
       each = core_.pool_behind(each->id)) {
    if (each == &asking || each->memory == nullptr || !each->may_release(core_.order_)) continue;
    const auto released = each->memory->release(most, driver.enter());
    WEIR_TRY(core_.usable());
    if (!released && each->source != nullptr) {
      report_error(released.error());  // the source's trouble, not that of the request
      continue;
    }
    if (!released || *released != bytes{}) return released;
  }
  return bytes{};
}

result<bytes> reclamation::release_own(pool_state& asking, driver_access& driver) {
  core_.mutex_.assert_held();
  if (asking.where != residence::resident) return bytes{};
  const pool_hold held{core_, asking};
  auto released = asking.memory->release(bytes::max(), driver.enter());
  WEIR_TRY(core_.usable());
  return released;
}

result<bool> reclamation::await_releases(pool_state& asking) {
  core_.mutex_.assert_held();
  const pool_hold held{core_, asking};
  const bool waited = core_.wait_for_releases();
  WEIR_TRY(core_.usable());
  return waited;
}

result<bool> reclamation::reclaim_cached(pool_state& asking, bytes needed, driver_access& driver) {
  core_.mutex_.assert_held();
  flusher_.flush_caches();
  WEIR_TRY(progress_.poll_streams(driver, no_stream));
  WEIR_TRY(pools_.sweep(asking, driver));
  WEIR_TRY_VALUE(released, release_from_others(asking, needed, driver));
  if (released != bytes{}) return true;
  return await_releases(asking);
}

std::uint64_t reclamation::releases_ended() const noexcept {
  core_.mutex_.assert_held();
  return core_.releases_.ended();
}

std::string reclamation::shortage_text(bytes needed) {
  core_.mutex_.assert_held();
  return inspector_.report(needed, no_stream).text();
}

result<callback_answer> reclamation::ask_callbacks(pool_state& pool, thread_cache* own,
                                                   bytes needed) {
  core_.mutex_.assert_held();
  if (!callbacks_.any()) return callback_answer{};
  const std::uint64_t frees_before = core_.accounts_.total().frees;
  const auto device_before = core_.device_.memory_info();
  callback_answer answer{.asked = true};
  WEIR_TRY_VALUE(claimed, callbacks_.run(pool, needed));
  answer.claimed = claimed;
  {
    const thread_caches::stop stopped{core_.caches_, own};
    flusher_.settle_caches();
  }
  const auto device_after = core_.device_.memory_info();
  answer.live = core_.accounts_.total().allocated.current;
  answer.device_free = device_after ? device_after->free.count() : 0;
  answer.freed = core_.accounts_.total().frees != frees_before ||
                 (device_before && device_after && device_after->free > device_before->free);
  return answer;
}

result<bool> reclamation::wait_for_oldest(pool_state& asking, wait_bound& bound,
                                          driver_access& driver) {
  core_.mutex_.assert_held();
  if (core_.notice_ended_graphs()) return true;
  const bool was_behind = core_.order_.any_behind();
  WEIR_TRY_VALUE(any, progress_.poll_streams(driver, no_stream));
  if (any) return true;
  if (!core_.order_.paused() && !core_.order_.any_behind()) {
    // What a look completes without a mark is reached as well: the guards of a graph's pool, say.
    if (progress_.retire_unnoticed() || was_behind) return true;
    return captures_.wait_for_graphs(asking, bound, driver);
  }
  while (!core_.order_.paused() && core_.order_.any_behind()) {
    const auto until = bound.until(core_.order_);
    if (!until) return false;
    if (!core_.order_.any_behind(*until)) {
      bound.reached();
      continue;
    }
    const pool_hold held{core_, asking};
    const order::awaited_marks oldest = core_.order_.oldest_mark();
    if (oldest.empty()) {
      // Streams that cannot be marked: only a wait for all work tells about them.
      WEIR_TRY(progress_.wait_for_all_work(driver));
      if (core_.notice_ended_graphs()) return true;
      return !core_.order_.any_behind(*until);  // what completed nothing is not worth another
    }
    WEIR_TRY(progress_.wait_for(oldest, driver));
    return true;
  }
  return false;
}

}}}  // namespace weir::v0::heap

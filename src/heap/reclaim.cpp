// What a search for room asks of the heap.
#include <algorithm>
#include <utility>
#include <vector>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// Whether the blocks of a pool can lie apart and go when they are freed: not where graphs use them
/// again, where others give the memory, or where it is to be suspended.
bool is_checked(const pool_state& pool) noexcept {
  return !pool.of_graphs() && !pool.segments && !pool.suspendable;
}

}  // namespace

result<account_number> central_heap::prepare(pool_state& pool, bytes needed,
                                             driver_access& driver) {
  placement_.supply.forget();
  if (pool.where != residence::resident) [[unlikely]]
    WEIR_TRY(residency_.await_residence(pool, needed.count()));
  WEIR_TRY_VALUE(account, accounts_.number_of(pool.id, current_tag()));
  WEIR_TRY(make_table_room());
  if (!blocks_.prepare(4)) return no_host_memory();
  if (pool.memory == nullptr) {
    WEIR_TRY(driver.entered());
    WEIR_TRY_VALUE(store, make_backing_store(placement_, pool.id, traits_of(pool), driver.enter()));
    pool.memory = std::move(store);
  }
  return account;
}

store_traits central_heap::traits_of(const pool_state& pool) const {
  return {.policy = policy_,
          .exportable = exportable_ || pool.exportable,
          .one_slot_handles = pool.exportable,
          .moves = !pool.of_graphs(),
          .takes_addresses = pool.retains,
          .segments = pool.segments,
          .splits = pool.splits,
          .of_graphs = pool.of_graphs(),
          .suspendable = pool.suspendable.has_value(),
          .source = pool.source,
          .checks = is_checked(pool) ? checks_ : debug_checks::off,
          .quarantine = quarantine_};
}

void central_heap::flush_leftovers(thread_cache& own) noexcept {
  if (own.has_remote()) own.take_in_remote(blocks_);
  if (own.unplaced != no_block) flusher_.flush_unplaced(own);
  if (own.large != no_block) flusher_.flush_large(own);
}

bool central_heap::flush_others(thread_cache* own) noexcept {
  const thread_caches::stop stopped{caches_, own};
  return flusher_.flush_all();
}

result<bool> central_heap::retire_completed(stream_slot spared, pool_state& asking,
                                            driver_access& driver) {
  WEIR_TRY_VALUE(any, progress_.poll_streams(driver, spared));
  if (pools_to_sweep_) WEIR_TRY(pool_registry_.sweep(asking, driver));
  return any;
}

bool central_heap::any_pending_like(const request& wanted, const pool_state& pool) const noexcept {
  const auto& waiting = pending_.all();
  return std::any_of(waiting.begin(), waiting.end(), [&](const auto& each) {
    mutex_.assert_held();
    const block& block = blocks_[each.index];
    return block.units == wanted.units && each.freed.stream == wanted.stream &&
           accounts_.pool_of(block.account) == pool.id;
  });
}

void central_heap::retire_pending(driver_access& driver) noexcept { progress_.poll_marks(driver); }

bool central_heap::queues_waits() const noexcept { return placement_.queues_waits; }

result<bool> central_heap::take_pending_behind_waits(const request& wanted, const pool_state& pool,
                                                     driver_access& driver) {
  // The smallest that is large enough.
  if (pool.memory->inspects()) return false;  // it gives nothing again
  const auto& waiting = pending_.all();
  std::size_t best = waiting.size();
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    const block& candidate = blocks_[waiting[i].index];
    const bool fits =
        candidate.units >= wanted.units_with_alignment() && &pool_of(candidate) == &pool;
    if (!fits) continue;
    if (best == waiting.size() || candidate.units < blocks_[waiting[best].index].units) best = i;
  }
  if (best == waiting.size()) return false;
  const order::pending_frees::waiting& chosen = waiting[best];
  WEIR_TRY_VALUE(waits, placement_.wait(wanted.stream, chosen.freed, driver.enter()));
  if (!waits) return false;
  for (const stamp& each : chosen.others) {
    WEIR_TRY_VALUE(queued, placement_.wait_for_stream(wanted.stream, each, driver.enter()));
    if (!queued) return false;
  }
  // Behind the waits the stream may use it as if it had freed it itself.
  const block_index index = pending_.take(best).index;
  free_waited(index, order_.now(wanted.stream));
  return true;
}

result<fallback_room> central_heap::fit_in_fallback(const request& wanted) {
  for (const auto& each : pools_) {
    if (!each->is_fallback || each->memory == nullptr) continue;
    if (each->where != residence::resident) continue;
    WEIR_TRY_VALUE(account, accounts_.number_of(each->id, current_tag()));
    const block_index room = each->memory->fit(wanted);
    if (room != no_block) return fallback_room{each.get(), account, room};
  }
  return fallback_room{};
}

/// Whether the request could be met if all free memory went back to the driver. Otherwise nobody
/// should lose a cache for it.
result<bool> central_heap::release_can_help(const request& wanted, const pool_state& asking,
                                            driver_access& driver) {
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t free = unused(asking);
  if (size <= free + placement::planned_without_question) return true;
  const std::uint64_t granularity = device_.capabilities().granularity.count();
  if (granularity == 0) return true;  // no virtual memory: a segment is one call
  return can_take((size - free) / granularity * granularity, driver);
}

/// Whether the request could be met if the streams were done with all that was freed. Otherwise
/// nobody should wait for them: their work may need the very thread that asks.
result<bool> central_heap::wait_can_help(const request& wanted, const pool_state& asking,
                                         driver_access& driver) {
  const std::uint64_t size = wanted.units * unit;
  const std::uint64_t free = unused(asking) + accounts_.total().pending;
  if (size <= free) return true;
  if (asking.source != nullptr) return true;  // it may have more than the device says
  const std::uint64_t granularity = device_.capabilities().granularity.count();
  if (granularity == 0) return true;
  return can_take((size - free + granularity - 1) / granularity * granularity, driver);
}

std::uint64_t central_heap::unused(const pool_state& asking) const noexcept {
  std::uint64_t sum = 0;
  for (const auto& each : pools_) {
    const bool kept = each.get() != &asking && captures_.keeps_memory(*each);
    if (each->memory != nullptr && !kept) sum += each->memory->unused();
  }
  return sum;
}

result<bool> central_heap::can_take(std::uint64_t size, driver_access& driver) {
  if (!placement_.may_reserve(size)) return false;
  WEIR_TRY(driver.entered());
  return placement_.supply.can_give(size, {}, driver.enter());
}

/// A pool whose memory is on its way has it still, so nobody ends the pool meanwhile.
result<bytes> central_heap::release_from_others(pool_state& asking, bytes most,
                                                driver_access& driver) {
  const pool_hold held{*this, asking};
  for (pool_state* each = pools_.front().get(); each != nullptr; each = pool_behind(each->id)) {
    if (each == &asking || each->memory == nullptr || !each->may_release(order_)) continue;
    const auto released = each->memory->release(most, driver.enter());
    WEIR_TRY(usable());
    if (!released && each->source != nullptr) {
      report_error(released.error());  // the source's trouble, not that of the request
      continue;
    }
    if (!released || *released != bytes{}) return released;
  }
  return bytes{};
}

result<bytes> central_heap::release_own(pool_state& asking, driver_access& driver) {
  const pool_hold held{*this, asking};
  auto released = asking.memory->release(bytes::max(), driver.enter());
  WEIR_TRY(usable());
  return released;
}

result<bool> central_heap::await_releases(pool_state& asking) {
  const pool_hold held{*this, asking};
  const bool waited = wait_for_releases();
  WEIR_TRY(usable());
  return waited;
}

result<bool> central_heap::reclaim_cached(pool_state& asking, bytes needed, driver_access& driver) {
  flusher_.flush_caches();
  WEIR_TRY(progress_.poll_streams(driver, no_stream));
  WEIR_TRY(pool_registry_.sweep(asking, driver));
  WEIR_TRY_VALUE(released, release_from_others(asking, needed, driver));
  if (released != bytes{}) return true;
  return await_releases(asking);
}

std::string central_heap::shortage_text(bytes needed) {
  return inspector_.report(needed, no_stream).text();
}

result<bool> central_heap::ask_before_growth(pool_state& pool, bytes needed) {
  return callbacks_.run_before_growth(pool, needed);
}

result<callback_answer> central_heap::ask_callbacks(pool_state& pool, thread_cache* own,
                                                    bytes needed) {
  if (!callbacks_.any()) return callback_answer{};
  const std::uint64_t frees_before = accounts_.total().frees;
  const auto device_before = device_.memory_info();
  callback_answer answer{.asked = true};
  WEIR_TRY_VALUE(claimed, callbacks_.run(pool, needed));
  answer.claimed = claimed;
  {
    const thread_caches::stop stopped{caches_, own};
    flusher_.settle_caches();
  }
  const auto device_after = device_.memory_info();
  answer.freed = accounts_.total().frees != frees_before ||
                 (device_before && device_after && device_after->free > device_before->free);
  return answer;
}

result<bool> central_heap::wait_for_oldest(pool_state& asking, wait_bound& bound,
                                           driver_access& driver) {
  if (notice_ended_graphs()) return true;
  const bool was_behind = order_.any_behind();
  WEIR_TRY_VALUE(any, progress_.poll_streams(driver, no_stream));
  if (any) return true;
  if (!order_.paused() && !order_.any_behind()) {
    // What a look completes without a mark is reached as well: the guards of a graph's pool, say.
    if (progress_.retire_unnoticed() || was_behind) return true;
    return capture_pools_.wait_for_graphs(asking, bound, driver);
  }
  while (!order_.paused() && order_.any_behind()) {
    const auto until = bound.until(order_);
    if (!until) return false;
    if (!order_.any_behind(*until)) {
      bound.reached();
      continue;
    }
    const pool_hold held{*this, asking};
    const order::awaited_marks oldest = order_.oldest_mark();
    if (oldest.empty()) {
      // Streams that cannot be marked: only a wait for all work tells about them.
      WEIR_TRY(progress_.wait_for_all_work(driver));
      if (notice_ended_graphs()) return true;
      return !order_.any_behind(*until);  // what completed nothing is not worth another
    }
    WEIR_TRY(progress_.wait_for(oldest, driver));
    return true;
  }
  return false;
}

}}}  // namespace weir::v0::heap

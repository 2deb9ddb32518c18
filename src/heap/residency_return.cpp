// SPDX-License-Identifier: Apache-2.0
// Bringing pools back: the room for their memory, and the copies in.
#include <algorithm>
#include <list>
#include <new>
#include <utility>

#include "heap/residency.hpp"

namespace weir { inline namespace v0 { namespace heap {

result<resume_outcome> residency::resume(const pool_selection& which,
                                         const resume_options& options) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY_VALUE(meant, select_to_resume(which, nullptr));
  return resume_pools(meant, options, nullptr, !std::holds_alternative<all_pools>(which));
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// What is taken back is as good as resident for a stream that waits for the copies its carrier has
/// queued, and for others once the carrier is done. A progress callback cannot wait for that.
result<std::vector<pool_state*>> residency::select_to_resume(const pool_selection& which,
                                                             const stream_ref* ahead_of) {
  const bool in_order = take_back(which, ahead_of).in_order;
  const bool may_be_read = (ahead_of != nullptr && in_order) || heap_of_progress == &core_;
  const auto moves = +[](const pool_state& pool) { return pool.is_moving(); };
  const auto is_away = +[](const pool_state& pool) { return pool.is_moving() && !pool.taken_back; };
  WEIR_TRY_VALUE(meant, select(which, may_be_read ? is_away : moves));
  std::erase_if(meant, [](const pool_state* each) { return each->where != residence::suspended; });
  return meant;
}

result<resume_outcome> residency::resume_pools(const std::vector<pool_state*>& chosen,
                                               const resume_options& options,
                                               const stream_ref* ahead_of, bool evicts) {
  if (chosen.empty()) return resume_outcome{};
  WEIR_TRY(core_.usable());
  driver_access driver{core_.device_};
  WEIR_TRY(driver.entered());
  std::list<queued_move> returning(1);  // a node of its own, so that it can be queued in any case
  queued_move& move = returning.front();
  move.progress = move_progress{move_stage::returning};
  moving_pools& moves = move.pools;
  for (pool_state* const each : chosen) moves.push_back({.pool = each});
  for (moving_pool& each : moves) {
    if (each.pool->memory == nullptr) continue;
    WEIR_TRY_VALUE(plan, each.pool->memory->plan_resume());
    each.plan = std::move(plan);
    each.planned = true;
  }
  move.copies = backup_.take_copies();
  move.rights = core_.placement_.rights;
  move.evicts = evicts;
  begin(move, residence::resuming);
  for (const moving_pool& each : moves) move.pledged += each.plan.missing().count();
  const std::uint64_t needed = move.pledged;
  result<void> done = fit_under_limit(move, needed, driver);
  core_.placement_.pledged += needed;
  if (done) done = fit_on_device(move, needed, driver);
  resume_outcome outcome{.reserved = bytes{needed}, .restored = {}};
  static_cast<void>(core_.without_lock([&] {
    if (done) done = bring_back(move, options, ahead_of, outcome);
  }));
  if (done && ahead_of != nullptr) {
    enter_return(move, true);
    queued_.splice(queued_.end(), returning);
    if (start_carrier(move)) return outcome;
    const auto copied = finish_return(move);  // without a thread it is waited for here
    move.progress.advance(move_stage::ended);
    if (!copied) return copied.error();
    return outcome;
  }
  arrive(move, done.has_value());
  if (done) return outcome;
  return why_not_resumed(std::move(done).error(), needed);
}

/// Enters where the memory of a return is: there, though contents may still be copied, or not.
void residency::enter_return(queued_move& move, bool came) noexcept {
  core_.placement_.pledged -= std::exchange(move.pledged, 0);
  for (moving_pool& each : move.pools)
    if (std::exchange(each.planned, false)) each.pool->memory->apply(each.plan, !came);
}

/// Enters what became of a return.
void residency::arrive(queued_move& move, bool came) noexcept {
  enter_return(move, came);
  for (moving_pool& each : move.pools) {
    each.stays_away = !came;
    if (!came) continue;
    emit_moved(memory_event_kind::resumed, *each.pool, each.plan.size().count(), each.restored);
    backup_.drop(*each.pool);
  }
  settle(move);
  backup_.keep_copies(std::move(move.copies));
}

/// Room for what comes back, from what others cache, what may be evicted and what other processes
/// give. False: there is none.
result<bool> residency::make_room(const queued_move& move, std::uint64_t needed, wait_bound& waits,
                                  driver_access& driver) {
  pool_state& asking = *move.pools.front().pool;
  WEIR_TRY_VALUE(reclaimed, host_.reclaim_cached(asking, bytes{needed}, driver));
  if (reclaimed) return true;
  WEIR_TRY_VALUE(left, eviction_.await_leaving(&asking));
  if (left) return true;
  if (move.evicts) {
    WEIR_TRY_VALUE(evicted, eviction_.evict_for(&asking, needed, driver));
    if (evicted) return true;
  }
  WEIR_TRY_VALUE(given, ask_neighbours(move.pools, needed));
  if (given) return true;
  return host_.wait_for_oldest(asking, waits, driver);
}

result<bool> residency::ask_neighbours(const moving_pools& moves, std::uint64_t needed) {
  if (!core_.neighbours_.ask) return false;
  std::uint64_t missing = 0;
  for (const moving_pool& each : moves) missing += each.plan.missing().count();
  const auto ask = core_.neighbours_.ask;
  bool gave_way = false;
  WEIR_TRY(core_.without_lock([&] { gave_way = ask(bytes{std::max(missing, needed)}); }));
  return gave_way;
}

result<void> residency::fit_under_limit(const queued_move& move, std::uint64_t needed,
                                        driver_access& driver) try {
  wait_bound waits;
  while (!core_.placement_.may_reserve(needed)) {
    WEIR_TRY_VALUE(made, make_room(move, needed, waits, driver));
    if (!made) return error{{.code = errc::out_of_memory, .requested = bytes{needed}}};
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> residency::fit_on_device(const queued_move& move, std::uint64_t needed,
                                      driver_access& driver) try {
  wait_bound waits;
  for (;;) {
    core_.placement_.supply.forget();
    WEIR_TRY_VALUE(given, core_.placement_.supply.can_give(
                              needed, move.pools.front().plan.properties, driver.enter()));
    if (given) return {};
    WEIR_TRY_VALUE(made, make_room(move, needed, waits, driver));
    if (!made) return error{{.code = errc::out_of_memory, .requested = bytes{needed}}};
  }
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// Throws nothing: the pools are on their way. Creates and maps handle by handle. What is mapped is
/// copied in while the next ones are mapped. Then the copies are waited for: by the stream, or
/// here.
result<void> residency::bring_back(queued_move& move, const resume_options& options,
                                   const stream_ref* ahead_of, resume_outcome& outcome) noexcept
    try {
  moving_pools& moves = move.pools;
  backup_copies& copies = *move.copies;
  driver_access driver{core_.device_};
  WEIR_TRY(driver.entered());
  const context_scope& bound = driver.enter();
  std::uint64_t total = 0;
  for (const moving_pool& each : moves) total += size_of_all(each.pool->saved);
  copy_meter meter{options.progress, total, &core_};
  const auto copy_all = [&]() -> result<void> {
    for (moving_pool& each : moves) {
      const auto& saved = each.pool->saved;
      if (!saved.empty()) {
        WEIR_TRY(copies.begin(each.pool->saved_in, each.pool->chunk, meter, bound));
      }
      auto next = saved.begin();
      std::uint64_t start = 0;  // of what is mapped without a gap, and not copied yet
      std::uint64_t end = 0;
      const auto copy_in = [&]() -> result<void> {
        while (next != saved.end() && next->address + next->to.size <= start) ++next;
        for (auto range = next; range != saved.end() && range->address < end; ++range) {
          const std::uint64_t low = std::max(start, range->address);
          const std::uint64_t high = std::min(end, range->address + range->to.size);
          WEIR_TRY(
              copies.restore(low, {range->to.host + (low - range->address), high - low}, bound));
          outcome.restored += bytes{high - low};
          each.restored += high - low;
        }
        start = end;
        return {};
      };
      for (placement::suspended_place& place : each.plan.places) {
        WEIR_TRY(fill(place, each, move, driver));
        if (place.address != end) {
          WEIR_TRY(copy_in());
          start = place.address;
        }
        end = place.address + place.size.count();
        if (end - start >= each.pool->chunk.count()) WEIR_TRY(copy_in());
      }
      WEIR_TRY(copy_in());
      if (ahead_of != nullptr) continue;
      if (!saved.empty()) WEIR_TRY(copies.finish(bound));
      copies.drain(bound);
    }
    return ahead_of == nullptr ? result<void>{} : copies.precede(*ahead_of, bound);
  };
  result<void> done;
  try {
    done = copy_all();
  } catch (const std::bad_alloc&) {
    done = no_host_memory();
  }
  if (done) return done;
  if (!copies.drain(bound)) return done;  // under copies nothing is unmapped: it stays, as it came
  for (moving_pool& each : moves) {
    empty_places(each.plan, bound);
    const auto released = release_places(each.plan, bound);
    detail::report_failure(released);
  }
  return done;
} catch (const std::bad_alloc&) {
  return no_host_memory();  // nothing was begun
}

result<void> residency::fill(placement::suspended_place& place, const moving_pool& of,
                             const queued_move& move, driver_access& driver) {
  wait_bound waits;
  for (;;) {
    auto filled = fill_place(place, of.plan.properties, move.rights, driver.enter());
    if (filled || filled.code() != errc::out_of_memory) return filled;
    const detail::mutex_lock lock{core_.mutex_};
    auto made = [&]() -> result<bool> {
      core_.mutex_.assert_held();
      try {
        return make_room(move, place.size.count(), waits, driver);
      } catch (const std::bad_alloc&) {
        return no_host_memory();
      }
    }();
    if (!made) return std::move(made).error();
    if (!*made) return filled;
  }
}

error residency::why_not_resumed(error reason, std::uint64_t needed) {
  if (reason.code() != errc::out_of_memory) return reason;
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  reason.set_requested(bytes{needed});
  reason.set_detail(to_string(bytes{needed}) + " are needed to resume it; it stays suspended\n" +
                    host_.shortage_text(bytes{needed}));
  return reason;
}

}}}  // namespace weir::v0::heap

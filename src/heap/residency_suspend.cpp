// SPDX-License-Identifier: Apache-2.0
// Suspending: what leaves, who is waited for, and where the contents go.
#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "device/finished_work.hpp"
#include "heap/residency.hpp"
#include "order/all_work_wait.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

using placement::suspended_place;

bool all_mapped(const placement::suspension& plan) noexcept {
  return std::all_of(plan.places.begin(), plan.places.end(),
                     [](const suspended_place& each) { return each.mapped; });
}

/// The work of before is done.
result<void> plan_suspend(moving_pools& moves) try {
  for (moving_pool& each : moves) {
    if (each.pool->memory == nullptr) continue;
    WEIR_TRY_VALUE(plan, each.pool->memory->plan_suspend());
    each.plan = std::move(plan);
    each.planned = true;
    if (each.was_suspended) each.plan.contents.clear();
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// Everything of all pools, or nothing.
result<void> unmap_all(moving_pools& moves, const std::vector<vmm::access>& rights,
                       const context_scope& bound) noexcept {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    auto unmapped = unmap_places(moves[i].plan, rights, bound);
    if (unmapped) continue;
    while (i-- > 0) static_cast<void>(map_places(moves[i].plan, rights, bound));
    return unmapped;
  }
  return {};
}

}  // namespace

result<suspend_outcome> residency::suspend(const pool_selection& which,
                                           const suspend_options& options) try {
  WEIR_TRY(core_.usable());
  WEIR_TRY(check_options(options));
  const detail::mutex_lock lock{core_.mutex_};
  core_.notice_ended_graphs();
  WEIR_TRY_VALUE(meant, select(which, [](const pool_state& pool) { return pool.is_moving(); }));
  suspend_outcome outcome;
  WEIR_TRY_VALUE(chosen, choose(meant, which, outcome));
  if (chosen.empty()) return outcome;
  const bytes left = outcome.not_suspended;
  WEIR_TRY_VALUE(suspended, suspend_pools(chosen, options));
  suspended.not_suspended = left;
  return suspended;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<std::vector<pool_state*>> residency::choose(const std::vector<pool_state*>& meant,
                                                   const pool_selection& which,
                                                   suspend_outcome& outcome) const {
  const bool all = std::holds_alternative<all_pools>(which);
  std::vector<pool_state*> chosen;
  for (pool_state* const each : meant) {
    // What could not be released the last time is tried again.
    if (each->where == residence::suspended && each->reserved() == 0) continue;
    auto able = may_suspend(*each);
    if (able) {
      chosen.push_back(each);
    } else if (all && each->id != pool_id{}) {
      outcome.not_suspended += bytes{each->reserved()};
    } else {
      return std::move(able).error();
    }
  }
  return chosen;
}

result<void> residency::nobody_captures(driver_access& driver) {
  WEIR_TRY(driver.entered());
  WEIR_TRY_VALUE(capturing, host_.any_capturing(driver));
  if (!capturing) return {};
  return error{
      {.code = errc::capture_forbidden,
       .detail =
           "memory cannot be suspended while a stream is being captured; end the capture first"}};
}

result<suspend_outcome> residency::suspend_pools(const std::vector<pool_state*>& chosen,
                                                 const suspend_options& options) {
  WEIR_TRY(core_.usable());
  driver_access driver{core_.device_};
  WEIR_TRY(nobody_captures(driver));
  queued_move move{
      .options = options, .rights = core_.placement_.rights, .copies = backup_.take_copies()};
  for (pool_state* const each : chosen) move.pools.push_back({.pool = each});
  static_cast<void>(mark_users(move, driver));
  begin(move, residence::suspending);
  for (const moving_pool& each : move.pools) each.pool->requests = options.requests;
  return carry_out(move, driver);
}

/// Marks behind all work of the streams that the heap knows, and of all that synchronise with the
/// legacy stream. Whether that are all streams whose work counts.
bool residency::mark_users(queued_move& move, driver_access& driver) {
  auto work = core_.order_.events_behind_all(driver.enter());
  move.behind = std::move(work.marks);
  auto legacy = event::create(core_.device_, {.blocking_sync = true});
  const auto recorded =
      legacy ? detail::record_behind(*legacy, stream_ref::legacy(core_.device_), driver.enter())
             : result<bool>{false};
  if (!recorded || !*recorded) return false;
  move.behind.add(std::make_shared<event>(*std::move(legacy)));
  return work.complete;
}

/// From here on nothing is thrown: the pools are on their way, and the heap does not close before
/// they have arrived.
result<suspend_outcome> residency::carry_out(queued_move& move, driver_access& driver) {
  moving_pools& moves = move.pools;
  const suspend_options& options = move.options;
  result<void> done;
  static_cast<void>(core_.without_lock([&] { done = wait_for_users(move, driver); }));
  if (move.progress.is(move_stage::settled)) {  // called off
    backup_.keep_copies(std::move(move.copies));
    return suspend_outcome{};
  }
  move.progress.advance(move_stage::reading);
  // What growable memory parked: its memory would not go.
  if (done && core_.placement_.outside != nullptr)
    done = core_.placement_.outside->unmap_all(driver.enter());
  if (done) done = plan_suspend(moves);
  bool gone = false;
  static_cast<void>(core_.without_lock([&] {
    if (done && options.contents == suspended_contents::keep)
      done = save_contents(moves, options, *move.copies, driver.enter());
    if (done && commit(move)) {
      done = unmap_all(moves, move.rights, driver.enter());
      gone = done.has_value();
    }
    if (gone) {
      for (moving_pool& each : moves) {
        auto released = release_places(each.plan, driver.enter());
        if (!released && done) done = std::move(released);
      }
    }
    // It may hold the allocator: whoever sees that the pools have arrived can rely on its end.
    move.options.progress = nullptr;
  }));
  suspend_outcome outcome;
  for (moving_pool& each : moves) {
    const bool away = gone || each.was_suspended || !all_mapped(each.plan);
    each.stays_away = away;
    if (each.pool->memory != nullptr && each.planned) {
      const std::uint64_t before = each.pool->reserved();
      each.pool->memory->apply(each.plan, away);
      outcome.released += bytes{before - each.pool->reserved()};
    }
    if (away && !each.was_suspended) {
      emit_moved(memory_event_kind::suspended, *each.pool, each.pool->suspended_bytes(),
                 size_of_all(each.saved));
      outcome.saved += bytes{size_of_all(each.saved)};
      each.pool->saved = std::move(each.saved);
      each.pool->saved_in = options.to;
      each.pool->chunk = options.chunk;
    } else {
      for (const saved_range& range : each.saved) backup_.of(options.to).give(range.to);
    }
  }
  settle(move);
  backup_.keep_copies(std::move(move.copies));
  if (!done) return std::move(done).error();
  return outcome;
}

/// Waits for the work that may use the memory: of streams that were marked by their marks, then of
/// all others if that is wanted or a mark fails.
result<void> residency::wait_for_users(const queued_move& move, driver_access& driver) try {
  const auto reached = move.behind.wait();
  if (move.waits_for_all || !reached) WEIR_TRY(detail::wait_for_all_work(driver.enter()));
  for (const vmm::access& each : move.rights) {
    WEIR_TRY_VALUE(reaching, core_.home_->owner->device(device_id{each.location.id}));
    if (reaching == core_.device_) continue;
    const context_scope there{reaching};
    auto done = detail::wait_for_all_work(there);
    if (!done && !order::does_no_work(done.error())) return done;
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// Whether nobody called it off; afterwards nobody can.
bool residency::commit(queued_move& move) {
  const detail::mutex_lock lock{core_.mutex_};
  if (!move.progress.is(move_stage::reading)) return false;
  move.progress.advance(move_stage::committed);
  return true;
}

result<void> residency::save_contents(moving_pools& moves, const suspend_options& options,
                                      backup_copies& copies, const context_scope& bound) {
  auto done = [&]() -> result<void> {
    try {
      std::uint64_t total = 0;
      for (const moving_pool& each : moves)
        for (const placement::byte_range& range : each.plan.contents) total += range.size;
      if (total == 0) return {};
      std::vector<backup_piece> pieces;
      WEIR_TRY(backup_.of(options.to).take(total, pieces));
      std::size_t next = 0;
      // What is not in `saved` yet goes back if anything fails.
      struct rest {
        backup_memory& to;
        std::vector<backup_piece>& pieces;
        std::size_t& next;
        ~rest() {
          for (; next < pieces.size(); ++next) to.give(pieces[next]);
        }
      } const unused{backup_.of(options.to), pieces, next};
      copy_meter meter{options.progress, total, &core_};
      WEIR_TRY(copies.begin(options.to, options.chunk, meter, bound));
      for (moving_pool& each : moves) {
        each.saved.reserve(each.plan.contents.size() + pieces.size());
        for (placement::byte_range range : each.plan.contents) {
          while (range.size != 0) {
            backup_piece& from = pieces[next];
            const std::uint64_t size = std::min(range.size, from.size);
            each.saved.push_back({range.address, {from.host, size}});
            from.host += size;
            from.size -= size;
            if (from.size == 0) ++next;
            range.address += size;
            range.size -= size;
            WEIR_TRY(copies.save(each.saved.back().address, each.saved.back().to, bound));
          }
        }
      }
      return copies.finish(bound);
    } catch (const std::bad_alloc&) {
      return no_host_memory();
    }
  }();
  // Host memory that a copy may still write to must not serve others.
  if (!copies.drain(bound) && !done)
    for (moving_pool& each : moves) each.saved.clear();
  return done;
}

}}}  // namespace weir::v0::heap

// SPDX-License-Identifier: Apache-2.0
// Suspending and bringing back without waiting: what threads of the heap's carry on with.
//
// suspend_async leaves everything to the carrier of a queued_move, which begins when the work of
// before is done: of all streams, or of those that the allocator knows. resume_async makes and maps
// the memory and queues the copies; the carrier waits for them and enters that the memory is there.
// Until then the pool serves no request, so that nothing new lies where a copy is still to come.
//
// A suspension can be called off until its carrier has committed it: after the copies, and before
// the first unmap. Nothing has happened to the memory by then but that it was read. move_stage
// (queued_move.hpp) says how far a suspension or return is.
#include <algorithm>
#include <iterator>
#include <list>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/condition.hpp"
#include "base/signals_blocked.hpp"
#include "heap/carrier_scope.hpp"
#include "heap/residency.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// Waits for the end of a thread whose move is over. The thread itself does not wait: it ends the
/// heap at its own end, and is nobody's from then on.
void end_thread(std::thread& carrier) {
  if (!carrier.joinable()) return;
  if (carrier.get_id() == std::this_thread::get_id()) {
    carrier.detach();
  } else {
    carrier.join();
  }
}

}  // namespace

result<void> residency::suspend_async(const pool_selection& which,
                                      const suspend_options& options) try {
  WEIR_TRY(core_.usable());
  WEIR_TRY(check_options(options));
  join_carriers();
  std::list<queued_move> leaving;  // ends without the lock: a callback of the user's is in it
  const detail::mutex_lock lock{core_.mutex_};
  core_.notice_ended_graphs();
  WEIR_TRY_VALUE(meant, select(which, [](const pool_state& pool) {
                   return pool.is_moving() && !pool.is_leaving();
                 }));
  std::erase_if(meant, [](const pool_state* each) { return each->is_leaving(); });
  suspend_outcome outcome;
  WEIR_TRY_VALUE(chosen, choose(meant, which, outcome));
  if (chosen.empty()) return {};
  driver_access driver{core_.device_};
  WEIR_TRY(nobody_captures(driver));
  queued_move& move = leaving.emplace_back();
  move.options = options;
  move.rights = core_.placement_.rights;
  move.copies = backup_.take_copies();
  for (pool_state* const each : chosen) move.pools.push_back({.pool = each});
  const bool all_marked = mark_users(move, driver);
  move.waits_for_all = !all_marked || options.streams == awaited_streams::all;
  begin(move, residence::suspending);
  for (const moving_pool& each : move.pools) each.pool->requests = options.requests;
  queued_.splice(queued_.end(), leaving);
  if (start_carrier(move)) return {};
  settle(move);
  move.progress.advance(move_stage::ended);
  leaving.splice(leaving.end(), queued_, std::prev(queued_.end()));
  return error{
      {.code = errc::no_host_memory, .detail = "the background thread could not be started"}};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<resume_outcome> residency::resume_async(const pool_selection& which,
                                               const stream_ref& stream) try {
  WEIR_TRY(core_.usable());
  if (stream.device() != core_.device_)
    return error{{.code = errc::bad_stream,
                  .detail = "the stream belongs to another device than the allocator"}};
  WEIR_TRY_VALUE(capturing, stream.is_capturing());
  if (capturing) {
    return error{{.code = errc::capture_forbidden,
                  .detail = "a captured stream cannot wait for the copies; end the capture first"}};
  }
  join_carriers();
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY_VALUE(meant, select_to_resume(which, &stream));
  const bool host_takes_part = std::any_of(meant.begin(), meant.end(), [](const pool_state* each) {
    return !each->saved.empty() && each->saved_in == host_memory_kind::pageable;
  });
  return resume_pools(meant, {}, host_takes_part ? nullptr : &stream,
                      !std::holds_alternative<all_pools>(which));
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

residency::called_off residency::take_back(const pool_selection& which,
                                           const stream_ref* ahead_of) noexcept {
  called_off taken;
  for (queued_move& move : queued_) {
    if (!move.progress.is_revocable()) continue;
    const bool meant = std::all_of(move.pools.begin(), move.pools.end(), [&](const auto& each) {
      core_.mutex_.assert_held();
      return is_meant(*each.pool, which);
    });
    if (!meant) continue;
    if (!move.progress.is(move_stage::stopping)) taken.any = true;
    if (move.progress.is(move_stage::waiting)) {
      settle(move);
      continue;
    }
    if (move.progress.is(move_stage::reading)) {  // the carrier ends that
      move.progress.advance(move_stage::stopping);
      for (const moving_pool& each : move.pools) each.pool->taken_back = true;
    }
    taken.in_order = stop_copies(move, ahead_of) && taken.in_order;
  }
  return taken;
}

/// The carrier queues no more copies. What is queued on the stream, if one is given, waits for
/// those that it has queued.
bool residency::stop_copies(queued_move& move, const stream_ref* ahead_of) noexcept try {
  move.copies->stop();
  if (ahead_of == nullptr) return true;
  driver_access driver{core_.device_};
  const context_scope& bound = driver.enter();
  return bound && move.copies->precede(*ahead_of, bound);
} catch (const std::bad_alloc&) {
  return false;
}

bool residency::start_carrier(queued_move& move) noexcept {
  for (const moving_pool& each : move.pools) {
    each.pool->queued = true;
    each.pool->moved_by = {};
  }
  try {
    const detail::signals_blocked quiet;
    move.carrier = std::thread{[this, &move] {
      const carrier_scope carries{core_};
      carry(move);
    }};
    return true;
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  return false;
}

/// Body of a carrier's thread.
void residency::carry(queued_move& move) noexcept {
  result<void> outcome;
  {
    const detail::mutex_lock lock{core_.mutex_};
    outcome =
        move.progress.is(move_stage::returning) ? finish_return(move) : finish_suspension(move);
  }
  move.options.progress = nullptr;  // of a move that was called off
  detail::report_failure(outcome);  // whose handler may use the allocator
  const detail::mutex_lock lock{core_.mutex_};
  move.progress.advance(move_stage::ended);
}

result<void> residency::finish_suspension(queued_move& move) noexcept {
  driver_access driver{core_.device_};
  auto entered = driver.entered();
  if (!entered) {
    if (!move.progress.is(move_stage::settled)) settle(move);
    return entered;
  }
  auto suspended = carry_out(move, driver);
  if (!suspended) return std::move(suspended).error();
  return {};
}

/// The memory is there, and a stream waits for the copies.
result<void> residency::finish_return(queued_move& move) noexcept {
  result<void> copied;
  bool drained = false;
  static_cast<void>(core_.without_lock([&] {
    driver_access driver{core_.device_};
    const context_scope& bound = driver.enter();
    try {
      copied = bound ? move.copies->finish(bound) : result<void>{bound.error()};
    } catch (const std::bad_alloc&) {
      copied = no_host_memory();
    }
    drained = move.copies->drain(bound);
  }));
  // What a copy may still read must not serve others.
  if (!copied && !drained)
    for (const moving_pool& each : move.pools) each.pool->saved.clear();
  arrive(move, true);
  return copied;
}

/// Of those that are done, without the lock: a thread that ends may need it.
void residency::join_carriers() noexcept {
  std::list<queued_move> finished;
  {
    const detail::mutex_lock lock{core_.mutex_};
    for (auto each = queued_.begin(); each != queued_.end();) {
      const auto next = std::next(each);
      if (each->progress.is(move_stage::ended)) finished.splice(finished.end(), queued_, each);
      each = next;
    }
  }
  for (queued_move& each : finished) end_thread(each.carrier);
}

void residency::end() noexcept {
  core_.mutex_.assert_held();
  moved_.notify_all();  // threads that wait for memory to come back
  end_carriers();
}

/// Nothing is queued any more.
void residency::end_carriers() noexcept {
  static_cast<void>(take_back(all_pools{}));
  for (;;) {
    while (moving_ != 0) detail::wait_on(moved_, core_.mutex_);
    if (queued_.empty()) return;
    std::list<queued_move> rest;
    rest.splice(rest.end(), queued_);
    const detail::mutex_unlock unlocked{core_.mutex_};
    for (queued_move& each : rest) end_thread(each.carrier);
  }
}

}}}  // namespace weir::v0::heap

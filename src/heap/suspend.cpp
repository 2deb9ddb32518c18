// Suspending pools and bringing them back: who waits, who copies, and what a failure leaves.
//
// A pool that is suspended goes through four states (residence). A change is under way while it is
// `suspending` or `resuming`: one thread carries it out, most of it without the heap's lock, and
// the others wait for `moved_` or keep away from the pool's store.
//
//   suspend_pools    mutex_ |  nobody captures; requests are turned away; caches are flushed
//                    none   |    all work of the context is waited for, and of those of peers
//                    mutex_ |  plan_suspend
//                    none   |    contents are copied out; all is unmapped, or nothing; released
//                    mutex_ |  apply
//   resume_pools     mutex_ |  plan_resume; room under the limit
//                    none   |    created, mapped, copied in, each while the next is under way
//                    mutex_ |      what others cache is released where the driver has no more
//                    mutex_ |  apply, or back to where it was
//
// suspend_async.cpp has what a thread of the heap's carries on with.
#include <algorithm>
#include <new>
#include <utility>

#include "device/finished_work.hpp"
#include "heap/central_heap.hpp"
#include "order/all_work_wait.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

using placement::suspended_place;
using placement::suspension;

bool all_mapped(const suspension& plan) noexcept {
  return std::all_of(plan.places.begin(), plan.places.end(),
                     [](const suspended_place& each) { return each.mapped; });
}

std::uint64_t size_of_all(const std::vector<saved_range>& saved) noexcept {
  std::uint64_t total = 0;
  for (const saved_range& each : saved) total += each.to.size;
  return total;
}

}  // namespace

result<void> central_heap::check_options(const suspend_options& options) {
  if (options.chunk >= bytes{unit}) return {};
  return error{.code = errc::invalid_argument,
               .requested = options.chunk,
               .detail = "a chunk has at least 512 bytes"};
}

// --- Which pools ---------------------------------------------------------------------------------

pool_state* central_heap::pool_of(tag of) const noexcept {
  if (of.number() >= tag_pools_.size()) return nullptr;
  const pool_id id = tag_pools_[of.number()];
  return id == pool_id{} ? nullptr : find_pool(id);
}

result<void> central_heap::declare_suspendable(tag of, const suspendable_options& options) try {
  WEIR_TRY(usable());
  if (of == tag{}) {
    return error{.code = errc::invalid_argument, .detail = "memory without a tag is not apart"};
  }
  WEIR_TRY(check_options(options.eviction));
  if (!device_.capabilities().virtual_memory) {
    return error{.code = errc::not_supported, .detail = "the device has no virtual memory"};
  }
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  if (pool_state* const known = pool_of(of); known != nullptr) {
    known->suspendable = options;
    return {};
  }
  if (tag_pools_.size() <= of.number()) tag_pools_.resize(of.number() + std::size_t{1});
  pool_state& apart = add_pool(std::string{of.name()});
  apart.suspendable = options;
  tag_pools_[of.number()] = apart.id;
  // From here on no thread's cache serves the tag.
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  update_limits();
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

bool central_heap::is_meant(const pool_state& pool, const pool_selection& which) noexcept {
  if (const tag* const of = std::get_if<tag>(&which)) return &pool == pool_of(*of);
  if (const pool_id* const id = std::get_if<pool_id>(&which)) return pool.id == *id;
  return true;
}

result<std::vector<pool_state*>> central_heap::meant_by(const pool_selection& which) {
  WEIR_TRY(usable());
  std::vector<pool_state*> meant;
  for (const auto& each : pools_)
    if (is_meant(*each, which)) meant.push_back(each.get());
  if (meant.empty() && std::holds_alternative<tag>(which)) {
    return error{.code = errc::not_found,
                 .detail = "tag \"" + std::string{std::get<tag>(which).name()} +
                           "\" was not declared suspendable"};
  }
  if (meant.empty()) return errc::closed;
  return meant;
}

result<std::vector<pool_state*>> central_heap::select(const pool_selection& which,
                                                      bool (*is_awaited)(const pool_state&)) {
  for (;;) {
    WEIR_TRY_VALUE(meant, meant_by(which));
    const auto awaited = [&](const pool_state* each) { return is_awaited(*each); };
    if (std::none_of(meant.begin(), meant.end(), awaited)) return meant;
    WEIR_TRY(await_move());
  }
}

result<void> central_heap::may_suspend(const pool_state& pool) const {
  switch (placement::kind_of_store(traits_of(pool), device_)) {
    case placement::store_kind::arena:
      break;
    case placement::store_kind::segments:
      return error{.code = errc::not_supported,
                   .detail =
                       "memory in segments (the classic policies, and pools that were created "
                       "in segments) cannot be suspended"};
    case placement::store_kind::guarded:
      return error{.code = errc::not_supported,
                   .detail = "memory under heap_debug cannot be suspended"};
  }
  if (pool.handles_seen) {
    return error{.code = errc::not_supported,
                 .detail = "others may hold handles of the memory, which would not go away"};
  }
  return {};
}

// --- Requests to a pool that is away -------------------------------------------------------------

result<void> central_heap::await_residence(pool_state& pool, std::uint64_t needed) {
  const pool_hold held{*this, pool};
  while (pool.where != residence::resident) {
    WEIR_TRY(usable());
    const bool away = pool.where == residence::suspended;
    if ((away || pool.is_leaving()) && pool.requests == suspended_requests::fail) {
      return error{.code = errc::suspended,
                   .detail = pool.name.empty() ? std::string{"the allocator's own memory"}
                                               : "pool \"" + pool.name + "\""};
    }
    const bool comes_back = pool.requests == suspended_requests::resume;
    if (comes_back && away) {
      if (!could_fit(pool, needed)) {
        const std::uint64_t missing = std::max(needed, pool.suspended_bytes());
        return error{.code = errc::out_of_memory, .requested = bytes{missing}};
      }
      WEIR_TRY(resume_pools({&pool}, {}));
    } else if (!comes_back || !take_back(pool.id)) {
      WEIR_TRY(await_move());
    }
  }
  return usable();
}

// --- Changes -------------------------------------------------------------------------------------

void central_heap::begin_moves(std::vector<moving_pool>& moves, residence now) noexcept {
  for (moving_pool& each : moves) {
    each.was_suspended = each.pool->where == residence::suspended;
    each.pool->where = now;
    each.pool->moved_by = std::this_thread::get_id();
    ever_suspended_ = true;
    ++moving_;
    if (each.pool->id == pool_id{}) shut_caches(true);
  }
}

void central_heap::end_moves(std::vector<moving_pool>& moves) noexcept {
  for (const moving_pool& each : moves) {
    const bool away =
        each.pool->memory == nullptr ? each.stays_away : each.pool->memory->is_suspended();
    each.pool->where = away ? residence::suspended : residence::resident;
    each.pool->queued = false;
    each.pool->taken_back = false;
    each.pool->moved_by = {};
    --moving_;
    if (each.pool->id == pool_id{}) shut_caches(away);
    if (each.pool->holders == 0 && each.pool->blocks == 0) pools_to_sweep_ = true;
  }
  moves.clear();  // from here on the pools may go, or move again
  moved_.notify_all();
}

/// The allocator's own memory is in threads' caches, too: while it is away they are empty.
void central_heap::shut_caches(bool shut) noexcept {
  const thread_caches::stop stopped{caches_, own_cache()};
  caches_.set_reason(thread_cache::suspended, shut);
  settle_caches();
  if (shut) static_cast<void>(flush_all());
}

void central_heap::emit_moved(memory_event_kind kind, const pool_state& pool, std::uint64_t size,
                              std::uint64_t contents) const noexcept {
  std::uint16_t of = 0;
  for (std::size_t i = 0; i < tag_pools_.size(); ++i)
    if (tag_pools_[i] == pool.id && pool.id != pool_id{}) of = static_cast<std::uint16_t>(i);
  placement_.emit({.kind = kind, .tag = of, .pool = pool.id, .size = size, .rounded = contents});
}

std::unique_ptr<backup_copies> central_heap::take_copies() {
  if (idle_copies_.empty()) return std::make_unique<backup_copies>(device_, pinned_backup_);
  auto idle = std::move(idle_copies_.back());
  idle_copies_.pop_back();
  return idle;
}

void central_heap::keep_copies(std::unique_ptr<backup_copies> idle) noexcept {
  try {
    idle_copies_.push_back(std::move(idle));
  } catch (const std::bad_alloc&) {
  }
}

void central_heap::drop_saved(pool_state& pool) noexcept {
  for (const saved_range& each : pool.saved) backup(pool.saved_in).give(each.to);
  pool.saved.clear();
}

void central_heap::drop_saved(pool_state& pool, std::uint64_t start, std::uint64_t end) noexcept {
  auto& saved = pool.saved;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const saved_range whole = saved[i];
    const std::uint64_t low = std::max(start, whole.address);
    const std::uint64_t high = std::min(end, whole.address + whole.to.size);
    if (low >= high) continue;
    const saved_range upper{
        high, {whole.to.host + (high - whole.address), whole.address + whole.to.size - high}};
    if (upper.to.size != 0) {
      try {
        saved.insert(saved.begin() + static_cast<std::ptrdiff_t>(i) + 1, upper);
      } catch (const std::bad_alloc&) {
        return;  // it is dropped with the rest
      }
    }
    saved[i].to.size = low - whole.address;
    backup(pool.saved_in).give({whole.to.host + (low - whole.address), high - low});
    if (saved[i].to.size == 0) saved.erase(saved.begin() + static_cast<std::ptrdiff_t>(i--));
  }
}

// --- Suspending ----------------------------------------------------------------------------------

result<suspend_outcome> central_heap::suspend(const pool_selection& which,
                                              const suspend_options& options) try {
  WEIR_TRY(usable());
  WEIR_TRY(check_options(options));
  const detail::mutex_lock lock{mutex_};
  if (captures_.ended()) sweep_graphs();
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

result<std::vector<pool_state*>> central_heap::choose(const std::vector<pool_state*>& meant,
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

result<void> central_heap::nobody_captures(driver_access& driver) {
  WEIR_TRY(driver.entered());
  WEIR_TRY_VALUE(capturing, any_capturing(driver));
  if (!capturing) return {};
  return error{.code = errc::capture_forbidden,
               .detail = "a stream is being captured, and its work cannot be waited for"};
}

result<suspend_outcome> central_heap::suspend_pools(const std::vector<pool_state*>& chosen,
                                                    const suspend_options& options) {
  WEIR_TRY(usable());
  driver_access driver{device_};
  WEIR_TRY(nobody_captures(driver));
  queued_move move{.options = options, .rights = placement_.rights, .copies = take_copies()};
  for (pool_state* const each : chosen) move.pools.push_back({.pool = each});
  static_cast<void>(mark_users(move, driver));
  begin_moves(move.pools, residence::suspending);
  for (const moving_pool& each : move.pools) each.pool->requests = options.requests;
  return carry_out(move, driver);
}

/// Marks behind all work of the streams that the heap knows, and of all that synchronise with the
/// legacy stream. Whether that are all streams whose work counts.
bool central_heap::mark_users(queued_move& move, driver_access& driver) {
  auto work = order_.events_behind_all(driver.enter());
  move.behind = std::move(work.marks);
  auto legacy = event::create(device_, {.blocking_sync = true});
  const auto recorded =
      legacy ? detail::record_behind(*legacy, stream_ref::legacy(device_), driver.enter())
             : result<bool>{false};
  if (!recorded || !*recorded) return false;
  move.behind.add(std::make_shared<event>(*std::move(legacy)));
  return work.complete;
}

/// From here on nothing is thrown: the pools are on their way, and the heap does not close before
/// they have arrived.
result<suspend_outcome> central_heap::carry_out(queued_move& move, driver_access& driver) {
  moving_pools& moves = move.pools;
  const suspend_options& options = move.options;
  result<void> done;
  static_cast<void>(without_lock([&] { done = wait_for_users(move, driver); }));
  if (move.taken_back) {
    keep_copies(std::move(move.copies));
    return suspend_outcome{};
  }
  move.begun = true;
  if (done) done = plan_suspend(moves);
  bool gone = false;
  static_cast<void>(without_lock([&] {
    if (done && options.contents == suspended_contents::keep)
      done = save_contents(moves, options, *move.copies, driver.enter());
    if (done && commit(move)) {
      done = unmap_all(moves, move.rights, driver.enter());
      gone = done.has_value();
    }
    if (!gone) return;
    for (moving_pool& each : moves) {
      auto released = release_places(each.plan, driver.enter());
      if (!released && done) done = std::move(released);
    }
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
      for (const saved_range& range : each.saved) backup(options.to).give(range.to);
    }
  }
  end_moves(moves);
  keep_copies(std::move(move.copies));
  if (!done) return std::move(done).error();
  return outcome;
}

/// Waits for the work that may use the memory: of streams that were marked by their marks, then of
/// all others if that is wanted or a mark fails.
result<void> central_heap::wait_for_users(const queued_move& move, driver_access& driver) try {
  const auto reached = move.behind.wait();
  if (move.waits_for_all || !reached) WEIR_TRY(detail::wait_for_all_work(driver.enter()));
  for (const vmm::access& each : move.rights) {
    WEIR_TRY_VALUE(reaching, home_->owner->device(device_id{each.location.id}));
    if (reaching == device_) continue;
    const context_scope there{reaching};
    auto done = detail::wait_for_all_work(there);
    if (!done && !order::does_no_work(done.error())) return done;
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// Whether nobody took it back; afterwards nobody can.
bool central_heap::commit(queued_move& move) {
  const detail::mutex_lock lock{mutex_};
  move.committed = !move.taken_back;
  return move.committed;
}

/// The work of before is done.
result<void> central_heap::plan_suspend(std::vector<moving_pool>& moves) try {
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

result<void> central_heap::save_contents(std::vector<moving_pool>& moves,
                                         const suspend_options& options, backup_copies& copies,
                                         const context_scope& bound) {
  auto done = [&]() -> result<void> {
    try {
      std::uint64_t total = 0;
      for (const moving_pool& each : moves)
        for (const placement::byte_range& range : each.plan.contents) total += range.size;
      if (total == 0) return {};
      std::vector<backup_piece> pieces;
      WEIR_TRY(backup(options.to).take(total, pieces));
      std::size_t next = 0;
      // What is not in `saved` yet goes back if anything fails.
      struct rest {
        backup_memory& to;
        std::vector<backup_piece>& pieces;
        std::size_t& next;
        ~rest() {
          for (; next < pieces.size(); ++next) to.give(pieces[next]);
        }
      } const unused{backup(options.to), pieces, next};
      copy_meter meter{options.progress, total, this};
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

/// Everything of all pools, or nothing.
result<void> central_heap::unmap_all(std::vector<moving_pool>& moves,
                                     const std::vector<vmm::access>& rights,
                                     const context_scope& bound) noexcept {
  for (std::size_t i = 0; i < moves.size(); ++i) {
    auto unmapped = unmap_places(moves[i].plan, rights, bound);
    if (unmapped) continue;
    while (i-- > 0) static_cast<void>(map_places(moves[i].plan, rights, bound));
    return unmapped;
  }
  return {};
}

// --- Resuming ------------------------------------------------------------------------------------

result<resume_outcome> central_heap::resume(const pool_selection& which,
                                            const resume_options& options) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(meant, select_to_resume(which));
  return resume_pools(meant, options, nullptr, !std::holds_alternative<all_pools>(which));
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// What is taken back is as good as resident, though its carrier may still read it.
result<std::vector<pool_state*>> central_heap::select_to_resume(const pool_selection& which) {
  static_cast<void>(take_back(which));
  WEIR_TRY_VALUE(meant, select(which, [](const pool_state& pool) {
                   return pool.is_moving() && !pool.taken_back;
                 }));
  std::erase_if(meant, [](const pool_state* each) { return each->where != residence::suspended; });
  return meant;
}

result<resume_outcome> central_heap::resume_pools(const std::vector<pool_state*>& chosen,
                                                  const resume_options& options,
                                                  const stream_ref* ahead_of, bool evicts) {
  if (chosen.empty()) return resume_outcome{};
  WEIR_TRY(usable());
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  std::list<queued_move> returning(1);  // a node of its own, so that it can be queued in any case
  queued_move& move = returning.front();
  moving_pools& moves = move.pools;
  for (pool_state* const each : chosen) moves.push_back({.pool = each});
  for (moving_pool& each : moves) {
    if (each.pool->memory == nullptr) continue;
    WEIR_TRY_VALUE(plan, each.pool->memory->plan_resume());
    each.plan = std::move(plan);
    each.planned = true;
  }
  move.copies = take_copies();
  move.rights = placement_.rights;
  move.evicts = evicts;
  begin_moves(moves, residence::resuming);
  for (const moving_pool& each : moves) move.pledged += each.plan.missing().count();
  const std::uint64_t needed = move.pledged;
  result<void> done = fit_under_limit(move, needed, driver);
  placement_.pledged += needed;
  if (done) done = fit_on_device(move, needed, driver);
  resume_outcome outcome{.reserved = bytes{needed}, .restored = {}};
  static_cast<void>(without_lock([&] {
    if (done) done = bring_back(move, options, ahead_of, outcome);
  }));
  if (done && ahead_of != nullptr) {
    enter_return(move, true);
    queued_.splice(queued_.end(), returning);
    if (start_carrier(move)) return outcome;
    const auto copied = finish_return(move);  // without a thread it is waited for here
    move.done = true;
    if (!copied) return copied.error();
    return outcome;
  }
  arrive(move, done.has_value());
  if (done) return outcome;
  return why_not_resumed(std::move(done).error(), needed);
}

/// Enters where the memory of a return is: there, though contents may still be copied, or not.
void central_heap::enter_return(queued_move& move, bool came) noexcept {
  placement_.pledged -= std::exchange(move.pledged, 0);
  for (moving_pool& each : move.pools)
    if (std::exchange(each.planned, false)) each.pool->memory->apply(each.plan, !came);
}

/// Enters what became of a return.
void central_heap::arrive(queued_move& move, bool came) noexcept {
  enter_return(move, came);
  for (moving_pool& each : move.pools) {
    each.stays_away = !came;
    if (!came) continue;
    emit_moved(memory_event_kind::resumed, *each.pool, each.plan.size().count(), each.restored);
    drop_saved(*each.pool);
  }
  end_moves(move.pools);
  keep_copies(std::move(move.copies));
}

/// Room for what comes back, from what others cache, what may be evicted and what other processes
/// give. False: there is none.
result<bool> central_heap::make_room(const queued_move& move, std::uint64_t needed,
                                     wait_bound& waits, driver_access& driver) {
  flush_caches();
  WEIR_TRY(poll_streams(driver, no_stream));
  pool_state& asking = *move.pools.front().pool;
  WEIR_TRY(sweep_pools(asking, driver));
  WEIR_TRY_VALUE(released, release_from_others(asking, bytes{needed}, driver));
  if (released != bytes{}) return true;
  WEIR_TRY_VALUE(arrived, await_releases(asking));
  if (arrived) return true;
  WEIR_TRY_VALUE(left, await_leaving(&asking));
  if (left) return true;
  if (move.evicts) {
    WEIR_TRY_VALUE(evicted, evict_for(&asking, needed, driver));
    if (evicted) return true;
  }
  WEIR_TRY_VALUE(given, ask_neighbours(move.pools, needed));
  if (given) return true;
  return wait_for_oldest(asking, waits, driver);
}

result<bool> central_heap::ask_neighbours(const moving_pools& moves, std::uint64_t needed) {
  if (!neighbours_.ask) return false;
  std::uint64_t missing = 0;
  for (const moving_pool& each : moves) missing += each.plan.missing().count();
  const auto ask = neighbours_.ask;
  bool gave_way = false;
  WEIR_TRY(without_lock([&] { gave_way = ask(bytes{std::max(missing, needed)}); }));
  return gave_way;
}

result<void> central_heap::fit_under_limit(const queued_move& move, std::uint64_t needed,
                                           driver_access& driver) try {
  wait_bound waits;
  while (!placement_.may_reserve(needed)) {
    WEIR_TRY_VALUE(made, make_room(move, needed, waits, driver));
    if (!made) return error{.code = errc::out_of_memory, .requested = bytes{needed}};
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> central_heap::fit_on_device(const queued_move& move, std::uint64_t needed,
                                         driver_access& driver) try {
  wait_bound waits;
  for (;;) {
    placement_.supply.forget();
    WEIR_TRY_VALUE(given, placement_.supply.can_give(needed, move.pools.front().plan.properties,
                                                     driver.enter()));
    if (given) return {};
    WEIR_TRY_VALUE(made, make_room(move, needed, waits, driver));
    if (!made) return error{.code = errc::out_of_memory, .requested = bytes{needed}};
  }
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// Throws nothing: the pools are on their way. Creates and maps handle by handle. What is mapped is
/// copied in while the next ones are mapped. Then the copies are waited for: by the stream, or
/// here.
result<void> central_heap::bring_back(queued_move& move, const resume_options& options,
                                      const stream_ref* ahead_of, resume_outcome& outcome) noexcept
    try {
  moving_pools& moves = move.pools;
  backup_copies& copies = *move.copies;
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  const context_scope& bound = driver.enter();
  std::uint64_t total = 0;
  for (const moving_pool& each : moves) total += size_of_all(each.pool->saved);
  copy_meter meter{options.progress, total, this};
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
      for (suspended_place& place : each.plan.places) {
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

result<void> central_heap::fill(suspended_place& place, const moving_pool& of,
                                const queued_move& move, driver_access& driver) {
  wait_bound waits;
  for (;;) {
    auto filled = fill_place(place, of.plan.properties, move.rights, driver.enter());
    if (filled || filled.code() != errc::out_of_memory) return filled;
    const detail::mutex_lock lock{mutex_};
    auto made = [&]() -> result<bool> {
      mutex_.assert_held();
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

error central_heap::why_not_resumed(error reason, std::uint64_t needed) {
  if (reason.code != errc::out_of_memory) return reason;
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  reason.requested = bytes{needed};
  reason.detail = to_string(bytes{needed}) + " have to come back; it stays suspended\n" +
                  report(bytes{needed}, no_stream).text();
  return reason;
}

// --- Eviction ------------------------------------------------------------------------------------

bool central_heap::is_evictable_for(const pool_state& pool, const pool_state* asking) const {
  const auto& rules = pool.suspendable;
  if (!rules || !rules->evictable || pool.where != residence::resident) return false;
  if (&pool == asking || pool.reserved() == 0 || !may_suspend(pool)) return false;
  const bool bound_by_priority =
      asking != nullptr && asking->suspendable && asking->suspendable->evictable;
  return !bound_by_priority || rules->priority < asking->suspendable->priority;
}

/// Whether so much could be had under the limit and on the device if all were away that may be
/// evicted for it. What is on its way, or waits for streams, counts as away.
bool central_heap::fits_beside_live(const pool_state& asking, std::uint64_t needed) {
  const auto stays = [&](const pool_state& pool) {
    mutex_.assert_held();
    if (pool.memory == nullptr || pool.source != nullptr || pool.is_moving()) return false;
    if (pool.where == residence::suspended) return &pool == &asking;
    return !is_evictable_for(pool, &asking);
  };
  std::uint64_t kept = 0;
  for (const auto& each : pools_)
    if (stays(*each)) kept += each->memory->handed_out();
  for (const order::pending_frees::waiting& each : pending_.all()) {
    const block& waits = blocks_[each.index];
    if (stays(pool_of(waits))) kept -= std::min(kept, waits.size());
  }
  const std::uint64_t most = std::min(placement_.reserved_limit, placement_.supply.total());
  return kept <= most && needed <= most - kept;
}

/// The same without what threads cache, which counts as handed out.
bool central_heap::could_fit(const pool_state& asking, std::uint64_t needed) {
  if (fits_beside_live(asking, needed)) return true;
  flush_caches();
  return fits_beside_live(asking, needed);
}

result<bool> central_heap::evict_for(const pool_state* asking, std::uint64_t needed,
                                     driver_access& driver) {
  if (asking != nullptr && !could_fit(*asking, needed)) return false;
  std::vector<pool_id> tried;
  for (;;) {
    pool_state* victim = nullptr;
    for (const auto& each : pools_) {
      if (!is_evictable_for(*each, asking)) continue;
      if (std::find(tried.begin(), tried.end(), each->id) != tried.end()) continue;
      if (victim == nullptr || each->suspendable->priority < victim->suspendable->priority)
        victim = each.get();
    }
    if (victim == nullptr) return false;
    WEIR_TRY_VALUE(capturing, any_capturing(driver));
    if (capturing) return false;
    tried.push_back(victim->id);
    const suspend_options how = victim->suspendable->eviction;
    const auto outcome = suspend_pools({victim}, how);
    if (outcome && outcome->released != bytes{}) return true;
    WEIR_TRY(usable());
    // One whose contents find no place stays; the next one may go.
  }
}

result<bool> central_heap::evict(pool_state& asking, bytes needed, driver_access& driver) {
  const pool_hold held{*this, asking};
  WEIR_TRY_VALUE(left, await_leaving(&asking));
  if (left) return true;
  return evict_for(&asking, needed.count(), driver);
}

/// What is on its way out anyway comes before what would have to go, whoever suspends it. So does
/// what is on its way back and has all its memory: some of it may be free. False: nothing is, or a
/// progress callback asks, which cannot wait.
result<bool> central_heap::await_leaving(const pool_state* asking) {
  const auto self = std::this_thread::get_id();
  const auto leaves = [&](const auto& each) {
    if (each.get() == asking) return false;
    if (each->is_arriving()) return true;
    return each->where == residence::suspending && !each->taken_back && each->moved_by != self;
  };
  if (heap_of_progress == this || std::none_of(pools_.begin(), pools_.end(), leaves)) return false;
  WEIR_TRY(await_move());
  return true;
}

result<void> central_heap::await_arrivals() {
  const auto arrives = [](const auto& each) { return each->is_arriving(); };
  while (std::any_of(pools_.begin(), pools_.end(), arrives)) WEIR_TRY(await_move());
  return {};
}

// --- Host memory ---------------------------------------------------------------------------------

result<void> central_heap::reserve_backup(bytes size, host_memory_kind kind) try {
  WEIR_TRY(usable());
  const thread_capture_mode_guard relaxed{device_};
  return backup(kind).reserve(size.count());
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> central_heap::trim_backup() {
  WEIR_TRY(usable());
  const thread_capture_mode_guard relaxed{device_};
  WEIR_TRY_VALUE(pinned, pinned_backup_.trim());
  WEIR_TRY_VALUE(pageable, pageable_backup_.trim());
  return pinned + pageable;
}

result<bool> central_heap::is_suspended(const pool_selection& which) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(meant, meant_by(which));
  return std::all_of(meant.begin(), meant.end(),
                     [](const pool_state* each) { return each->where == residence::suspended; });
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

}}}  // namespace weir::v0::heap

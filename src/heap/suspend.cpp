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
#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"

namespace weir::inline v0::heap {
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

result<void> check_options(const suspend_options& options) {
  if (options.chunk >= bytes{unit}) return {};
  return error{.code = errc::invalid_argument,
               .requested = options.chunk,
               .detail = "a chunk has at least 512 bytes"};
}

}  // namespace

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

result<std::vector<pool_state*>> central_heap::select(const pool_selection& which) {
  for (;;) {
    WEIR_TRY(usable());
    std::vector<pool_state*> meant;
    bool moving = false;
    for (const auto& each : pools_) {
      if (!is_meant(*each, which)) continue;
      meant.push_back(each.get());
      moving = moving || each->is_moving();
    }
    if (meant.empty() && std::holds_alternative<tag>(which)) {
      return error{.code = errc::not_found,
                   .detail = "tag \"" + std::string{std::get<tag>(which).name()} +
                             "\" was not declared suspendable"};
    }
    if (meant.empty()) return errc::closed;
    if (!moving) return meant;
    moved_.wait(mutex_);
  }
}

result<void> central_heap::may_suspend(const pool_state& pool) {
  if (pool.memory != nullptr && !pool.memory->can_be_suspended()) {
    return error{.code = errc::not_supported, .detail = "memory in segments cannot be suspended"};
  }
  if (pool.handles_seen) {
    return error{.code = errc::not_supported,
                 .detail = "others may hold handles of the memory, which would not go away"};
  }
  return {};
}

// --- Requests to a pool that is away -------------------------------------------------------------

result<void> central_heap::await_residence(pool_state& pool) {
  struct held {
    pool_state& pool;
    explicit held(pool_state& kept) : pool{kept} { ++pool.holders; }
    ~held() { --pool.holders; }
  };
  const held kept{pool};  // so that it outlives the unlocked time
  while (pool.where != residence::resident) {
    WEIR_TRY(usable());
    if (pool.where == residence::suspended && pool.requests == suspended_requests::fail) {
      return error{.code = errc::suspended,
                   .detail = pool.name.empty() ? std::string{"the allocator's own memory"}
                                               : "pool \"" + pool.name + "\""};
    }
    if (pool.where == residence::suspended && pool.requests == suspended_requests::resume) {
      WEIR_TRY(resume_pools({&pool}));
    } else {
      moved_.wait(mutex_);
    }
  }
  return usable();
}

// --- Changes -------------------------------------------------------------------------------------

void central_heap::begin_moves(std::vector<moving_pool>& moves, residence now) noexcept {
  for (moving_pool& each : moves) {
    each.was_suspended = each.pool->where == residence::suspended;
    each.pool->where = now;
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
    --moving_;
    if (each.pool->id == pool_id{}) shut_caches(away);
    if (each.pool->holders == 0 && each.pool->blocks == 0) pools_to_sweep_ = true;
  }
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
  WEIR_TRY_VALUE(meant, select(which));
  const bool all = std::holds_alternative<all_pools>(which);
  std::uint64_t left = 0;
  std::vector<pool_state*> chosen;
  for (pool_state* const each : meant) {
    // What could not be released the last time is tried again.
    if (each->where == residence::suspended && each->reserved() == 0) continue;
    auto able = may_suspend(*each);
    if (able) {
      chosen.push_back(each);
    } else if (all && each->id != pool_id{}) {
      left += each->reserved();
    } else {
      return std::move(able).error();
    }
  }
  if (chosen.empty())
    return suspend_outcome{.released = {}, .saved = {}, .not_suspended = bytes{left}};
  auto outcome = suspend_pools(chosen, options);
  if (outcome) outcome->not_suspended = bytes{left};
  return outcome;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<suspend_outcome> central_heap::suspend_pools(const std::vector<pool_state*>& chosen,
                                                    const suspend_options& options) {
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  WEIR_TRY_VALUE(capturing, any_capturing(driver));
  if (capturing) {
    return error{.code = errc::capture_forbidden,
                 .detail = "a stream is being captured, and its work cannot be waited for"};
  }
  std::vector<moving_pool> moves;
  for (pool_state* const each : chosen) moves.push_back({.pool = each});
  auto copies = take_copies();
  const std::vector<vmm::access> rights = placement_.rights;
  begin_moves(moves, residence::suspending);
  for (const moving_pool& each : moves) each.pool->requests = options.requests;
  mutex_.unlock();
  result<void> done = wait_for_devices(rights);
  mutex_.lock();
  if (done) done = plan_suspend(moves);
  mutex_.unlock();
  if (done && options.contents == suspended_contents::keep)
    done = save_contents(moves, options, *copies, driver.enter());
  bool gone = false;
  if (done) {
    done = unmap_all(moves, rights, driver.enter());
    gone = done.has_value();
  }
  if (gone) {
    for (moving_pool& each : moves) {
      auto released = release_places(each.plan, driver.enter());
      if (!released && done) done = std::move(released);
    }
  }
  mutex_.lock();
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
  keep_copies(std::move(copies));
  if (!done) return std::move(done).error();
  return outcome;
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
      WEIR_TRY(copies.begin(options.to, options.chunk, bound));
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
  copies.drain(bound);
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

result<resume_outcome> central_heap::resume(const pool_selection& which) try {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(meant, select(which));
  std::erase_if(meant, [](const pool_state* each) { return each->where != residence::suspended; });
  return resume_pools(meant);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<resume_outcome> central_heap::resume_pools(const std::vector<pool_state*>& chosen) {
  if (chosen.empty()) return resume_outcome{};
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  std::vector<moving_pool> moves;
  for (pool_state* const each : chosen) moves.push_back({.pool = each});
  for (moving_pool& each : moves) {
    if (each.pool->memory == nullptr) continue;
    WEIR_TRY_VALUE(plan, each.pool->memory->plan_resume());
    each.plan = std::move(plan);
    each.planned = true;
  }
  auto copies = take_copies();
  const std::vector<vmm::access> rights = placement_.rights;
  begin_moves(moves, residence::resuming);
  std::uint64_t needed = 0;
  for (const moving_pool& each : moves) needed += each.plan.missing().count();
  result<void> done = fit_under_limit(moves, needed, driver);
  placement_.pledged += needed;
  mutex_.unlock();
  resume_outcome outcome;
  if (done) done = bring_back(moves, rights, *copies, outcome);
  mutex_.lock();
  placement_.pledged -= needed;
  for (moving_pool& each : moves) {
    each.stays_away = !done;
    if (each.planned) {
      const std::uint64_t before = each.pool->reserved();
      each.pool->memory->apply(each.plan, !done);
      if (done) outcome.reserved += bytes{each.pool->reserved() - before};
    }
    if (!done) continue;
    emit_moved(memory_event_kind::resumed, *each.pool, each.plan.size().count(), each.restored);
    drop_saved(*each.pool);
  }
  end_moves(moves);
  keep_copies(std::move(copies));
  if (done) return outcome;
  return why_not_resumed(std::move(done).error(), needed);
}

/// Room for what comes back, from what others cache and what may be evicted. False: there is none.
result<bool> central_heap::make_room(const std::vector<moving_pool>& moves, std::uint64_t needed,
                                     driver_access& driver) {
  flush_caches();
  WEIR_TRY(poll_streams(driver, no_stream));
  sweep_pools(driver);
  const pool_state& asking = *moves.front().pool;
  WEIR_TRY_VALUE(released, release_from_others(asking, bytes{needed}, driver));
  if (released != bytes{}) return true;
  return evict_for(asking, driver);
}

result<void> central_heap::fit_under_limit(const std::vector<moving_pool>& moves,
                                           std::uint64_t needed, driver_access& driver) try {
  while (!placement_.may_reserve(needed)) {
    WEIR_TRY_VALUE(made, make_room(moves, needed, driver));
    if (!made) return error{.code = errc::out_of_memory, .requested = bytes{needed}};
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// Creates and maps handle by handle. What is mapped is copied in while the next ones are mapped.
result<void> central_heap::bring_back(std::vector<moving_pool>& moves,
                                      const std::vector<vmm::access>& rights, backup_copies& copies,
                                      resume_outcome& outcome) {
  driver_access driver{device_};
  WEIR_TRY(driver.entered());
  const context_scope& bound = driver.enter();
  auto done = [&]() -> result<void> {
    for (moving_pool& each : moves) {
      const auto& saved = each.pool->saved;
      if (!saved.empty()) WEIR_TRY(copies.begin(each.pool->saved_in, each.pool->chunk, bound));
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
        WEIR_TRY(fill(place, each, moves, rights, driver));
        if (place.address != end) {
          WEIR_TRY(copy_in());
          start = place.address;
        }
        end = place.address + place.size.count();
        if (end - start >= each.pool->chunk.count()) WEIR_TRY(copy_in());
      }
      WEIR_TRY(copy_in());
      if (!saved.empty()) WEIR_TRY(copies.finish(bound));
      copies.drain(bound);
    }
    return {};
  }();
  if (done) return done;
  copies.drain(bound);
  for (moving_pool& each : moves) {
    empty_places(each.plan, bound);
    const auto released = release_places(each.plan, bound);
    detail::report_failure(released);
  }
  return done;
}

result<void> central_heap::fill(suspended_place& place, const moving_pool& of,
                                const std::vector<moving_pool>& moves,
                                const std::vector<vmm::access>& rights, driver_access& driver) {
  for (;;) {
    auto filled = fill_place(place, of.plan.properties, rights, driver.enter());
    if (filled || filled.code() != errc::out_of_memory) return filled;
    const detail::mutex_lock lock{mutex_};
    auto made = [&]() -> result<bool> {
      mutex_.assert_held();
      try {
        return make_room(moves, place.size.count(), driver);
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

result<bool> central_heap::evict_for(const pool_state& asking, driver_access& driver) {
  std::vector<pool_id> tried;
  for (;;) {
    pool_state* victim = nullptr;
    for (const auto& each : pools_) {
      const auto& rules = each->suspendable;
      if (!rules || !rules->evictable || each->where != residence::resident) continue;
      if (each.get() == &asking || each->reserved() == 0 || !may_suspend(*each)) continue;
      const bool bound_by_priority = asking.suspendable && asking.suspendable->evictable;
      if (bound_by_priority && rules->priority >= asking.suspendable->priority) continue;
      if (std::find(tried.begin(), tried.end(), each->id) != tried.end()) continue;
      if (victim == nullptr || rules->priority < victim->suspendable->priority) victim = each.get();
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

result<bool> central_heap::evict(pool_state& asking, driver_access& driver) {
  ++asking.holders;  // so that it outlives the unlocked time
  auto evicted = evict_for(asking, driver);
  --asking.holders;
  return evicted;
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
  WEIR_TRY_VALUE(meant, select(which));
  return std::all_of(meant.begin(), meant.end(),
                     [](const pool_state* each) { return each->where == residence::suspended; });
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

}  // namespace weir::inline v0::heap

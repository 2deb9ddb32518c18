// SPDX-License-Identifier: Apache-2.0
// Which pools are meant, and requests to pools that are away.
#include "heap/residency.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/condition.hpp"
#include "heap/carrier_scope.hpp"

namespace weir { inline namespace v0 { namespace heap {

residency::~residency() {
  // After a fork the threads are the parent's: nobody can join them, and they must not be
  // destroyed.
  if (core_.home_->forked() && !queued_.empty())
    static_cast<void>(new std::list<queued_move>{std::move(queued_)});
}

result<void> residency::check_options(const suspend_options& options) {
  if (options.chunk >= bytes{unit}) return {};
  return error{{.code = errc::invalid_argument,
                .requested = options.chunk,
                .detail = "chunk must be at least 512 bytes"}};
}

// --- Which pools ---------------------------------------------------------------------------------

pool_state* residency::suspendable_pool(tag of) const noexcept {
  core_.mutex_.assert_held();
  if (of.number() >= tag_pools_.size()) return nullptr;
  const pool_id id = tag_pools_[of.number()];
  return id == pool_id{} ? nullptr : core_.find_pool(id);
}

result<void> residency::declare_suspendable(tag of, const suspendable_options& options) try {
  WEIR_TRY(core_.usable());
  if (of == tag{}) {
    return error{{.code = errc::invalid_argument,
                  .detail = "untagged memory cannot be declared suspendable; pass a named tag"}};
  }
  WEIR_TRY(check_options(options.eviction));
  if (!core_.device_.capabilities().virtual_memory) {
    return error{{.code = errc::not_supported,
                  .detail = "the device does not support virtual memory management"}};
  }
  std::optional<suspendable_options> declared = options;  // the one before ends without the lock
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  if (pool_state* const known = suspendable_pool(of); known != nullptr) {
    std::swap(known->suspendable, declared);
    return {};
  }
  if (tag_pools_.size() <= of.number()) tag_pools_.resize(of.number() + std::size_t{1});
  pool_state& apart = core_.add_pool(std::string{of.name()});
  apart.suspendable = std::move(declared);
  tag_pools_[of.number()] = apart.id;
  // From here on no thread's cache serves the tag.
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  host_.update_limits();
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

bool residency::is_meant(const pool_state& pool, const pool_selection& which) const noexcept {
  if (const tag* const of = std::get_if<tag>(&which)) return &pool == suspendable_pool(*of);
  if (const pool_id* const id = std::get_if<pool_id>(&which)) return pool.id == *id;
  return true;
}

result<std::vector<pool_state*>> residency::meant_by(const pool_selection& which) {
  WEIR_TRY(core_.usable());
  std::vector<pool_state*> meant;
  for (const auto& each : core_.pools_)
    if (is_meant(*each, which)) meant.push_back(each.get());
  if (meant.empty() && std::holds_alternative<tag>(which)) {
    return error{{.code = errc::not_found,
                  .detail = "tag \"" + std::string{std::get<tag>(which).name()} +
                            "\" was not declared suspendable"}};
  }
  if (meant.empty()) return errc::closed;
  return meant;
}

result<std::vector<pool_state*>> residency::select(const pool_selection& which,
                                                   bool (*is_awaited)(const pool_state&)) {
  for (;;) {
    WEIR_TRY_VALUE(meant, meant_by(which));
    const auto awaited = [&](const pool_state* each) { return is_awaited(*each); };
    if (std::none_of(meant.begin(), meant.end(), awaited)) return meant;
    WEIR_TRY(await_move());
  }
}

result<void> residency::may_suspend(const pool_state& pool) const {
  switch (placement::kind_of_store(host_.traits_of(pool), core_.device_)) {
    case placement::store_kind::arena:
      break;
    case placement::store_kind::segments:
      return error{{.code = errc::not_supported,
                    .detail =
                        "memory in segments (the classic policies, and pools that were created "
                        "in segments) cannot be suspended"}};
    case placement::store_kind::guarded:
      return error{
          {.code = errc::not_supported, .detail = "memory under heap_debug cannot be suspended"}};
  }
  if (pool.handles_seen) {
    return error{
        {.code = errc::not_supported,
         .detail = "exportable memory cannot be suspended: other processes may hold its handles"}};
  }
  if (pool.lent != 0) {
    return error{{.code = errc::not_supported,
                  .detail = "growable memory holds pages of the allocator's own memory; suspend or "
                            "decommit it first"}};
  }
  return {};
}

result<bool> residency::is_suspended(const pool_selection& which) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY_VALUE(meant, meant_by(which));
  return std::all_of(meant.begin(), meant.end(),
                     [](const pool_state* each) { return each->where == residence::suspended; });
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

// --- Requests to a pool that is away -------------------------------------------------------------

result<void> residency::await_residence(pool_state& pool, std::uint64_t needed) {
  core_.mutex_.assert_held();
  const pool_hold held{core_, pool};
  while (pool.where != residence::resident) {
    WEIR_TRY(core_.usable());
    const bool away = pool.where == residence::suspended;
    if ((away || pool.is_leaving()) && pool.requests == suspended_requests::fail) {
      return error{{.code = errc::suspended,
                    .detail = pool.name.empty() ? std::string{"the allocator's default pool"}
                                                : "pool \"" + pool.name + "\""}};
    }
    const bool comes_back = pool.requests == suspended_requests::resume;
    if (comes_back && away) {
      if (!eviction_.could_fit(pool, needed)) {
        const std::uint64_t missing = std::max(needed, pool.suspended_bytes());
        return error{{.code = errc::out_of_memory, .requested = bytes{missing}}};
      }
      WEIR_TRY(resume_pools({&pool}, {}));
    } else if (!comes_back || !take_back(pool.id).any) {
      WEIR_TRY(await_move());
    }
  }
  return core_.usable();
}

// --- Waiting for pools on their way --------------------------------------------------------------

result<void> residency::may_wait() const {
  if (heap_of_progress != &core_) return {};
  return error{
      {.code = errc::not_permitted,
       .detail = "a progress callback cannot wait for a suspend or resume in progress, nor close "
                 "the allocator; do it after suspend() or resume() has returned"}};
}

result<void> residency::may_end() const {
  WEIR_TRY(may_wait());
  if (!carrier_scope::is_for(core_)) return {};
  return error{{.code = errc::not_permitted,
                .detail = "a callback of suspend_async() or resume_async() cannot close the "
                          "allocator; close it on another thread"}};
}

result<void> residency::await_move() {
  WEIR_TRY(may_wait());
  {
    const order::unnamed_stream others_name_theirs{core_.order_};
    detail::wait_on(moved_, core_.mutex_);
  }
  return core_.usable();
}

result<void> residency::await_moves() {
  core_.mutex_.assert_held();
  while (moving_ != 0) WEIR_TRY(await_move());
  return {};
}

result<void> residency::await_arrivals() {
  core_.mutex_.assert_held();
  const auto arrives = [](const auto& each) { return each->is_arriving(); };
  while (std::any_of(core_.pools_.begin(), core_.pools_.end(), arrives)) WEIR_TRY(await_move());
  return {};
}

// --- Changes -------------------------------------------------------------------------------------

void residency::begin(queued_move& move, residence now) noexcept {
  for (moving_pool& each : move.pools) {
    each.was_suspended = each.pool->where == residence::suspended;
    each.pool->where = now;
    each.pool->moved_by = std::this_thread::get_id();
    peak_.begin();
    ++moving_;
    if (each.pool->id == pool_id{}) shut_caches(true);
  }
}

void residency::settle(queued_move& move) noexcept {
  for (const moving_pool& each : move.pools) {
    const bool away =
        each.pool->memory == nullptr ? each.stays_away : each.pool->memory->is_suspended();
    each.pool->where = away ? residence::suspended : residence::resident;
    each.pool->queued = false;
    each.pool->taken_back = false;
    each.pool->moved_by = {};
    --moving_;
    if (each.pool->id == pool_id{}) shut_caches(away);
    if (each.pool->holders == 0 && each.pool->blocks == 0) core_.pools_to_sweep_ = true;
  }
  move.pools.clear();  // from here on the pools may go, or move again
  move.progress.advance(move_stage::settled);
  moved_.notify_all();
}

/// The allocator's own memory is in threads' caches, too: while it is away they are empty.
void residency::shut_caches(bool shut) noexcept {
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  core_.caches_.set_reason(thread_cache::suspended, shut);
  host_.settle_caches();
  if (shut) static_cast<void>(host_.flush_all());
}

void residency::emit_moved(memory_event_kind kind, const pool_state& pool, std::uint64_t size,
                           std::uint64_t contents) const noexcept {
  std::uint16_t of = 0;
  for (std::size_t i = 0; i < tag_pools_.size(); ++i)
    if (tag_pools_[i] == pool.id && pool.id != pool_id{}) of = static_cast<std::uint16_t>(i);
  core_.placement_.emit(
      {.kind = kind, .tag = of, .pool = pool.id, .size = size, .rounded = contents});
}

}}}  // namespace weir::v0::heap

// Requests that the thread's cache cannot serve.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/allocator_state.hpp"
#include "heap/ladder.hpp"
#include "weir/base/checked.hpp"

namespace weir::inline v0::heap {
namespace {

result<request> make_request(bytes size, bytes alignment) {
  if (!is_power_of_two(alignment.count()) || alignment > bytes{std::uint64_t{2} << 20}) {
    return error{.code = errc::bad_alignment,
                 .requested = size,
                 .detail = "an alignment is a power of two of at most 2 MiB"};
  }
  const std::uint64_t units = units_for(size);
  if (units > most_units) return error{.code = errc::size_overflow, .requested = size};
  return request{.units = static_cast<std::uint32_t>(units),
                 .alignment = static_cast<std::uint32_t>(
                     alignment.count() <= unit ? 1 : alignment.count() / unit)};
}

}  // namespace

result<void*> allocator_state::allocate(bytes size, const stream_ref& stream, bytes alignment,
                                        const pool* from) try {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(wanted, make_request(size, alignment));
  if (size == bytes{}) return nullptr;
  thread_cache* const cache = local();
  WEIR_TRY_VALUE(who, identify(stream, cache));
  const bool chosen = from != nullptr;
  if (!chosen) {
    const pool* const scope = routed();
    if (scope != nullptr && scope->is_of(*this)) from = scope;
  }

  std::optional<capture_status> capturing;
  if (cache != nullptr && from == nullptr && wanted.alignment == 1 && who.id != stream_id{}) {
    if (cache->asks_captures()) {
      WEIR_TRY_VALUE(now, who.ref.capture());
      capturing = now.status;
    }
    if (capturing != capture_status::active) {
      void* const hit = allocate_cached(*cache, size, who.id,
                                        thread_cache::capturing | thread_cache::closer_look);
      if (hit != nullptr) return hit;
    }
  }
  std::unique_lock lock{mutex_};
  return allocate_locked(lock, size, wanted, who, {.from = from, .chosen_by_user = chosen},
                         capturing);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void*> allocator_state::allocate_at(std::uint64_t address, bytes size,
                                           const stream_ref& stream, const pool& from) try {
  WEIR_TRY(usable());
  if (address == 0 || size == bytes{}) return errc::invalid_argument;
  if (address % unit != 0) {
    return error{.code = errc::bad_alignment, .detail = "blocks begin at multiples of 512 bytes"};
  }
  WEIR_TRY_VALUE(wanted, make_request(size, bytes{unit}));
  WEIR_TRY_VALUE(who, identify(stream, local()));
  std::unique_lock lock{mutex_};
  return allocate_locked(lock, size, wanted, who,
                         {.from = &from, .chosen_by_user = true, .address = address}, {});
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<pool_state*> allocator_state::route(const pool* from) {
  if (from == nullptr) return pools_.front().get();
  pool_state* const chosen = find_pool(from->id());
  if (chosen == nullptr || !from->is_of(*this)) return errc::already_freed;
  return chosen;
}

result<void> allocator_state::make_table_room() {
  if (!table_.full()) [[likely]]
    return {};
  const thread_caches::stop stopped{caches_, own_cache()};
  if (!table_.grow()) return no_host_memory();
  return {};
}

result<void*> allocator_state::allocate_locked(std::unique_lock<std::mutex>& lock, bytes size,
                                               const request& wanted, const caller& who,
                                               const destination& where,
                                               std::optional<capture_status> capturing) {
  WEIR_TRY(usable());
  if (captures_.ended()) sweep_graphs();
  driver_access driver{device_};
  request complete = wanted;
  WEIR_TRY_VALUE(slot, slot_of(who, driver));
  complete.stream = slot;
  const order::named_stream named{order_, slot};
  WEIR_TRY_VALUE(chosen, route(where.from));
  if (!capturing && (captures_.any_declared() || detect_captures_)) {
    WEIR_TRY(driver.entered());
    WEIR_TRY_VALUE(now, who.ref.capture(driver.enter()));
    capturing = now.status;
  }

  const tag what = current_tag();
  if (!accounts_.may_allocate(what, complete.units * unit)) {
    accounts_.failed(chosen->id, what);
    return error{.code = errc::limit_exceeded,
                 .requested = size,
                 .detail = "tag \"" + std::string{what.name()} + "\" may have " +
                           to_string(bytes{accounts_.limit(what)})};
  }
  thread_cache* const cache = where.from == nullptr ? own_cache() : nullptr;
  const bool pool_is_fixed = where.chosen_by_user || chosen->retains;
  ladder search{*this, lock, driver, complete, *chosen, who.ref, cache, pool_is_fixed};
  if (capturing) WEIR_TRY(search.know_capture(*capturing));
  WEIR_TRY_VALUE(found,
                 where.address == 0 ? search.find_room() : search.find_room_at(where.address));
  if (found == no_block) {
    accounts_.failed(search.pool().id, what);
    core_.tell({.kind = memory_event_kind::out_of_memory,
                .tag = what.number(),
                .pool = search.pool().id,
                .stream = order_.id(slot),
                .size = size.count(),
                .rounded = complete.units * unit});
    return error{.code = errc::out_of_memory,
                 .requested = size,
                 .detail = to_string(bytes{core_.reserved}) + " are reserved, " +
                           to_string(bytes{accounts_.total().allocated.current}) + " live"};
  }
  hand_out(found, size, search.account(), search.pool(), order_.id(slot), cache);
  if (!search.pool().retains) share_if_due();
  return reinterpret_cast<void*>(blocks_[found].address);
}

void allocator_state::hand_out(block_index which, bytes size, account_number account,
                               pool_state& from, stream_id stream, thread_cache* cache) noexcept {
  block& what = blocks_[which];
  what.recorded = false;
  what.account = account;
  what.out.waste = static_cast<std::uint32_t>(what.size() - size.count());
  what.out.next = no_block;
  what.out.home = 0;
  table_.insert(what.address, which);
  if (thread_cache* const own = own_cache(); own != nullptr && account < own->delta_count) {
    // All tags together: what one freed in the cache another may have taken there.
    for (std::uint32_t i = 0; i < own->delta_count; ++i)
      if (i != account) accounts_.fold(static_cast<account_number>(i), own->deltas[i]);
    accounts_.allocated(account, size.count(), what.size(), own->deltas[account]);
  } else {
    accounts_.allocated(account, size.count(), what.size());
  }
  ++from.blocks;
  if (cache != nullptr && !is_private(account)) {
    cache->most_units.store(caches_.bound_at(core_.reserved), std::memory_order_relaxed);
    // So that the free finds its place; without host memory it goes to the store instead.
    count_in(*cache, account);
    if (account < cache->delta_count && what.units <= most_binned_units)
      what.out.home = cache->home();
    static_cast<void>(ensure_bins(*cache, stream, what.stream));
  }
  if (core_.observer != nullptr)
    emit(core_.observer, memory_event_kind::allocate, what, stream, account);
}

void allocator_state::count_in(thread_cache& cache, account_number account) noexcept {
  const std::uint32_t before = cache.delta_count;
  if (account < before || !cache.make_room(account)) return;
  for (std::uint32_t i = before; i < cache.delta_count; ++i)
    cache.limits[i] = accounts_.limited(static_cast<std::uint16_t>(i));
}

void allocator_state::emit(event_sink* to, memory_event_kind kind, const block& what,
                           stream_id stream, account_number account) const noexcept {
  to->on_event({.kind = kind,
                .tag = is_private(account) ? accounts_.tag_of(account).number() : account,
                .device = device_.id(),
                .pool = is_private(account) ? accounts_.pool_of(account) : pool_id{},
                .stream = stream,
                .address = what.address,
                .size = what.size() - what.out.waste,
                .rounded = what.size()});
}

}  // namespace weir::inline v0::heap

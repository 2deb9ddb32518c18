// SPDX-License-Identifier: Apache-2.0
// Requests that the thread's cache cannot serve.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"
#include "heap/room_search.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

result<request> make_request(bytes size, bytes alignment) {
  if (!is_power_of_two(alignment.count()) || alignment > bytes{std::uint64_t{2} << 20}) {
    return error{{.code = errc::bad_alignment,
                  .requested = size,
                  .detail = "alignment must be a power of two of at most 2 MiB"}};
  }
  const std::uint64_t units = units_for(size);
  if (units > most_units) return error{{.code = errc::size_overflow, .requested = size}};
  return request{.units = static_cast<std::uint32_t>(units),
                 .alignment = static_cast<std::uint32_t>(
                     alignment.count() <= unit ? 1 : alignment.count() / unit),
                 .waste = static_cast<std::uint32_t>(units * unit - size.count())};
}

}  // namespace

result<void*> central_heap::slow_allocate(bytes size, const stream_ref& stream, bytes alignment,
                                          const pool* from) try {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(wanted, make_request(size, alignment));
  if (size == bytes{}) return nullptr;
  thread_cache* const cache = local();
  WEIR_TRY_VALUE(caller, heap::identify(*this, stream, cache));
  const bool chosen = from != nullptr;
  if (!chosen) from = scoped_pool();

  std::optional<capture_status> capturing;
  if (cache != nullptr && from == nullptr && wanted.alignment == 1 && caller.id != stream_id{}) {
    if (cache->asks_captures()) {
      WEIR_TRY_VALUE(now, caller.ref.capture());
      capturing = now.status;
    }
    if (capturing != capture_status::active) {
      void* const hit = cached_allocate(*cache, size, caller.id,
                                        thread_cache::capturing | thread_cache::closer_look);
      if (hit != nullptr) return hit;
    }
  }
  const detail::mutex_lock lock{mutex_};
  ++trail_.locks;
  return allocate_locked(size, wanted, caller, {.from = from, .chosen_by_user = chosen}, capturing);
} catch (const callback_exception& passed) {
  std::rethrow_exception(passed.thrown);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void*> central_heap::allocate_at(std::uint64_t address, bytes size, const stream_ref& stream,
                                        const pool& from) try {
  WEIR_TRY(usable());
  if (address == 0 || size == bytes{}) return errc::invalid_argument;
  if (address % unit != 0) {
    return error{
        {.code = errc::bad_alignment, .detail = "the address must be a multiple of 512 bytes"}};
  }
  WEIR_TRY_VALUE(wanted, make_request(size, bytes{unit}));
  WEIR_TRY_VALUE(caller, heap::identify(*this, stream, local()));
  const detail::mutex_lock lock{mutex_};
  return allocate_locked(size, wanted, caller,
                         {.from = &from, .chosen_by_user = true, .address = address}, {});
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<pool_state*> central_heap::route(const pool* from) {
  if (from == nullptr) {
    pool_state* const apart =
        residency_.any_tag_pool() ? residency_.suspendable_pool(current_tag()) : nullptr;
    return apart != nullptr ? apart : pools_.front().get();
  }
  pool_state* const chosen = find_pool(from->id());
  if (chosen == nullptr || !from->is_of(*this)) return errc::closed;
  return chosen;
}

result<void*> central_heap::allocate_locked(bytes size, const request& wanted,
                                            const identified_stream& stream, const destination& to,
                                            std::optional<capture_status> capturing) {
  WEIR_TRY(usable());
  notice_ended_graphs();
  driver_access driver{device_};
  request complete = wanted;
  WEIR_TRY_VALUE(slot, slot_of(*this, stream, driver));
  complete.stream = slot;
  order_.add_request(slot);
  const order::named_stream named{order_, slot};
  // What waits for a later call; its trouble is not that of the request.
  if (checks_ != debug_checks::off) static_cast<void>(checked_frees_.inspect_freed(driver));
  pool_state* chosen = pools_.front().get();
  if (!to.whole_handle) {
    WEIR_TRY_VALUE(routed, route(to.from));
    chosen = routed;
  }
  if (!capturing && (captures_.any_declared() || detect_captures_)) {
    WEIR_TRY(driver.entered());
    WEIR_TRY_VALUE(now, stream.ref.capture(driver.enter()));
    capturing = now.status;
  }
  if (to.whole_handle && capturing == capture_status::active) {
    return error{{.code = errc::capture_forbidden,
                  .detail = "growable memory is committed before the capture begins"}};
  }

  const tag tag = current_tag();
  thread_cache* const cache = to.from == nullptr ? own_cache() : nullptr;
  const bool pool_is_fixed = to.chosen_by_user || chosen->for_graphs;
  room_search search{reclamation_, driver, complete, *chosen, stream.ref, cache, pool_is_fixed};
  if (capturing) WEIR_TRY(search.know_capture(*capturing));
  const auto count_failure = [&] {
    mutex_.assert_held();
    try {
      static_cast<void>(accounts_.number_of(search.pool().id, tag));  // a tag's first request
    } catch (const std::bad_alloc&) {  // then it does not count as the tag's
    }
    accounts_.failed(search.pool().id, tag);
    placement_.emit({.kind = memory_event_kind::out_of_memory,
                     .tag = tag.number(),
                     .pool = search.pool().id,
                     .stream = order_.id(slot),
                     .size = size.count(),
                     .rounded = complete.units * unit});
  };
  const auto fail = [&](inspector::refusal by = inspector::refusal::no_memory) {
    mutex_.assert_held();
    count_failure();
    return inspector_.no_room(by, size, tag, slot);
  };
  if (!accounts_.may_allocate(tag, complete.units * unit))
    return fail(inspector::refusal::tag_limit);
  // No search can help a request that is larger than the device. A source may have more.
  if (complete.units * unit > placement_.supply.total() && search.pool().source == nullptr)
    return fail();
  result<block_index> room = no_block;
  try {
    const accounts::claim claimed{accounts_, tag, complete.units * unit};
    room = to.address != 0    ? search.find_room_at(to.address)
           : to.only_free_now ? search.find_free_room()
                              : search.find_room();
  } catch (const callback_exception&) {
    count_failure();
    throw;
  }
  suspended_peak_.note_growth();
  trail_.last = search.last_rung();
  if (!room && room.code() == errc::out_of_memory) count_failure();
  if (!room) return std::move(room).error();
  const block_index index = *room;
  if (index == no_block && to.only_free_now) return errc::not_found;
  if (index == no_block) return fail();
  if (search.missed()) accounts_.missed(search.account());
  const bytes given = to.whole_handle ? bytes{blocks_[index].size()} : size;
  hand_out(index, given, search.account(), search.pool(), order_.id(slot),
           to.whole_handle ? nullptr : cache);
  if (!search.pool().for_graphs) progress_.share_if_due();
  return reinterpret_cast<void*>(blocks_[index].address);
}

/// From the store to the user.
void central_heap::enter_block(block& block, block_index index, bytes size, account_number account,
                               pool_state& from) noexcept {
  // Who took the record for that of an earlier block sees the new address with it: claim().
  std::atomic_thread_fence(std::memory_order_release);
  become_live(block, account, size.count(), block.size());
  block.out.next = no_block;
  block.out.home = 0;
  table_.insert(block.address, index);
  // Whatever the account: what the thread freed into its cache is not live beside the block.
  if (thread_cache* const own = own_cache()) flusher_.fold(*own);
  accounts_.allocated(account, size.count(), block.size());
  ++from.blocks;
}

void central_heap::hand_out(block_index index, bytes size, account_number account, pool_state& from,
                            stream_id stream, thread_cache* cache) noexcept {
  block& block = blocks_[index];
  enter_block(block, index, size, account, from);
  if (cache != nullptr && !is_private(account)) {
    cache->most_units.store(caches_.bound_at(placement_.reserved), std::memory_order_relaxed);
    // So that the free finds its place; without host memory it goes to the store instead.
    count_in(*cache, account);
    if (cache->counts(account) && block.units <= most_binned_units) block.out.home = cache->home();
    static_cast<void>(flusher_.ensure_bins(*cache, stream, block.stream));
  }
  emit(memory_event_kind::allocate, block, stream, account);
}

void central_heap::count_more_in(thread_cache& cache, account_number account) noexcept {
  const std::uint32_t before = cache.delta_count;
  flusher_.fold(cache);
  if (!cache.make_room(account)) return;
  for (std::uint32_t i = before; i < cache.delta_count; ++i)
    cache.limits[i] = is_apart(static_cast<std::uint16_t>(i));
}

void central_heap::emit_to_observer(memory_event_kind kind, const block& block, stream_id stream,
                                    account_number account) const noexcept {
  placement_.observer->on_event(
      {.kind = kind,
       .tag = is_private(account) ? accounts_.tag_of(account).number() : account,
       .device = device_.id(),
       .pool = is_private(account) ? accounts_.pool_of(account) : pool_id{},
       .stream = stream,
       .address = block.address,
       .size = block.size() - block.out.waste,
       .rounded = block.size()});
}

}}}  // namespace weir::v0::heap

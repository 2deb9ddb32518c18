// The thread's cache beyond the quick path: any of its streams, large blocks, other threads'
// blocks.
#include "heap/allocator_state.hpp"
#include "order/mutation.hpp"

namespace weir::inline v0::heap {

stream_id allocator_state::quick_id(const stream_ref& stream,
                                    const thread_cache& cache) const noexcept {
  if (stream.known_id() != stream_id{}) return stream.known_id();
  if (stream.is_legacy()) return legacy_stream_;
  return stream.is_per_thread() ? cache.per_thread_stream : stream_id{};
}

/// Which of the two quick paths is worth trying from now on.
void allocator_state::look_for_observer(const thread_cache& own) const noexcept {
  here.unobserved = own.is_observed() ? 0 : serial_;
}

void* allocator_state::allocate_closely(bytes size, const stream_ref& stream) noexcept {
  thread_cache* const cache = own_cache();
  if (cache == nullptr || stream.device() != device_) return nullptr;
  look_for_observer(*cache);
  const stream_id id = quick_id(stream, *cache);
  if (id == stream_id{}) return nullptr;
  void* const hit = allocate_cached(*cache, size, id, thread_cache::closer_look);
  return hit != nullptr ? hit : allocate_plainly(*cache, size, id);
}

/// The commonest request beyond the caches: nothing to ask, nothing to grow, room at once.
void* allocator_state::allocate_plainly(thread_cache& cache, bytes size,
                                        stream_id stream) noexcept {
  const std::uint64_t units = units_for(size);
  if (units == 0 || units > most_units) return nullptr;
  const account_number account = observe::thread_tag.number();
  const brief_lock lock{mutex_};
  const std::uint32_t reasons = cache.attention.load(std::memory_order_relaxed);
  stream_bins* const bins = cache.bins_of(stream);
  pool_state& from = *pools_.front();
  if ((reasons & ~thread_cache::closer_look) != 0 || bins == nullptr || !cache.counts(account) ||
      from.memory == nullptr || table_.full() || captures_.ended())
    return nullptr;
  if (cache.unplaced != no_block) static_cast<void>(hand_back_unplaced(cache));
  if (cache.large != no_block) static_cast<void>(hand_back_large(cache));
  const block_index which = from.memory->fit(
      {.units = static_cast<std::uint32_t>(units), .alignment = 1, .stream = bins->slot});
  if (which == no_block) return nullptr;
  hand_out(which, size, account, from, stream, &cache);
  share_if_due();
  return reinterpret_cast<void*>(blocks_[which].address);
}

bool allocator_state::deallocate_closely(void* pointer, const stream_ref* stream,
                                         bytes expected) noexcept {
  thread_cache* const cache = own_cache();
  if (cache == nullptr) return false;
  look_for_observer(*cache);
  stream_id id{};
  if (stream != nullptr) {
    id = quick_id(*stream, *cache);
    if (id == stream_id{} || stream->device() != device_) return false;
  }
  return deallocate_cached(*cache, pointer, id, expected, thread_cache::closer_look) ||
         deallocate_plainly(*cache, pointer, id, expected);
}

/// The commonest free beyond the caches: they are full, and hand over what they have longest.
bool allocator_state::deallocate_plainly(thread_cache& cache, void* pointer, stream_id stream,
                                         bytes expected) noexcept {
  const brief_lock lock{mutex_};
  const std::uint32_t reasons = cache.attention.load(std::memory_order_relaxed);
  if ((reasons & ~thread_cache::closer_look) != 0) return false;
  const block_index which = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  block& what = blocks_[which];
  const std::uint64_t requested = what.size() - what.out.waste;
  const bool plain = what.is() == block_kind::live && !what.recorded && cache.counts(what.account);
  if (!plain || (expected != any_size && expected.count() != requested)) return false;
  stream_bins* const bins =
      stream != stream_id{} ? cache.bins_of(stream) : cache.bins_of(what.stream);
  if (bins == nullptr) return false;
  if (core_.observer != nullptr)
    emit(core_.observer, memory_event_kind::deallocate, what, bins->id, what.account);
  cache.count_free(what.account, requested, what.size());
  if (keep(cache, which, bins->slot, bins->id)) {
    share_if_due();
    return true;
  }
  fold(cache);  // what others may have must not count as ours
  what.become(block_kind::pending);
  give_back(which, order_.now(bins->slot));
  share_if_due();
  return true;
}

void* allocator_state::allocate_cached(thread_cache& cache, bytes size, stream_id stream,
                                       std::uint32_t accepted) noexcept {
  const std::uint64_t units = units_for(size);
  const account_number account = observe::thread_tag.number();
  if (!cache.enter(accepted)) return nullptr;
  const auto leave_with_nothing = [&] {
    cache.leave();
    return nullptr;
  };
  stream_bins* const bins =
      mutated(mutation::cache_of_any_stream) ? cache.current : cache.bins_of(stream);
  if (bins == nullptr || !cache.counts(account)) return leave_with_nothing();

  block_index which = no_block;
  if (units <= most_binned_units) {
    if (bins->heads[units] == no_block && cache.has_remote()) cache.take_in_remote(blocks_);
    which = bins->heads[units];
    if (which == no_block) return leave_with_nothing();
    bins->heads[units] = blocks_[which].out.next;
    cache.units -= units;
  } else {
    which = cache.large;
    const bool fits =
        which != no_block && cache.large_units == units &&
        (blocks_[which].stream == bins->slot || mutated(mutation::large_block_of_any_stream));
    if (!fits) return leave_with_nothing();
    cache.large = no_block;
    cache.large_units = 0;
  }
  block& what = blocks_[which];
  const std::uint64_t rounded = units * unit;
  what.become(block_kind::live);
  what.account = account;
  what.out.waste = static_cast<std::uint32_t>(rounded - size.count());
  cache.count_allocation(account, size.count(), rounded);
  void* const address = reinterpret_cast<void*>(what.address);
  if (cache.observer != nullptr)
    emit(cache.observer, memory_event_kind::allocate, what, bins->id, account);
  cache.leave();
  return address;
}

bool allocator_state::deallocate_cached(thread_cache& cache, void* pointer, stream_id stream,
                                        bytes expected, std::uint32_t accepted) noexcept {
  if (!cache.enter(accepted)) return false;
  const auto leave_it = [&] {
    cache.leave();
    return false;
  };
  const block_index which = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  if (which == no_block) return leave_it();
  block& what = blocks_[which];
  if (what.is() != block_kind::live || what.recorded || !cache.counts(what.account))
    return leave_it();
  const std::uint64_t requested = what.size() - what.out.waste;
  if (expected != any_size && expected.count() != requested) return leave_it();
  stream_bins* const bins =
      stream != stream_id{} ? cache.bins_of(stream) : cache.bins_of(what.stream);
  if (bins == nullptr) return leave_it();

  const bool binned = what.units <= most_binned_units;
  const std::uint16_t home = what.out.home;
  if (binned && home != cache.number && home != 0)
    return free_for_another(cache, which, *bins, *caches_.at(home));
  if (binned) {
    if (cache.units + what.units > cache.bound()) return leave_it();
    cache.units += what.units;
    what.out.home = cache.home();
    bins->push(which, what);
  } else {
    if (cache.large != no_block) return leave_it();
    cache.large = which;
    cache.large_units = what.units;
  }
  what.become(block_kind::thread_cached);
  what.stream = bins->slot;
  cache.count_free(what.account, requested, what.size());
  if (cache.observer != nullptr)
    emit(cache.observer, memory_event_kind::deallocate, what, bins->id, what.account);
  cache.leave();
  return true;
}

/// The block came through another thread's cache: that gets it back, and counts it.
bool allocator_state::free_for_another(thread_cache& cache, block_index which, stream_bins& bins,
                                       thread_cache& owner) noexcept {
  block& what = blocks_[which];
  // Two threads that free the same block meet here.
  auto was = block_kind::live;
  if (!what.kind.compare_exchange_strong(was, block_kind::thread_cached,
                                         std::memory_order_relaxed)) {
    cache.leave();
    return false;
  }
  what.stream = bins.slot;
  // Before the push: behind it the block may be anybody's.
  if (cache.observer != nullptr)
    emit(cache.observer, memory_event_kind::deallocate, what, bins.id, what.account);
  what.out.ahead = cache.left_before(which);
  const bool taken = owner.push_remote(which, what);
  if (!taken) cache.leave_unplaced(which, what);
  const bool enough = !taken && cache.has_enough_unplaced();
  cache.leave();
  if (enough) hand_over_unplaced(cache);
  return true;
}

}  // namespace weir::inline v0::heap

// SPDX-License-Identifier: Apache-2.0
// The thread's cache beyond the fast path: any of its streams, large blocks, other threads'
// blocks.
#include "heap/fast_path.hpp"

#include <utility>

#include "heap/spin_then_lock.hpp"

namespace weir { inline namespace v0 { namespace heap {

void central_heap::emit_own(event_sink& sink, memory_event_kind kind, const block& block,
                            stream_id stream) const noexcept {
  sink.on_event({.kind = kind,
                 .tag = block.account,
                 .device = device_.id(),
                 .stream = stream,
                 .address = block.address,
                 .size = block.size() - block.out.waste,
                 .rounded = block.size()});
}

stream_id central_heap::fast_id(const stream_ref& stream,
                                const thread_cache& cache) const noexcept {
  if (stream.known_id() != stream_id{}) return stream.known_id();
  if (stream.is_legacy()) return legacy_stream_;
  return stream.is_per_thread() ? cache.per_thread_stream : stream_id{};
}

/// Which of the two fast paths is worth trying from now on.
void central_heap::note_observer(const thread_cache& own) const noexcept {
  this_thread.unobserved = own.is_observed() ? 0 : serial_;
}

void* central_heap::allocate_without_driver(bytes size, const stream_ref& stream) noexcept {
  thread_cache* const cache = own_serving_cache();
  if (cache == nullptr || stream.device() != device_) return nullptr;
  note_observer(*cache);
  const stream_id id = fast_id(stream, *cache);
  if (id == stream_id{}) return nullptr;
  // What the fast path saw just now is not looked at again: only others' frees can have come in.
  const bool missed = std::exchange(this_thread.missed_units, 0) == units_for(size) &&
                      this_thread.missed_stream == id;
  if (!missed || cache->has_remote()) {
    void* const hit = cached_allocate(*cache, size, id, thread_cache::closer_look);
    if (hit != nullptr) return hit;
  }
  return locked_fit(*cache, size, id);
}

/// The commonest request beyond the caches: nothing to ask, nothing to grow, room at once.
void* central_heap::locked_fit(thread_cache& cache, bytes size, stream_id stream) noexcept {
  const std::uint64_t units = units_for(size);
  if (units == 0 || units > most_units) return nullptr;
  const account_number account = observe::thread_tag.number();
  const spin_then_lock lock{mutex_};
  ++trail_.locks;
  const std::uint32_t reasons = cache.attention.load(std::memory_order_relaxed);
  pool_state& from = *pools_.front();
  if ((reasons & ~thread_cache::closer_look) != 0 || !cache.counts(account) ||
      from.memory == nullptr || table_.full() || captures_.ended())
    return nullptr;
  const stream_bins* const bins = cache.bins_of(stream);
  const stream_slot slot = bins != nullptr ? bins->slot : order_.meet_again(stream);
  if (slot == no_stream) return nullptr;
  if (bins == nullptr) {
    // Nobody has looked yet at what other threads freed, and the store may not know the stream.
    if (cache.has_remote() || !flusher_.prepare_store_for(slot)) return nullptr;
  }
  const request wanted{.units = static_cast<std::uint32_t>(units), .alignment = 1, .stream = slot};
  if (!pending_.empty() && reclamation_.any_pending_like(wanted, from))
    return nullptr;  // the driver knows whether it still waits
  if (cache.unplaced != no_block) flusher_.flush_unplaced(cache);
  if (cache.large != no_block) flusher_.flush_large(cache);
  const block_index index = from.memory->fit(wanted);
  if (index == no_block) return nullptr;
  trail_.last = rung::free_range;
  order_.add_request(slot);
  // As hand_out() does where the cache is known to count the account.
  block& block = blocks_[index];
  enter_block(block, index, size, account, from);
  cache.most_units.store(caches_.bound_at(placement_.reserved), std::memory_order_relaxed);
  if (units <= most_binned_units) block.out.home = cache.home();
  if (bins == nullptr) static_cast<void>(flusher_.ensure_bins(cache, stream, slot));
  emit(memory_event_kind::allocate, block, stream, account);
  progress_.share_if_due();
  return reinterpret_cast<void*>(block.address);
}

bool central_heap::free_without_driver(void* pointer, const stream_ref* stream,
                                       bytes expected) noexcept {
  thread_cache* const cache = own_serving_cache();
  if (cache == nullptr) return false;
  note_observer(*cache);
  stream_id id{};
  if (stream != nullptr) {
    id = fast_id(*stream, *cache);
    if (id == stream_id{} || stream->device() != device_) return false;
  }
  return cached_free(*cache, pointer, id, expected, thread_cache::closer_look) ||
         locked_free(*cache, pointer, id, expected);
}

/// The commonest free beyond the caches: they are full, and hand over what they have longest.
bool central_heap::locked_free(thread_cache& cache, void* pointer, stream_id stream,
                               bytes expected) noexcept {
  const spin_then_lock lock{mutex_};
  ++trail_.locks;
  const std::uint32_t reasons = cache.attention.load(std::memory_order_relaxed);
  if ((reasons & ~thread_cache::closer_look) != 0) return false;
  const block_index index = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  block& block = blocks_[index];
  const std::uint64_t requested = block.size() - block.out.waste;
  const bool plain =
      block.is() == block_kind::live && !block.is_recorded() && cache.counts(block.account);
  if (!plain || (expected != any_size && expected.count() != requested)) return false;
  const stream_id on = stream != stream_id{} ? stream : order_.id(block.stream);
  const stream_bins* const bins = cache.bins_of(on);
  // A stream that is new, or cannot be asked any more, has no slot here.
  const stream_slot slot = bins != nullptr ? bins->slot : order_.meet_again(on);
  if (slot == no_stream || (bins == nullptr && !flusher_.prepare_store_for(slot))) return false;
  if (!flusher_.begin_free(index)) return false;
  emit(memory_event_kind::deallocate, block, on, block.account);
  cache.count_free(block.account, requested, block.size());
  if (flusher_.keep(cache, index, slot, on)) {
    progress_.share_if_due();
    return true;
  }
  flusher_.fold(cache);  // what others may have must not count as ours
  block.become(block_kind::pending);
  free_to_store(index, order_.now(slot));
  progress_.share_if_due();
  return true;
}

void* central_heap::cached_allocate(thread_cache& cache, bytes size, stream_id stream,
                                    std::uint32_t accepted) noexcept {
  const std::uint64_t units = units_for(size);
  const account_number account = observe::thread_tag.number();
  if (!cache.enter(accepted)) return nullptr;
  const auto leave_with_nothing = [&] {
    cache.leave();
    return nullptr;
  };
  stream_bins* const bins = cache.bins_of(stream);
  if (bins == nullptr || !cache.counts(account)) return leave_with_nothing();

  block_index index = no_block;
  if (units <= most_binned_units) {
    if (bins->heads[units] == no_block && cache.has_remote()) cache.take_in_remote(blocks_);
    index = bins->heads[units];
    if (index == no_block) return leave_with_nothing();
    bins->heads[units] = blocks_[index].out.next;
    cache.units -= units;
  } else {
    index = cache.large;
    const bool fits =
        index != no_block && cache.large_units == units && blocks_[index].stream == bins->slot;
    if (!fits) return leave_with_nothing();
    cache.large = no_block;
    cache.large_units = 0;
  }
  block& block = blocks_[index];
  const std::uint64_t rounded = units * unit;
  become_live(block, account, size.count(), rounded);
  cache.count_allocation(account, size.count(), rounded);
  void* const address = reinterpret_cast<void*>(block.address);
  if (cache.observer != nullptr)
    emit_own(*cache.observer, memory_event_kind::allocate, block, bins->id);
  cache.leave();
  return address;
}

bool central_heap::cached_free(thread_cache& cache, void* pointer, stream_id stream, bytes expected,
                               std::uint32_t accepted) noexcept {
  if (!cache.enter(accepted)) return false;
  const auto leave_it = [&] {
    cache.leave();
    return false;
  };
  const block_index index = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  if (index == no_block) return leave_it();
  block& block = blocks_[index];
  if (block.is() != block_kind::live || !cache.counts(block.account)) return leave_it();
  if (expected != any_size && expected.count() != block.size() - block.out.waste) return leave_it();
  stream_bins* const bins =
      stream != stream_id{} ? cache.bins_of(stream) : cache.bins_of(block.stream);
  if (bins == nullptr) return leave_it();

  const std::uint16_t home = block.out.home;
  if (block.units <= most_binned_units) {
    if (home != cache.number && home != 0)
      return free_to_owner(cache, index, *bins, reinterpret_cast<std::uint64_t>(pointer));
    if (cache.units + block.units > cache.bound()) return leave_it();
    if (home != 0) {
      block.become(block_kind::thread_cached);  // its own: without a read-modify-write
    } else {
      if (!claim(block, reinterpret_cast<std::uint64_t>(pointer))) return leave_it();
      if (block.out.home != 0) {
        withdraw(block);
        return leave_it();
      }
      if (!decide(block)) return leave_it();
      block.out.home = cache.home();
    }
    cache.units += block.units;
    bins->push(index, block);
  } else {
    // One that is recorded has a home.
    if (home != 0 || cache.large != no_block ||
        !begin_free(block, reinterpret_cast<std::uint64_t>(pointer)))
      return leave_it();
    cache.large = index;
    cache.large_units = block.units;
  }
  block.stream = bins->slot;
  cache.count_free(block.account, block.size() - block.out.waste, block.size());
  if (cache.observer != nullptr)
    emit_own(*cache.observer, memory_event_kind::deallocate, block, bins->id);
  cache.leave();
  return true;
}

/// The block came through another thread's cache: that gets it back, and counts it. One that is
/// recorded is left alone.
bool central_heap::free_to_owner(thread_cache& cache, block_index index, stream_bins& bins,
                                 std::uint64_t address) noexcept {
  block& block = blocks_[index];
  if (bins.slot > most_given_on || block.is_recorded() || !claim(block, address)) {
    cache.leave();
    return false;
  }
  const std::uint16_t home = block.out.home;
  if (!thread_caches::is_home(home) || home == cache.number) {  // not any more
    withdraw(block);
    cache.leave();
    return false;
  }
  thread_cache& owner = *caches_.at(home);
  block.out.given_on = static_cast<std::uint16_t>(bins.slot);
  // Before it is handed back: behind that the block may be anybody's.
  if (cache.observer != nullptr)
    emit_own(*cache.observer, memory_event_kind::deallocate, block, bins.id);
  block.out.ahead = cache.left_before(index);
  if (cache.aside.owner != &owner) cache.hand_back_aside(blocks_);
  cache.set_aside(index, block, owner);
  if (cache.has_enough_aside()) cache.hand_back_aside(blocks_);
  const bool enough = cache.has_enough_unplaced();
  cache.leave();
  if (enough) flush_own_unplaced(cache);
  return true;
}

void central_heap::flush_own_unplaced(thread_cache& own) noexcept {
  const spin_then_lock lock{mutex_};
  ++trail_.locks;
  flusher_.flush_unplaced(own);
}

}}}  // namespace weir::v0::heap

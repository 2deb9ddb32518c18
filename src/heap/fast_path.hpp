// SPDX-License-Identifier: Apache-2.0
// The fast path of requests and frees: the calling thread's cache, and nothing else.
//
// No lock, no shared write, no driver call, no call at all: these are leaves, so that what they
// need stays in registers. Blocks above 1 MiB have leaves of their own, behind those that serve all
// others. Whatever is out of the ordinary is left to the slower paths; the call
// tree stands in docs/allocator.md.
#pragma once

#include "heap/central_heap.hpp"
#include "observe/current_tag.hpp"

namespace weir { inline namespace v0 { namespace heap {

template <std::uint32_t reasons>
inline bool central_heap::fast_path_is_open() const noexcept {
  if constexpr (reasons == 0) return this_thread.unobserved == serial_;
  return this_thread.serial == serial_ && this_thread.unobserved == 0;
}

/// Whether the free of a block behind that stream's work is one of the stream of `bins`.
///
/// Nobody asks the stream's device here, nor for a request. `bins` was made under the lock for a
/// reference that had been seen to be of this device, and has the id of its stream; ids are not 0
/// there, where a reference that does not know its own says 0. No two streams of a process have
/// one id, whatever their devices and runtimes (stream_ref::id()): a reference with this id is to
/// this stream, and that is on this device.
inline bool central_heap::is_stream_of(const stream_bins& bins, const block& /*block*/,
                                       const stream_ref& stream) const noexcept {
  return bins.id == stream.known_id();
}
inline bool central_heap::is_stream_of(const stream_bins& bins, const block& block,
                                       allocation_stream /*stream*/) const noexcept {
  return bins.slot == block.stream;
}

/// Of the cache's current stream.
inline void central_heap::emit_fast(const thread_cache& cache, memory_event_kind kind,
                                    const block& block, std::uint64_t requested) const noexcept {
  cache.observer->on_event({.kind = kind,
                            .tag = block.account,
                            .device = device_.id(),
                            .stream = cache.current->id,
                            .address = block.address,
                            .size = requested,
                            .rounded = block.size()});
}

template <std::uint32_t reasons>
inline void* central_heap::fast_allocate(bytes size, const stream_ref& stream) noexcept {
  if (!fast_path_is_open<reasons>()) [[unlikely]]
    return nullptr;
  thread_cache& cache = *this_thread.cache;
  const std::uint64_t units = (size.count() + (unit - 1)) / unit;
  const account_number account = observe::thread_tag.number();
  if (cache.enter_fast() != reasons) [[unlikely]] {  // and nothing of it may be read
    cache.leave();
    return nullptr;
  }
  stream_bins& bins = *cache.current;
  if (bins.id != stream.known_id() || units > most_binned_units || account >= cache.delta_count)
      [[unlikely]] {
    cache.leave();
    return nullptr;
  }
  const block_index index = bins.heads[units];  // of no units, or of too many to count: none
  if (index == no_block) [[unlikely]] {
    this_thread.missed_units = units;
    this_thread.missed_stream = bins.id;
    cache.leave();
    return nullptr;
  }
  block& block = blocks_[index];
  bins.heads[units] = block.out.next;
  const std::uint64_t rounded = units * unit;
  become_live(block, account, size.count(), rounded);
  cache.units -= units;
  cache.count_allocation(account, size.count(), rounded);
  if constexpr (reasons == thread_cache::observed)
    emit_fast(cache, memory_event_kind::allocate, block, size.count());
  cache.leave();
  return reinterpret_cast<void*>(block.address);
}

template <std::uint32_t reasons, class Stream>
inline bool central_heap::fast_free(void* pointer, const Stream& stream) noexcept {
  if (!fast_path_is_open<reasons>()) [[unlikely]]
    return false;
  thread_cache& cache = *this_thread.cache;
  if (cache.enter_fast() != reasons) [[unlikely]] {
    cache.leave();
    return false;
  }
  stream_bins& bins = *cache.current;
  const block_index index = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  block& block = blocks_[index];  // where there is none: the record that is never used
  fetch(block);
  // Read once: a byte that is stored may be any other's, for all that the compiler knows.
  const std::uint64_t units = block.units;
  const std::uint64_t held = cache.units + units;
  // A block whose home is here is of the allocator's own pool, kept by size, counted here, and
  // nobody recorded it.
  if (!is_stream_of(bins, block, stream) || block.is() != block_kind::live ||
      block.out.home != cache.number || held > cache.bound()) [[unlikely]] {
    cache.refused_large = units > most_binned_units;
    cache.leave();
    return false;
  }
  block.become(block_kind::thread_cached);  // at once, for who frees it, too: see begin_free()
  const std::uint64_t rounded = units * unit;
  const std::uint64_t requested = rounded - block.out.waste;
  cache.units = held;
  cache.count_free(block.account, requested, rounded);
  block.stream = bins.slot;
  bins.push(index, block, units);
  if constexpr (reasons == thread_cache::observed)
    emit_fast(cache, memory_event_kind::deallocate, block, requested);
  cache.leave();
  return true;
}

inline void* central_heap::take_large(bytes size, const stream_ref& stream) noexcept {
  if (!fast_path_is_open<0>()) [[unlikely]]
    return nullptr;
  thread_cache& cache = *this_thread.cache;
  if (cache.enter_fast() != 0) [[unlikely]] {  // and nothing of it may be read
    cache.leave();
    return nullptr;
  }
  const std::uint64_t units = units_for(size);
  const account_number account = observe::thread_tag.number();
  const stream_bins& bins = *cache.current;
  block& block = blocks_[cache.large];  // where there is none, `large_units` is of no such request
  if (cache.large_units != units || bins.id != stream.known_id() || block.stream != bins.slot ||
      account >= cache.delta_count) [[unlikely]] {
    cache.leave();
    return nullptr;
  }
  cache.large = no_block;
  cache.large_units = 0;
  const std::uint64_t rounded = units * unit;
  become_live(block, account, size.count(), rounded);
  cache.count_allocation(account, size.count(), rounded);
  cache.leave();
  return reinterpret_cast<void*>(block.address);
}

template <class Stream>
inline bool central_heap::keep_large(void* pointer, const Stream& stream) noexcept {
  if (!fast_path_is_open<0>()) [[unlikely]]
    return false;
  thread_cache& cache = *this_thread.cache;
  if (!cache.refused_large) return false;
  if (cache.enter_fast() != 0) [[unlikely]] {
    cache.leave();
    return false;
  }
  const stream_bins& bins = *cache.current;
  const block_index index = table_.find(reinterpret_cast<std::uint64_t>(pointer));
  block& block = blocks_[index];  // where there is none: the record that is never used
  // One that is recorded has a home.
  if (block.units <= most_binned_units || !is_stream_of(bins, block, stream) ||
      block.out.home != 0 || block.account >= cache.delta_count || cache.large != no_block ||
      !begin_free(block, reinterpret_cast<std::uint64_t>(pointer))) [[unlikely]] {
    cache.leave();
    return false;
  }
  cache.large = index;
  cache.large_units = block.units;
  block.stream = bins.slot;
  cache.count_free(block.account, block.size() - block.out.waste, block.size());
  cache.leave();
  return true;
}

}}}  // namespace weir::v0::heap

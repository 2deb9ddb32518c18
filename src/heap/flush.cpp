// Flushing thread caches to the stores: by half, by stream, or whole.
#include <new>
#include <utility>

#include "heap/central_heap.hpp"
#include "heap/spin_then_lock.hpp"

namespace weir { inline namespace v0 { namespace heap {

void central_heap::raise_peaks(const thread_cache& cache) noexcept {
  if (cache.sum.allocations() == 0) return;
  if (!cache.counts_tags) return accounts_.raise_peaks(0, cache.sum.most());
  accounts_.raise_common_peaks(cache.sum.most());
  for (std::uint32_t i = 0; i < cache.delta_count; ++i)
    if (cache.deltas[i].allocations() != 0)
      accounts_.raise_tag_peaks(static_cast<account_number>(i), cache.deltas[i].most());
}

void central_heap::fold(thread_cache& cache) noexcept {
  if (cache.sum.is_empty()) return;
  raise_peaks(cache);
  if (!cache.counts_tags) return accounts_.fold(0, cache.sum);
  for (std::uint32_t i = 0; i < cache.delta_count; ++i)
    accounts_.fold(static_cast<account_number>(i), cache.deltas[i]);
  cache.sum = {};
}

void central_heap::flush_list(block_index head, bool counted) noexcept {
  while (head != no_block) {
    const block_index index = head;
    block& block = blocks_[index];
    head = block.out.next;
    if (head != no_block) fetch_for_flush(blocks_[head]);
    if (!counted) accounts_.freed(block.account, block.size() - block.out.waste, block.size());
    free_to_store(index, order_.now(block.stream));
  }
}

void central_heap::fetch_for_flush(const block& block) const noexcept {
  fetch(blocks_[block.before]);
  fetch(blocks_[block.after]);
  table_.fetch(block.address);
}

void central_heap::flush_soon(block_index head, flush_queue& queue) noexcept {
  if (head == no_block) return;
  fetch_for_flush(blocks_[head]);
  queue.heads[queue.count++] = head;
  if (queue.count == queue.heads.size()) flush_queued(queue);
}

void central_heap::flush_queued(flush_queue& queue) noexcept {
  for (std::size_t i = 0; i < queue.count; ++i) flush_list(queue.heads[i], true);
  queue.count = 0;
}

void central_heap::flush_large(thread_cache& cache) noexcept {
  if (cache.large == no_block) return;
  fold(cache);
  free_to_store(cache.large, order_.now(blocks_[cache.large].stream));
  cache.large = no_block;
  cache.large_units = 0;
}

void central_heap::flush_unplaced(thread_cache& cache) noexcept {
  raise_peaks(cache);  // those that it leaves unplaced were live
  const block_index head = std::exchange(cache.unplaced, no_block);
  cache.unplaced_count = 0;
  cache.unplaced_units = 0;
  flush_list(head, false);
}

void central_heap::flush_own_unplaced(thread_cache& own) noexcept {
  const spin_then_lock lock{mutex_};
  ++trail_.locks;
  flush_unplaced(own);
}

void central_heap::flush_bins(thread_cache& cache, stream_bins& bins) noexcept {
  flush_queue lists;
  bins.for_each_size([&](std::size_t size) {
    mutex_.assert_held();
    const block_index head = std::exchange(bins.heads[size], no_block);
    for (block_index each = head; each != no_block; each = blocks_[each].out.next)
      cache.units -= size;
    flush_soon(head, lists);
    return true;
  });
  flush_queued(lists);
}

void central_heap::flush_half(thread_cache& cache, stream_bins& newest) noexcept {
  const std::uint64_t hits = cache.sum.allocations();
  const std::uint64_t frees = cache.sum.frees();
  fold(cache);
  // What other streams left goes whole; of this one's lists each keeps its newer half, unless what
  // was freed here lately was hardly asked for again: then keeping any costs more than it saves.
  const bool pays = hits >= frees / 4;
  for (const auto& each : cache.tables)
    if (each.get() != &newest || !pays) flush_bins(cache, *each);
  if (cache.units <= cache.bound() / 2) return;
  flush_queue lists;
  newest.for_each_size([&](std::size_t size) {
    mutex_.assert_held();
    std::size_t length = 0;
    for (block_index each = newest.heads[size]; each != no_block; each = blocks_[each].out.next)
      ++length;
    block_index* last = &newest.heads[size];
    for (std::size_t kept = length / 2; kept > 0; --kept) last = &blocks_[*last].out.next;
    cache.units -= (length - length / 2) * size;
    flush_soon(std::exchange(*last, no_block), lists);
    return cache.units > cache.bound() / 2;
  });
  flush_queued(lists);
}

bool central_heap::flush(thread_cache& cache) noexcept {
  fold(cache);
  leave_aside_unplaced(cache);
  cache.take_in_remote(blocks_);
  const bool any = cache.held() != 0 || cache.unplaced != no_block;
  flush_unplaced(cache);
  fold(cache);
  flush_large(cache);
  for (const auto& each : cache.tables) flush_bins(cache, *each);
  return any;
}

bool central_heap::flush_all() noexcept {
  bool any = false;
  caches_.for_each([&](thread_cache& each) {
    mutex_.assert_held();
    any = flush(each) || any;
  });
  accounts_.raise_peaks();
  return any;
}

void central_heap::flush_caches() noexcept {
  const thread_caches::stop stopped{caches_, own_cache()};
  settle_caches();
  static_cast<void>(flush_all());
}

stream_bins* central_heap::ensure_bins(thread_cache& cache, stream_id id,
                                       stream_slot slot) noexcept {
  if (stream_bins* const known = cache.bins_of(slot); known != nullptr) return known;
  if (cache.has_every_bins()) {
    fold(cache);
    stream_bins* const oldest = cache.least_recent();
    flush_bins(cache, *oldest);
    cache.remove_bins(oldest);
  }
  // Cached blocks return to the store where nothing may fail, so it must know the stream by now.
  try {
    if (pools_.front()->memory != nullptr) pools_.front()->memory->prepare_free(slot);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return cache.add_bins(id, slot);
}

void central_heap::settle_caches() noexcept {
  caches_.for_each([&](thread_cache& each) { hand_back_aside(each); });
  caches_.for_each([&](thread_cache& each) {
    mutex_.assert_held();
    each.take_in_remote(blocks_);
    flush_unplaced(each);
    fold(each);
  });
  accounts_.raise_peaks();
}

}}}  // namespace weir::v0::heap

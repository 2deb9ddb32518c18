// SPDX-License-Identifier: Apache-2.0
// Flushing thread caches to the stores: by half, by stream, or whole.
#include "heap/cache_flusher.hpp"

#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

void cache_flusher::raise_peaks(const thread_cache& cache) noexcept {
  core_.mutex_.assert_held();
  if (cache.sum.allocations() == 0) return;
  if (!cache.counts_tags) return core_.accounts_.raise_peaks(0, cache.sum.most());
  core_.accounts_.raise_common_peaks(cache.sum.most());
  for (std::uint32_t i = 0; i < cache.delta_count; ++i)
    if (cache.deltas[i].allocations() != 0)
      core_.accounts_.raise_tag_peaks(static_cast<account_number>(i), cache.deltas[i].most());
}

void cache_flusher::raise_own_peaks() noexcept {
  if (const thread_cache* const own = core_.own_cache()) raise_peaks(*own);
}

void cache_flusher::fold(thread_cache& cache) noexcept {
  core_.mutex_.assert_held();
  if (cache.sum.is_empty()) return;
  raise_peaks(cache);
  if (!cache.counts_tags) return core_.accounts_.fold(0, cache.sum);
  for (std::uint32_t i = 0; i < cache.delta_count; ++i)
    core_.accounts_.fold(static_cast<account_number>(i), cache.deltas[i]);
  cache.sum = {};
}

bool cache_flusher::begin_free(block_index index) noexcept {
  core_.mutex_.assert_held();
  block& block = core_.blocks_[index];
  if (block.units > most_binned_units) return heap::begin_free(block);
  if (!claim(block, block.address)) return false;
  if (thread_cache* const writer = writer_of(block)) core_.caches_.await_owner(*writer);
  return decide(block);
}

thread_cache* cache_flusher::writer_of(const block& block) const noexcept {
  const std::uint16_t home = block.out.home;
  if (!thread_caches::is_home(home)) return nullptr;
  thread_cache* const cache = core_.caches_.at(home);
  return cache == core_.own_cache() ? nullptr : cache;
}

void cache_flusher::end_claims_on(const block& block) noexcept {
  if (!block.claimed.load(std::memory_order_acquire)) [[likely]]
    return;
  // Seldom: it is freed twice, or just now looked at by who would do that. Whoever has claimed it
  // has it in one of the lists of a cache, or lets go of it before its owner is outside.
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  core_.caches_.for_each([&](thread_cache& each) {
    core_.mutex_.assert_held();
    each.leave_all_unplaced(core_.blocks_);
    block_index next = std::exchange(each.unplaced, no_block);
    each.unplaced_count = 0;
    each.unplaced_units = 0;
    while (next != no_block) {
      const block_index index = next;
      auto& given = core_.blocks_[index];
      next = given.out.given_next;
      if (given.is() == block_kind::given_back) {
        each.leave_unplaced(index, given);
      } else if (!decide(given)) {
        host_.report_second_free(given);
      }
    }
  });
}

void cache_flusher::flush_given(block_index head) noexcept {
  const thread_cache* awaited = nullptr;
  while (head != no_block) {
    const block_index index = head;
    block& block = core_.blocks_[index];
    head = block.out.given_next;
    if (head != no_block) fetch_for_flush(core_.blocks_[head]);
    // All of them were claimed before: to wait once is enough for all that are of one owner.
    if (thread_cache* const writer = writer_of(block); writer != nullptr && writer != awaited) {
      core_.caches_.await_owner(*writer);
      awaited = writer;
    }
    const stream_slot slot = block.out.given_on;
    if (!decide(block)) {
      host_.report_second_free(block);
      continue;
    }
    block.stream = slot;
    core_.accounts_.freed(block.account, block.size() - block.out.waste, block.size());
    host_.free_to_store(index, core_.order_.now(slot));
  }
}

void cache_flusher::flush_list(block_index head) noexcept {
  while (head != no_block) {
    const block_index index = head;
    block& block = core_.blocks_[index];
    head = block.out.next;
    if (head != no_block) fetch_for_flush(core_.blocks_[head]);
    end_claims_on(block);
    host_.free_to_store(index, core_.order_.now(block.stream));
  }
}

void cache_flusher::fetch_for_flush(const block& block) const noexcept {
  fetch(core_.blocks_[block.before]);
  fetch(core_.blocks_[block.after]);
  core_.table_.fetch(block.address);
}

void cache_flusher::flush_soon(block_index head, flush_queue& queue) noexcept {
  if (head == no_block) return;
  fetch_for_flush(core_.blocks_[head]);
  queue.heads[queue.count++] = head;
  if (queue.count == queue.heads.size()) flush_queued(queue);
}

void cache_flusher::flush_queued(flush_queue& queue) noexcept {
  for (std::size_t i = 0; i < queue.count; ++i) flush_list(queue.heads[i]);
  queue.count = 0;
}

void cache_flusher::flush_large(thread_cache& cache) noexcept {
  core_.mutex_.assert_held();
  if (cache.large == no_block) return;
  fold(cache);
  host_.free_to_store(cache.large, core_.order_.now(core_.blocks_[cache.large].stream));
  cache.large = no_block;
  cache.large_units = 0;
}

void cache_flusher::flush_unplaced(thread_cache& cache) noexcept {
  core_.mutex_.assert_held();
  raise_peaks(cache);  // those that it leaves unplaced were live
  const block_index head = std::exchange(cache.unplaced, no_block);
  cache.unplaced_count = 0;
  cache.unplaced_units = 0;
  flush_given(head);
}

void cache_flusher::flush_bins(thread_cache& cache, stream_bins& bins) noexcept {
  flush_queue lists;
  bins.for_each_size([&](std::size_t size) {
    core_.mutex_.assert_held();
    const block_index head = std::exchange(bins.heads[size], no_block);
    for (block_index each = head; each != no_block; each = core_.blocks_[each].out.next)
      cache.units -= size;
    flush_soon(head, lists);
    return true;
  });
  flush_queued(lists);
}

void cache_flusher::flush_half(thread_cache& cache, stream_bins& newest) noexcept {
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
    core_.mutex_.assert_held();
    std::size_t length = 0;
    for (block_index each = newest.heads[size]; each != no_block;
         each = core_.blocks_[each].out.next)
      ++length;
    block_index* last = &newest.heads[size];
    for (std::size_t kept = length / 2; kept > 0; --kept) last = &core_.blocks_[*last].out.next;
    cache.units -= (length - length / 2) * size;
    flush_soon(std::exchange(*last, no_block), lists);
    return cache.units > cache.bound() / 2;
  });
  flush_queued(lists);
}

bool cache_flusher::flush(thread_cache& cache) noexcept {
  core_.mutex_.assert_held();
  fold(cache);
  cache.leave_aside_unplaced(core_.blocks_);
  cache.take_in_remote(core_.blocks_);
  const bool any = cache.held() != 0 || cache.unplaced != no_block;
  flush_unplaced(cache);
  fold(cache);
  flush_large(cache);
  for (const auto& each : cache.tables) flush_bins(cache, *each);
  return any;
}

bool cache_flusher::flush_all() noexcept {
  core_.mutex_.assert_held();
  bool any = false;
  core_.caches_.for_each([&](thread_cache& each) {
    core_.mutex_.assert_held();
    any = flush(each) || any;
  });
  core_.accounts_.raise_peaks();
  return any;
}

void cache_flusher::flush_caches() noexcept {
  core_.mutex_.assert_held();
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  settle_caches();
  static_cast<void>(flush_all());
}

void cache_flusher::flush_stream(stream_slot slot) noexcept {
  core_.mutex_.assert_held();
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  settle_caches();
  core_.caches_.for_each([&](thread_cache& each) {
    core_.mutex_.assert_held();
    if (each.large != no_block && core_.blocks_[each.large].stream == slot) flush_large(each);
    stream_bins* const bins = each.bins_of(slot);
    if (bins == nullptr) return;
    flush_bins(each, *bins);
    each.remove_bins(bins);
  });
}

void cache_flusher::close(thread_cache& cache) noexcept {
  core_.mutex_.assert_held();
  fold(cache);
  // Those that still hold a block of this cache find it closed, and use the lock.
  flush_given(cache.close_remote());
  cache.hand_back_aside(core_.blocks_);
  static_cast<void>(flush(cache));
}

bool cache_flusher::keep(thread_cache& cache, block_index index, stream_slot slot,
                         stream_id id) noexcept {
  core_.mutex_.assert_held();
  block& block = core_.blocks_[index];
  stream_bins* const bins = ensure_bins(cache, id, slot);
  if (bins == nullptr) return false;
  if (block.units > most_binned_units) {
    flush_large(cache);
    cache.large = index;
    cache.large_units = block.units;
  } else {
    if (cache.unplaced != no_block) flush_unplaced(cache);
    if (block.units > cache.bound()) return false;
    if (cache.units + block.units > cache.bound()) flush_half(cache, *bins);
    // Beside a block of more than half the bound there may be no room for what is left, either.
    if (cache.units + block.units > cache.bound())
      for (const auto& each : cache.tables) flush_bins(cache, *each);
    block.out.home = cache.home();
    bins->push(index, block);
    cache.units += block.units;
  }
  block.become(block_kind::thread_cached);
  block.stream = slot;
  return true;
}

bool cache_flusher::prepare_store_for(stream_slot slot) noexcept {
  core_.mutex_.assert_held();
  try {
    if (core_.pools_.front()->memory != nullptr) core_.pools_.front()->memory->prepare_free(slot);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

stream_bins* cache_flusher::ensure_bins(thread_cache& cache, stream_id id,
                                        stream_slot slot) noexcept {
  core_.mutex_.assert_held();
  if (stream_bins* const known = cache.bins_of(slot); known != nullptr) return known;
  // Cached blocks return to the store where nothing may fail.
  if (!prepare_store_for(slot)) return nullptr;
  if (!cache.has_every_bins()) return cache.add_bins(id, slot);
  if (!cache.makes_way_for(slot)) return nullptr;
  fold(cache);
  stream_bins& oldest = *cache.least_recent();
  flush_bins(cache, oldest);
  return cache.reassign_bins(oldest, id, slot);
}

void cache_flusher::settle_caches() noexcept {
  core_.mutex_.assert_held();
  core_.caches_.for_each([&](thread_cache& each) { each.hand_back_aside(core_.blocks_); });
  core_.caches_.for_each([&](thread_cache& each) {
    core_.mutex_.assert_held();
    each.take_in_remote(core_.blocks_);
    flush_unplaced(each);
    fold(each);
  });
  core_.accounts_.raise_peaks();
}

}}}  // namespace weir::v0::heap

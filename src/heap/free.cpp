// SPDX-License-Identifier: Apache-2.0
// Frees that the thread's cache cannot take, and recorded streams.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// What a stream frees is made known to the others after this much in several frees, or a 256th of
/// all memory.
constexpr std::uint64_t least_shared = 1 << 18;

}  // namespace

result<void> central_heap::slow_free(void* pointer, const stream_ref* stream, bytes expected) try {
  WEIR_TRY(usable());
  if (pointer == nullptr) return {};
  thread_cache* const cache = local();
  std::optional<identified_stream> caller;
  if (stream != nullptr) {
    WEIR_TRY_VALUE(known, heap::identify(*this, *stream, cache));
    caller = known;
  }
  if (cache != nullptr) {
    bool capturing = false;
    if (cache->asks_captures()) {
      capturing = true;
      if (caller && caller->id != stream_id{}) {
        WEIR_TRY_VALUE(active, caller->ref.is_capturing());
        capturing = active;
      }
    }
    if (!capturing && (!caller || caller->id != stream_id{}) &&
        cached_free(*cache, pointer, caller ? caller->id : stream_id{}, expected,
                    thread_cache::capturing | thread_cache::closer_look))
      return {};
  }
  const detail::mutex_lock lock{mutex_};
  ++trail_.locks;
  return free_locked(pointer, caller ? &*caller : nullptr, expected);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<block_index> central_heap::find_live(const void* pointer) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  block_index index = table_.find(address);
  bool is_freed = false;
  if (index != no_block && (blocks_[index].claimed.load(std::memory_order_acquire) ||
                            blocks_[index].is() != block_kind::live)) {
    // Who has claimed or questions it is inside a cache: while all are outside, its kind says
    // whether the block is live. Seldom, as somebody has freed a block twice.
    const thread_caches::stop stopped{caches_, own_cache()};
    flusher_.settle_caches();
    index = table_.find(address);
    is_freed = index != no_block && blocks_[index].is() != block_kind::live;
  }
  if (index == no_block) return inspector_.why_not_live(address);
  if (is_freed) return inspector_.freed_already(blocks_[index]);
  return index;
}

result<void> central_heap::free_locked(void* pointer, const identified_stream* stream,
                                       bytes expected) {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(index, find_live(pointer));
  block& block = blocks_[index];
  driver_access driver{device_};
  stream_slot slot = block.stream;
  std::optional<order::named_stream> named;
  if (stream != nullptr) {
    WEIR_TRY_VALUE(named_slot, slot_of(*this, *stream, driver));
    named.emplace(order_, named_slot);
    slot = named_slot;
  }
  pool_of(block).memory->prepare_free(slot);
  const bool is_checked = pool_of(block).memory->inspects();
  if (block.is_recorded() || is_checked) pending_.prepare(index);
  if (is_checked) checked_frees_.prepare();
  const bytes requested{block.size() - block.out.waste};
  result<void> outcome;
  if (expected != any_size && expected != requested) {
    outcome = error{{.code = errc::invalid_argument,
                     .requested = expected,
                     .detail = "the block was allocated with " + to_string(requested)}};
  }
  // These may throw. The lock keeps out no thread that frees the block without it.
  const bool is_recorded = block.is_recorded();
  while (!flusher_.begin_free(index)) WEIR_TRY(find_live(pointer));
  // From here on nothing fails.
  emit(memory_event_kind::deallocate, block, order_.id(slot), block.account);
  flusher_.raise_own_peaks();  // it was live until now
  accounts_.freed(block.account, block.size() - block.out.waste, block.size());
  if (is_checked) {
    auto checked = checked_frees_.free(index, slot, driver);
    return checked ? outcome : checked;
  }
  if (is_recorded) {
    free_recorded(index, slot, driver);
    return outcome;
  }
  const bool shares = !pool_of(block).for_graphs;
  thread_cache* const cache = own_cache();
  // A thread that only frees must not come here every time.
  if (cache != nullptr && !is_private(block.account)) count_in(*cache, block.account);
  const bool keeps = cache != nullptr && !is_private(block.account) && !captures_.any_declared() &&
                     !detect_captures_ && cache->counts(block.account) && !order_.gone(slot) &&
                     pools_.front()->where == residence::resident;
  if (!keeps || !flusher_.keep(*cache, index, slot, order_.id(slot))) {
    block.become(block_kind::pending);
    free_to_store(index, order_.now(slot));
    if (pools_to_sweep_) pool_registry_.sweep(driver);
  }
  if (shares) progress_.share_if_due();
  return outcome;
}

void central_heap::free_recorded(block_index index, stream_slot slot,
                                 driver_access& driver) noexcept {
  block& block = blocks_[index];
  order::pending_frees::waiting waits = pending_.forget(index, slot, order_);
  block.out.home = 0;
  block.become(block_kind::pending);
  block.stream = slot;
  if (waits.others.empty()) {
    free_to_store(index, waits.freed);
    return;
  }
  foreign_uses_.join(index, order_);
  // An epoch that cannot be closed now (a capture, no memory, a driver in trouble) is closed by the
  // next request that looks for room; the block waits, and the free is done.
  try {
    if (driver.entered()) static_cast<void>(order_.close_for(waits.others, driver.enter()));
  } catch (const std::bad_alloc&) {
  }
  pending_.add(std::move(waits));
  accounts_.pending(block.account, block.size() - block.out.waste, block.size());
}

void central_heap::free_to_store(block_index index, stamp freed) noexcept {
  block& block = blocks_[index];
  pool_state& from = pool_of(block);
  table_.erase(block.address);
  --from.blocks;
  if (from.where == residence::suspended) [[unlikely]]
    backup_.drop(from, block.address, block.end());
  if (from.memory->inspects()) {
    // Nobody is given it again.
  } else if (from.keeps_to_streams()) {
    freed = order_.now(freed.stream);  // a stamp that is passed already would untie it
  } else if (order_.add_freed(freed.stream, block.size(), least_shared,
                              std::max(4 * least_shared, placement_.reserved / 256))) {
    progress_.share_later(freed.stream);
  }
  from.memory->free(index, freed);
  if (from.blocks == 0 && from.holders == 0) pools_to_sweep_ = true;
}

/// Whose call it was has been told of success: it could not know.
void central_heap::report_second_free(const block& block) noexcept try {
  report_error(inspector_.freed_already(block));
} catch (const std::bad_alloc&) {
  report_error({{.code = errc::double_free}});
}

result<void> central_heap::record_stream(void* pointer, const stream_ref& stream) try {
  WEIR_TRY(usable());
  if (stream.device() != device_) return peers_.record_stream(pointer, stream);
  thread_cache* const cache = local();
  WEIR_TRY_VALUE(caller, heap::identify(*this, stream, cache));
  const detail::mutex_lock lock{mutex_};
  ++trail_.locks;
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(index, find_live(pointer));
  driver_access driver{device_};
  WEIR_TRY_VALUE(slot, slot_of(*this, caller, driver));
  record_use(index, slot, order_.id(slot));
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bool> central_heap::assume_joined(const void* freed) {
  WEIR_TRY(usable());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  const block_index index = table_.find(reinterpret_cast<std::uint64_t>(freed));
  const auto& waiting = pending_.all();
  const auto entry = std::find_if(waiting.begin(), waiting.end(),
                                  [&](const auto& each) { return each.index == index; });
  if (index == no_block || entry == waiting.end()) return false;
  const auto taken = pending_.take(static_cast<std::size_t>(entry - waiting.begin()));
  free_waited(index, order_.now(taken.freed.stream));
  return true;
}

void central_heap::free_waited(block_index index, stamp freed) noexcept {
  const block& block = blocks_[index];
  flusher_.raise_own_peaks();  // it was active until now
  accounts_.waited(block.account, block.size() - block.out.waste, block.size());
  free_to_store(index, freed);
}

void central_heap::record_use(block_index index, stream_slot slot, stream_id stream) {
  block& block = blocks_[index];
  pending_.record(index, slot);
  block.out.home = block::recorded;  // nobody frees it without looking
  placement_.emit({.kind = memory_event_kind::record_stream,
                   .tag = accounts_.tag_of(block.account).number(),
                   .pool = accounts_.pool_of(block.account),
                   .stream = stream,
                   .address = block.address});
}

}}}  // namespace weir::v0::heap

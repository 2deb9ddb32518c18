// Frees that the thread's cache cannot take, and recorded streams.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/allocator_state.hpp"
#include "order/mutation.hpp"

namespace weir::inline v0::heap {
namespace {

/// What a stream frees is made known to the others after this much in several frees, or a 256th of
/// all memory.
constexpr std::uint64_t least_shared = 1 << 18;

}  // namespace

result<void> allocator_state::deallocate(void* pointer, const stream_ref* stream,
                                         bytes expected) try {
  WEIR_TRY(usable());
  if (pointer == nullptr) return {};
  thread_cache* const cache = local();
  std::optional<caller> who;
  if (stream != nullptr) {
    WEIR_TRY_VALUE(known, identify(*stream, cache));
    who = known;
  }
  if (cache != nullptr) {
    bool capturing = false;
    if (cache->asks_captures()) {
      capturing = true;
      if (who && who->id != stream_id{}) {
        WEIR_TRY_VALUE(active, who->ref.is_capturing());
        capturing = active;
      }
    }
    if (!capturing && (!who || who->id != stream_id{}) &&
        deallocate_cached(*cache, pointer, who ? who->id : stream_id{}, expected,
                          thread_cache::capturing | thread_cache::closer_look))
      return {};
  }
  const std::lock_guard lock{mutex_};
  return deallocate_locked(pointer, who ? &*who : nullptr, expected);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<block_index> allocator_state::find_live(const void* pointer) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const block_index which = table_.find(address);
  if (which == no_block) return not_a_block(address);
  if (blocks_[which].is() != block_kind::live) return errc::double_free;
  return which;
}

error allocator_state::not_a_block(std::uint64_t address) {
  // What went back to a store is no block any more; its bytes lie in something free.
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    pool_snapshot inside;
    each->memory->describe(inside);
    for (const block_info& piece : inside.blocks) {
      if (address < piece.address || address - piece.address >= piece.size.count()) continue;
      const bool is_free = piece.state == block_state::free ||
                           piece.state == block_state::stream_bound ||
                           piece.state == block_state::hole;
      if (is_free) return error{.code = errc::double_free};
      return error{.code = errc::foreign_pointer,
                   .detail = "the address is inside a block, not its start"};
    }
  }
  return error{.code = errc::foreign_pointer};
}

result<void> allocator_state::deallocate_locked(void* pointer, const caller* who, bytes expected) {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(which, find_live(pointer));
  block& what = blocks_[which];
  driver_access driver{device_};
  stream_slot slot = what.stream;
  std::optional<order::named_stream> named;
  if (who != nullptr) {
    WEIR_TRY_VALUE(found, slot_of(*who, driver));
    named.emplace(order_, found);
    if (!mutated(mutation::stream_of_free_forgotten)) slot = found;
  }
  const std::uint64_t requested = what.size() - what.out.waste;
  if (what.recorded) pending_.prepare(which);  // may throw; from here on nothing fails
  result<void> outcome;
  if (expected != any_size && expected.count() != requested) {
    outcome = error{.code = errc::invalid_argument,
                    .requested = expected,
                    .detail = "the block was asked for with " + to_string(bytes{requested})};
  }
  if (core_.observer != nullptr) {
    emit(core_.observer, memory_event_kind::deallocate, what, order_.id(slot), what.account);
  }
  accounts_.freed(what.account, requested, what.size());
  if (what.recorded) {
    free_recorded(which, slot, driver);
    return outcome;
  }
  const bool shares = !pool_of(what).retains;
  thread_cache* const cache = own_cache();
  // A thread that only frees must not come here every time.
  if (cache != nullptr && !is_private(what.account)) count_in(*cache, what.account);
  const bool keeps = cache != nullptr && !is_private(what.account) && !captures_.any_declared() &&
                     !detect_captures_ && cache->counts(what.account) && !order_.gone(slot);
  if (!keeps || !keep(*cache, which, slot, order_.id(slot))) {
    what.become(block_kind::pending);
    give_back(which, order_.now(slot));
    if (pools_to_sweep_) sweep_pools(driver);
  }
  if (shares) share_if_due();
  return outcome;
}

bool allocator_state::keep(thread_cache& cache, block_index which, stream_slot slot,
                           stream_id id) noexcept {
  block& what = blocks_[which];
  stream_bins* const bins = ensure_bins(cache, id, slot);
  if (bins == nullptr) return false;
  if (what.units > most_binned_units) {
    static_cast<void>(hand_back_large(cache));
    cache.large = which;
    cache.large_units = what.units;
  } else {
    if (cache.unplaced != no_block) static_cast<void>(hand_back_unplaced(cache));
    if (what.units > cache.bound()) return false;
    if (cache.units + what.units > cache.bound()) hand_back_half(cache, *bins);
    what.out.home = cache.home();
    bins->push(which, what);
    cache.units += what.units;
  }
  what.become(block_kind::thread_cached);
  what.stream = slot;
  return true;
}

void allocator_state::free_recorded(block_index which, stream_slot slot,
                                    driver_access& driver) noexcept {
  block& what = blocks_[which];
  pending::waiting waits = pending_.forget(which, slot, order_);
  what.recorded = false;
  what.become(block_kind::pending);
  what.stream = slot;
  if (waits.others.empty()) {
    give_back(which, waits.freed);
    return;
  }
  // An epoch that cannot be closed now (a capture, a driver in trouble) is closed by the next
  // request that looks for room; the block waits, and the free is done.
  if (driver.entered()) static_cast<void>(order_.close_for(waits.others, driver.enter()));
  pending_.add(std::move(waits));
  accounts_.pending(what.account, what.size() - what.out.waste, what.size());
}

pool_state& allocator_state::pool_of(const block& what) noexcept {
  if (!is_private(what.account)) [[likely]]
    return *pools_.front();
  return *find_pool(accounts_.pool_of(what.account));
}

void allocator_state::give_back(block_index which, stamp freed) noexcept {
  block& what = blocks_[which];
  pool_state& from = pool_of(what);
  table_.erase(what.address);
  --from.blocks;
  if (from.keeps_to_streams()) {
    freed = order_.now(freed.stream);  // a stamp that is passed already would untie it
  } else if (order_.add_freed(freed.stream, what.size(), least_shared,
                              std::max(4 * least_shared, core_.reserved / 256))) {
    to_share_ = freed.stream;
  }
  from.memory->give_back(which, freed);
  if (from.blocks == 0 && from.holders == 0) pools_to_sweep_ = true;
}

result<void> allocator_state::record_stream(void* pointer, const stream_ref& stream) try {
  WEIR_TRY(usable());
  thread_cache* const cache = local();
  WEIR_TRY_VALUE(who, identify(stream, cache));
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(which, find_live(pointer));
  driver_access driver{device_};
  WEIR_TRY_VALUE(slot, slot_of(who, driver));
  pending_.record(which, slot);
  blocks_[which].recorded = true;
  blocks_[which].out.home = 0;  // nobody frees it without looking
  core_.tell({.kind = memory_event_kind::record_stream,
              .tag = accounts_.tag_of(blocks_[which].account).number(),
              .pool = accounts_.pool_of(blocks_[which].account),
              .stream = order_.id(slot),
              .address = blocks_[which].address});
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> allocator_state::size_of(const void* pointer) {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  WEIR_TRY_VALUE(which, find_live(pointer));
  return bytes{blocks_[which].size() - blocks_[which].out.waste};
}

}  // namespace weir::inline v0::heap

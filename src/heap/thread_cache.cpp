// SPDX-License-Identifier: Apache-2.0
// Tables of a thread's cache, what others leave in it, and stopping caches from outside.
#include "heap/thread_cache.hpp"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

namespace {

/// The owner is inside for some tens of instructions, unless it was put to sleep there.
void await_leave(const thread_cache& cache) noexcept {
  for (int spins = 0; cache.busy.load(std::memory_order_acquire) != 0; ++spins)
    if (spins > 100) std::this_thread::yield();
}

}  // namespace

constinit thread_local local_cache this_thread{};

// An id and a slot that no stream has.
constinit stream_bins thread_cache::nothing{.id = stream_id{~std::uint64_t{0}},
                                            .slot = ~stream_slot{0}};

stream_bins* thread_cache::search(stream_id id) noexcept {
  for (const auto& each : tables) {
    if (each->id != id) continue;
    turns -= turns == 0 ? 0 : 1;
    each->last_used = ++clock;
    return current = each.get();
  }
  return nullptr;
}

stream_bins* thread_cache::search(stream_slot slot) noexcept {
  for (const auto& each : tables) {
    if (each->slot != slot) continue;
    turns -= turns == 0 ? 0 : 1;
    each->last_used = ++clock;
    return current = each.get();
  }
  return nullptr;
}

void thread_cache::hand_back_aside(block_store& blocks) noexcept {
  if (aside.count == 0) return;
  if (!aside.owner->push_remote(aside.first, blocks[aside.last], aside.units))
    return leave_aside_unplaced(blocks);
  aside = {};
}

void thread_cache::leave_aside_unplaced(block_store& blocks) noexcept {
  const auto all = std::exchange(aside, {});
  block_index next = all.first;
  for (std::uint32_t i = 0; i < all.count; ++i) {
    const block_index index = std::exchange(next, blocks[next].out.given_next);
    leave_unplaced(index, blocks[index]);
  }
}

void thread_cache::leave_all_unplaced(block_store& blocks) noexcept {
  leave_aside_unplaced(blocks);
  if (remote.load(std::memory_order_relaxed) == remote_closed) return;
  auto next = static_cast<block_index>(remote.exchange(0, std::memory_order_acquire));
  while (next != no_block) {
    const block_index index = std::exchange(next, blocks[next].out.given_next);
    leave_unplaced(index, blocks[index]);
  }
}

void thread_cache::take_in_remote(block_store& blocks) noexcept {
  std::uint64_t seen = remote.load(std::memory_order_relaxed);
  do {
    if (seen == 0 || seen == remote_closed) return;
  } while (
      !remote.compare_exchange_weak(seen, 0, std::memory_order_acquire, std::memory_order_relaxed));
  for (auto next = static_cast<block_index>(seen); next != no_block;) {
    const block_index index = next;
    block& block = blocks[index];
    next = block.out.given_next;
    // All of them were written by another processor: one after the other would take as long each.
    fetch(blocks[next]);
    fetch(blocks[block.out.ahead]);
    stream_bins* const into = bins_of(stream_slot{block.out.given_on});
    if (into == nullptr || !counts(block.account) || units + block.units > bound() ||
        block.is() != block_kind::given_back) {
      leave_unplaced(index, block);
      continue;
    }
    static_cast<void>(decide(block));
    block.stream = into->slot;
    count_free(block.account, block.size() - block.out.waste, block.size());
    into->push(index, block);
    units += block.units;
  }
}

bool thread_cache::push_remote(block_index first, block& last, std::uint64_t more) noexcept {
  std::uint64_t seen = remote.load(std::memory_order_relaxed);
  std::uint64_t next = 0;
  do {
    if (seen == remote_closed) return false;
    const std::uint64_t waiting = (seen >> 32) + more;
    if (waiting > bound() || waiting > 0xffff'fffe) return false;
    last.out.given_next = static_cast<block_index>(seen);
    next = waiting << 32 | first;
  } while (!remote.compare_exchange_weak(seen, next, std::memory_order_release,
                                         std::memory_order_relaxed));
  return true;
}

block_index thread_cache::close_remote() noexcept {
  const std::uint64_t left = remote.exchange(remote_closed, std::memory_order_acquire);
  return left == remote_closed ? no_block : static_cast<block_index>(left);
}

bool thread_cache::make_room(account_number account) noexcept {
  if (account < delta_count) return true;
  try {
    limits.resize(std::size_t{account} + 1);
    delta_storage.resize(std::size_t{account} + 1);
  } catch (const std::bad_alloc&) {
    return false;
  }
  deltas = delta_storage.data();
  delta_count = static_cast<std::uint32_t>(delta_storage.size());
  counts_tags = delta_count > 1;
  return true;
}

stream_bins* thread_cache::add_bins(stream_id id, stream_slot slot) noexcept {
  try {
    tables.push_back(std::make_unique<stream_bins>());
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return reassign_bins(*tables.back(), id, slot);
}

stream_bins* thread_cache::reassign_bins(stream_bins& bins, stream_id id,
                                         stream_slot slot) noexcept {
  bins.id = id;
  bins.slot = slot;
  bins.last_used = ++clock;
  return current = &bins;
}

stream_bins* thread_cache::least_recent() noexcept {
  if (current != &nothing) current->last_used = ++clock;
  const auto oldest = std::min_element(
      tables.begin(), tables.end(), [](auto& a, auto& b) { return a->last_used < b->last_used; });
  return oldest == tables.end() ? nullptr : oldest->get();
}

bool thread_cache::makes_way_for(stream_slot slot) noexcept {
  const bool again = std::exchange(turned_away, slot) == slot;
  if (turns == most_turns && !again) return false;
  turns = std::min(turns + 1, most_turns);
  turned_away = no_stream;
  return true;
}

void thread_cache::remove_bins(stream_bins* bins) noexcept {
  if (current == bins) current = &nothing;
  std::erase_if(tables, [&](const auto& each) { return each.get() == bins; });
}

std::size_t thread_cache::footprint() const noexcept {
  return sizeof *this + tables.size() * sizeof(stream_bins) +
         delta_storage.capacity() * sizeof(account_delta);
}

thread_cache* thread_caches::open() noexcept {
  try {
    if (idle_.empty()) {
      const bool has_number = all_.size() + 1 < most_homes;
      const auto number =
          has_number ? static_cast<std::uint16_t>(all_.size() + 1) : thread_cache::homeless;
      idle_.reserve(all_.size() + 1);  // so that recycle() cannot fail
      all_.push_back(std::make_unique<thread_cache>(number));
      idle_.push_back(all_.back().get());
    }
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  thread_cache* const opened = idle_.back();
  idle_.pop_back();
  opened->most_units.store(bound_at(0), std::memory_order_relaxed);
  opened->observer = observer_;
  opened->remote.store(0, std::memory_order_relaxed);
  opened->attention.store(reasons_, std::memory_order_relaxed);
  if (opened->home() != 0) homes_[opened->number].store(opened, std::memory_order_release);
  return opened;
}

void thread_caches::recycle(thread_cache& cache) noexcept {
  cache.tables.clear();
  cache.turns = 0;
  cache.turned_away = no_stream;
  cache.current = &thread_cache::nothing;
  cache.per_thread_stream = {};
  idle_.push_back(&cache);
}

thread_caches::stop::stop(thread_caches& all, thread_cache* except) noexcept
    : all_{all}, except_{except}, inner_{std::exchange(all.stopped_, true)} {
  if (inner_) return;
  for (auto& each : all_.all_) {
    if (each.get() == except_) continue;
    any_ = true;
    each->attention.store(each->attention.load(std::memory_order_relaxed) | thread_cache::stopped,
                          std::memory_order_seq_cst);
  }
  if (!any_) return;
  asymmetric_barrier::heavy();
  for (auto& each : all_.all_)
    if (each.get() != except_) await_leave(*each);
}

thread_caches::stop::~stop() {
  if (inner_) return;
  all_.stopped_ = false;
  if (!any_) return;
  asymmetric_barrier::heavy();  // an owner that sees itself let go sees what was done before
  for (auto& each : all_.all_) {
    if (each.get() == except_) continue;
    each->attention.store(each->attention.load(std::memory_order_relaxed) & ~thread_cache::stopped,
                          std::memory_order_release);
  }
}

void thread_caches::await_owner(thread_cache& cache) noexcept {
  if (stopped_ || cache.remote.load(std::memory_order_relaxed) == remote_closed) return;
  // Kept out meanwhile: one that comes back all the time might never be seen outside.
  const std::uint32_t before = cache.attention.load(std::memory_order_relaxed);
  cache.attention.store(before | thread_cache::stopped, std::memory_order_seq_cst);
  asymmetric_barrier::heavy();
  await_leave(cache);
  cache.attention.store(before, std::memory_order_release);
}

void thread_caches::set_reason(std::uint32_t reason, bool on) noexcept {
  reasons_ = on ? reasons_ | reason : reasons_ & ~reason;
  for (auto& each : all_) {
    const std::uint32_t now = each->attention.load(std::memory_order_relaxed);
    each->attention.store(on ? now | reason : now & ~reason, std::memory_order_relaxed);
  }
}

void thread_caches::set_observer(event_sink* sink) noexcept {
  observer_ = sink;
  for (auto& each : all_) each->observer = sink;
  set_reason(thread_cache::observed, sink != nullptr);
}

std::size_t thread_caches::footprint() const noexcept {
  std::size_t total = sizeof *this;
  for (const auto& each : all_) total += each->footprint();
  return total;
}

}}}  // namespace weir::v0::heap

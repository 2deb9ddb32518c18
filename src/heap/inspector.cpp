// SPDX-License-Identifier: Apache-2.0
// Figures and snapshots: all caches stopped for a moment, everything counted.
#include "heap/inspector.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/hexadecimal.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// reserved is known to the stores; the rest follows from the ledger's figures. `away` is what is
/// handed out of suspended stores.
void complete(memory_stats& sums, std::uint64_t away) {
  sums.cached = sums.reserved.current + bytes{away} - sums.active.current;
}

void add_suspended(const pool_state& of, memory_stats& sums) noexcept {
  sums.suspended = bytes{of.memory->suspended_bytes()};
  std::uint64_t saved = 0;
  for (const saved_range& each : of.saved) saved += each.to.size;
  sums.backup = {bytes{saved}, bytes{saved}};
}

}  // namespace

memory_stats inspector::totals() const noexcept {
  memory_stats sums;
  core_.accounts_.total().fill(sums);
  sums.reserved = {bytes{core_.placement_.reserved}, bytes{core_.placement_.reserved_peak}};
  std::uint64_t away = 0;
  std::size_t footprint = heap_size_ + core_.blocks_.footprint() + core_.table_.footprint() +
                          core_.caches_.footprint() + core_.order_.footprint() +
                          core_.accounts_.footprint() + core_.pending_.footprint() +
                          core_.foreign_uses_.footprint();
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr) continue;
    footprint += each->memory->footprint();
    if (each->memory->is_suspended()) {
      away += each->memory->handed_out();
      sums.suspended += bytes{each->memory->suspended_bytes()};
      continue;
    }
    for (stream_slot slot = 1; slot <= core_.order_.count(); ++slot)
      sums.stream_bound += bytes{each->memory->bound_to(slot)};
  }
  complete(sums, away);
  const bytes with_suspended = sums.reserved.current + sums.suspended;
  sums.reserved_and_suspended = {
      with_suspended, std::max({with_suspended, sums.reserved.peak, bytes{peak_.read()}})};
  sums.backup = backup_.held();
  core_.caches_.for_each(
      [&](const thread_cache& each) { sums.thread_cached += bytes{each.held()}; });
  sums.handles_created = core_.placement_.handles_created;
  sums.handles_moved = core_.placement_.handles_moved;
  sums.handles_returned = core_.placement_.handles_returned;
  sums.handles_released = core_.placement_.handles_released;
  sums.waits = core_.order_.waits_queued() - waits_at_reset_;
  sums.events = core_.order_.events_recorded() - events_at_reset_;
  sums.metadata = bytes{footprint};
  return sums;
}

bytes inspector::reserved() {
  if (core_.home_->forked()) return {};
  const detail::mutex_lock lock{core_.mutex_};
  return bytes{core_.placement_.reserved};
}

memory_stats inspector::pool_totals(const pool_state& of) const noexcept {
  memory_stats sums;
  if (const heap::ledger* const ledger = core_.accounts_.of(of.id); ledger != nullptr)
    ledger->fill(sums);
  if (of.memory == nullptr) return sums;
  sums.reserved = {bytes{of.memory->reserved()}, bytes{of.memory->reserved_peak()}};
  add_suspended(of, sums);
  sums.reserved_and_suspended = {sums.reserved.current + sums.suspended,
                                 std::max(sums.reserved.peak, bytes{of.with_suspended_at_reset})};
  complete(sums, of.memory->is_suspended() ? of.memory->handed_out() : 0);
  sums.metadata = bytes{of.memory->footprint()};
  if (of.memory->is_suspended()) return sums;
  for (stream_slot slot = 1; slot <= core_.order_.count(); ++slot)
    sums.stream_bound += bytes{of.memory->bound_to(slot)};
  if (of.id == pool_id{})
    core_.caches_.for_each(
        [&](const thread_cache& each) { sums.thread_cached += bytes{each.held()}; });
  return sums;
}

memory_stats inspector::tag_totals(tag of) const noexcept {
  memory_stats sums;
  if (const heap::ledger* const ledger = core_.accounts_.of(of); ledger != nullptr)
    ledger->fill(sums);
  sums.reserved = sums.reserved_and_suspended = sums.active;
  const pool_state* const apart = host_.suspendable_pool(of);
  if (apart == nullptr || apart->memory == nullptr) return sums;
  add_suspended(*apart, sums);
  if (apart->memory->is_suspended())
    sums.reserved.current -= std::min(sums.active.current, bytes{apart->memory->handed_out()});
  return sums;
}

memory_stats inspector::stats() {
  if (!core_.usable()) return {};
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return {};
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  return totals();
}

memory_stats inspector::stats(tag of) {
  if (!core_.usable()) return {};
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return {};
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  return tag_totals(of);
}

memory_stats inspector::stats(pool_id of) {
  if (!core_.usable()) return {};
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return {};
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  const pool_state* const pool = core_.find_pool(of);
  return pool == nullptr ? memory_stats{} : pool_totals(*pool);
}

std::vector<tag_stats> inspector::tags_in_use() const {
  std::vector<tag_stats> all;
  for (std::size_t i = 0; i < core_.accounts_.tags(); ++i) {
    const auto tag = weir::tag::numbered(static_cast<std::uint16_t>(i));
    if (!tag) continue;
    const heap::ledger* const ledger = core_.accounts_.of(*tag);
    if (ledger == nullptr || (ledger->allocations == 0 && ledger->failures == 0)) continue;
    all.push_back({*tag, tag_totals(*tag)});
  }
  std::stable_sort(all.begin(), all.end(), [](const tag_stats& a, const tag_stats& b) {
    return a.stats.allocated.current > b.stats.allocated.current;
  });
  return all;
}

std::vector<tag_stats> inspector::stats_by_tag() {
  if (!core_.usable()) return {};
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return {};
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  return tags_in_use();
}

void inspector::reset_peaks() {
  if (!core_.usable()) return;
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return;
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  core_.accounts_.reset_peaks();
  core_.placement_.reserved_peak = core_.placement_.reserved;
  peak_.reset();
  backup_.reset_peak();
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr) continue;
    each->memory->reset_peak();
    each->with_suspended_at_reset = each->reserved() + each->suspended_bytes();
  }
}

void inspector::reset_counters() {
  if (!core_.usable()) return;
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return;
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  blocks_at_reset_ = core_.accounts_.total().blocks.current;
  core_.accounts_.reset_counters();
  core_.placement_.handles_created = 0;
  core_.placement_.handles_moved = 0;
  core_.placement_.handles_returned = 0;
  core_.placement_.handles_released = 0;
  waits_at_reset_ = core_.order_.waits_queued();
  events_at_reset_ = core_.order_.events_recorded();
}

allocator_snapshot inspector::snapshot() {
  allocator_snapshot snapshot;
  snapshot.device = core_.device_.id();
  if (!core_.usable()) return snapshot;
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return snapshot;
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  snapshot.stats = totals();
  for (const auto& each : core_.pools_) describe(*each, snapshot.pools.emplace_back());
  return snapshot;
}

pool_snapshot inspector::snapshot(pool_id of) {
  pool_snapshot snapshot;
  if (!core_.usable()) return snapshot;
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return snapshot;
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  if (const pool_state* const pool = core_.find_pool(of); pool != nullptr)
    describe(*pool, snapshot);
  return snapshot;
}

void inspector::describe(const pool_state& from, pool_snapshot& into) const {
  core_.mutex_.assert_held();
  into.id = from.id;
  into.name = from.name;
  into.stats = pool_totals(from);
  if (from.memory == nullptr) return;
  from.memory->describe(into);
  std::unordered_map<std::uint64_t, const order::pending_frees::waiting*> waiting;
  for (const auto& each : core_.pending_.all())
    waiting.emplace(core_.blocks_[each.index].address, &each);
  for (block_info& piece : into.blocks) {
    if (piece.state == block_state::pending) {
      const auto entry = waiting.find(piece.address);
      if (entry == waiting.end()) continue;
      for (const stamp each : entry->second->others)
        if (!core_.order_.stream_completed(each))
          piece.waits_for.push_back(core_.order_.id(each.stream));
    }
    if (piece.state != block_state::live) continue;
    const block& block = core_.blocks_[core_.table_.find(piece.address)];
    piece.requested = bytes{block.size() - block.out.waste};
    piece.tag = core_.accounts_.tag_of(block.account);
    for (const order::stream_slot slot : core_.pending_.recorded(core_.table_.find(piece.address)))
      piece.recorded.push_back(core_.order_.id(slot));
  }
}

std::vector<pool_snapshot> inspector::describe_all() {
  core_.mutex_.assert_held();
  host_.settle_caches();
  std::vector<pool_snapshot> all;
  for (const auto& each : core_.pools_) describe(*each, all.emplace_back());
  return all;
}

result<bytes> inspector::size_of(const void* pointer) {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  WEIR_TRY_VALUE(index, host_.find_live(pointer));
  return bytes{core_.blocks_[index].size() - core_.blocks_[index].out.waste};
}

result<block_info> inspector::block_at(const void* pointer) {
  WEIR_TRY(core_.usable());
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  block_index index = core_.table_.find(address);
  for (auto each = core_.pools_.begin(); index == no_block && each != core_.pools_.end(); ++each)
    if ((*each)->memory != nullptr) index = (*each)->memory->block_over(address);
  const block& block = core_.blocks_[index];  // no_block is the record that is never used
  if (!block.is_live()) return errc::foreign_pointer;
  return block_info{
      .address = block.address,
      .size = bytes{block.size()},
      .requested = bytes{block.size() - block.out.waste},
      .state = block_state::live,
      .stream = core_.order_.id(block.stream),
      .tag = core_.accounts_.tag_of(block.account),
      .pool = is_private(block.account) ? core_.accounts_.pool_of(block.account) : pool_id{},
      .suspended = core_.pool_of(block).memory->is_suspended(),
  };
}

std::string inspector::check() {
  if (!core_.usable()) return {};
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return {};
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  std::string wrong;
  const auto expect = [&](bool holds, std::string_view text) {
    if (!holds) wrong.append(text).append("\n");
  };
  const memory_stats all = totals();
  expect(all.requested.current <= all.allocated.current, "requested > allocated");
  expect(all.allocated.current <= all.active.current, "allocated > active");
  expect(all.active.current <= all.reserved.current + all.suspended, "active > reserved");
  expect(all.requested.peak <= all.allocated.peak, "peak of requested > allocated");
  expect(all.allocated.peak <= all.active.peak, "peak of allocated > active");
  expect(all.active.peak <= all.reserved_and_suspended.peak, "peak of active > reserved");
  expect(all.reserved.peak <= all.reserved_and_suspended.peak, "peak of reserved > with suspended");
  expect(all.active_requested.current <= all.active.current, "requested of active > active");
  expect(all.active_requested.peak <= all.active.peak, "peak of requested of active > active");
  expect(blocks_at_reset_ + all.allocations - all.frees == all.blocks.current,
         "allocations - frees != blocks");
  std::uint64_t handed_out = 0;
  std::uint64_t reserved = 0;
  std::uint64_t by_pool = 0;
  std::uint64_t blocks = 0;
  for (const auto& each : core_.pools_) {
    by_pool += core_.accounts_.of(each->id)->allocated.current;
    blocks += each->blocks;
    if (each->memory == nullptr) continue;
    handed_out += each->memory->handed_out();
    reserved += each->memory->reserved();
    expect(
        each->memory->is_suspended() == (each->where == residence::suspended) || each->is_moving(),
        "a pool and its store differ about being suspended");
    wrong += each->memory->check();
  }
  expect(bytes{handed_out} == all.active.current + all.thread_cached,
         "what the stores handed out is not what is active or cached by threads");
  expect(bytes{reserved} == all.reserved.current, "pools do not add up to reserved");
  expect(bytes{by_pool} == all.allocated.current, "pools do not add up to allocated");
  expect(blocks == core_.table_.size(), "the address table and the pools differ in blocks");
  std::uint64_t by_tag = 0;
  std::uint64_t requested_by_tag = 0;
  for (std::size_t i = 0; i < core_.accounts_.tags(); ++i) {
    const auto tag = weir::tag::numbered(static_cast<std::uint16_t>(i));
    const heap::ledger* const ledger = tag ? core_.accounts_.of(*tag) : nullptr;
    if (ledger == nullptr) continue;
    by_tag += ledger->allocated.current;
    requested_by_tag += ledger->requested.current;
  }
  expect(bytes{by_tag} == all.allocated.current, "tags do not add up to allocated");
  expect(bytes{requested_by_tag} == all.requested.current, "tags do not add up to requested");
  return wrong;
}

}}}  // namespace weir::v0::heap

namespace weir { inline namespace v0 {

std::string_view name(block_state state) noexcept {
  switch (state) {
    case block_state::live:
      return "live";
    case block_state::thread_cached:
      return "thread_cached";
    case block_state::pending:
      return "pending";
    case block_state::stream_bound:
      return "stream_bound";
    case block_state::free:
      return "free";
    case block_state::hole:
      return "hole";
  }
  return "unknown";
}

std::string to_string(const block_info& block) {
  std::string text = detail::hexadecimal(block.address) + ": " + to_string(block.size) + " " +
                     to_string(block.state);
  if (block.stream != stream_id{}) text += " on stream " + std::to_string(block.stream.number());
  for (const stream_id each : block.waits_for)
    text += (each == block.waits_for.front() ? ", waits for stream " : " and ") +
            std::to_string(each.number());
  for (const stream_id each : block.recorded)
    text += (each == block.recorded.front() ? ", recorded for stream " : " and ") +
            std::to_string(each.number());
  if (block.suspended) text += ", suspended";
  return text;
}

}}  // namespace weir::v0

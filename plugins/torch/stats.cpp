// SPDX-License-Identifier: Apache-2.0
// memory_stats() and memory_snapshot().
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "allocator.hpp"
#include "torch_snapshot.hpp"

namespace weir_torch {
namespace {

/// Of torch's segments for small requests.
constexpr std::uint64_t small_segment = std::uint64_t{2} << 20;

std::int64_t as_signed(std::uint64_t value) noexcept { return static_cast<std::int64_t>(value); }

/// weir knows no small and large pools; torch's sums must add up, so all of it counts as large.
void fill(stat_array& stats, weir::gauge gauge, std::int64_t allocated, std::int64_t freed) {
  stat_array::value_type all;
  all.current = as_signed(gauge.current);
  all.peak = as_signed(std::max(gauge.peak, gauge.current));
  all.allocated = std::max<std::int64_t>(allocated, 0);
  all.freed = std::max<std::int64_t>(freed, 0);
  stats[static_cast<std::size_t>(stat_type::AGGREGATE)] = all;
  stats[static_cast<std::size_t>(stat_type::LARGE_POOL)] = all;
}

/// Sums of blocks since the last reset: what was ever allocated is counted, and what was freed
/// follows from what is live.
void fill_sum(stat_array& stats, weir::gauge now, weir::gauge at_reset, std::uint64_t total,
              std::uint64_t total_at_reset) {
  const std::int64_t allocated = as_signed(total - total_at_reset);
  fill(stats, now, allocated, allocated - (as_signed(now.current) - as_signed(at_reset.current)));
}

/// The same of bytes.
void fill_sum(stat_array& stats, weir::gauge now, const running_sums::values& sums,
              const running_sums::values& at_reset) {
  fill(stats, now, as_signed(sums.allocated - at_reset.allocated),
       as_signed(sums.freed - at_reset.freed));
}

weir::gauge in_bytes(const weir::byte_gauge& size) {
  return {size.current.count(), size.peak.count()};
}

/// The counters of torch's pools, where torch asks for them.
template <class Stats>
void fill_pools(Stats& stats, const pool_reserves& reserves) {
  if constexpr (has_pool_stats<Stats>()) {
    for (const auto& [id, counters] : reserves.all())
      fill(pool_stats(stats, id), {counters.current, counters.peak}, as_signed(counters.allocated),
           as_signed(counters.freed));
  }
}

/// weir's, less the padding that torch's settings add to requests. (A peak is less by what it is
/// now.)
weir::memory_stats stats_of(const device_state& state) {
  weir::memory_stats stats = state.memory.stats();
  const weir::bytes padding{state.padded.padding()};
  weir::byte_gauge& requested = stats.active_requested;
  requested.current -= std::min(padding, requested.current);
  requested.peak = std::max(requested.peak - std::min(padding, requested.peak), requested.current);
  return stats;
}

struct reading {
  weir::memory_stats stats;
  byte_sums sums;
};

reading read_counters(device_state& state, const byte_counters& counters) {
  const std::lock_guard lock{state.reading_mutex};
  const byte_counters::sums counted = counters.read(static_cast<std::size_t>(state.index));
  const weir::memory_stats stats = stats_of(state);
  return {
      .stats = stats,
      .sums = {.allocated =
                   state.allocated_sums.update(counted.rounded, stats.allocated.current.count()),
               .active = state.active_sums.update(counted.rounded, stats.active.current.count()),
               .requested = state.requested_sums.update(counted.requested,
                                                        stats.active_requested.current.count())}};
}

}  // namespace

void weir_allocator::note_pool_reserves(device_state& state) {
  if constexpr (!has_pool_stats()) return;
  std::map<MempoolId_t, weir::byte_gauge> seen;
  for (const auto& [id, pool] : state.pools.all()) seen[id] = pool.stats().reserved;
  const std::lock_guard lock{state.mutex};
  std::vector<MempoolId_t> released;
  for (const auto& id : state.private_reserves.with_memory())
    if (seen.count(id) == 0) released.push_back(id);
  if (!released.empty()) {
    for (const auto& id : released) seen[id] = {};  // unless it is found among what still exists
    for (const weir::pool_snapshot& pool : state.memory.snapshot().pools) {
      const auto entry = seen.find(state.pools.torch_id_of(pool.id));
      if (entry == seen.end()) continue;
      if (std::find(released.begin(), released.end(), entry->first) == released.end()) continue;
      entry->second.current += pool.stats.reserved.current;
    }
  }
  for (const auto& [id, reserved] : seen)
    state.private_reserves.note(id, reserved.current.count(), reserved.peak.count());
}

torch_cuda::DeviceStats weir_allocator::getDeviceStats(c10::DeviceIndex device) {
  torch_cuda::DeviceStats stats;
  stats.max_split_size = -1;
  check_device(device);
  device_state* const state = find_state(device);
  if (state == nullptr) return stats;
  const auto [now, sums] = read_counters(*state, byte_counters_);
  note_pool_reserves(*state);
  counters_at_reset reset;
  {
    const std::lock_guard lock{state->mutex};
    reset = state->reset;
    fill_pools(stats, state->private_reserves);
  }
  const auto since = [](std::uint64_t counter, std::uint64_t before) {
    return as_signed(counter - before);
  };

  fill_sum(stats.allocation, now.blocks, reset.stats.blocks, now.allocations,
           reset.stats.allocations);
  fill_sum(stats.active, now.active_blocks, reset.stats.active_blocks, now.allocations,
           reset.stats.allocations);
  const std::uint64_t handles = now.handles_created - now.handles_released;
  const std::int64_t created = since(now.handles_created, reset.stats.handles_created);
  const std::int64_t released = since(now.handles_released, reset.stats.handles_released);
  fill(stats.segment, {handles, handles}, created, released);
  fill_sum(stats.allocated_bytes, in_bytes(now.allocated), sums.allocated, reset.sums.allocated);
  fill_sum(stats.active_bytes, in_bytes(now.active), sums.active, reset.sums.active);
  // To torch, memory that waits for recorded streams is requested still, though not allocated; and
  // padding that its settings add is not.
  fill_sum(stats.requested_bytes, in_bytes(now.active_requested), sums.requested,
           reset.sums.requested);
  // Of physical memory only the net change is known.
  const std::int64_t grown =
      as_signed(now.reserved.current.count()) - as_signed(reset.stats.reserved.current.count());
  fill(stats.reserved_bytes, in_bytes(now.reserved), grown, -grown);
  stats.num_ooms = since(state->ooms, reset.ooms);
  stats.num_device_alloc = created;
  stats.num_device_free = released;
  stats.num_sync_all_streams = since(state->synchronizations, reset.synchronizations);
  return stats;
}

void weir_allocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check_device(device);
  device_state* const state = find_state(device);
  if (state == nullptr) return;
  counters_at_reset now;
  const reading read = read_counters(*state, byte_counters_);
  now.stats = read.stats;
  now.sums = read.sums;
  now.synchronizations = state->synchronizations;
  now.ooms = state->ooms;
  note_pool_reserves(*state);
  const std::lock_guard lock{state->mutex};
  state->reset = now;
  state->private_reserves.reset_sums();
}

void weir_allocator::resetPeakStats(c10::DeviceIndex device) {
  check_device(device);
  device_state* const state = find_state(device);
  if (state == nullptr) return;
  note_pool_reserves(*state);
  state->memory.reset_peaks();
  const std::lock_guard lock{state->mutex};
  state->private_reserves.reset_peaks();
}

// --- Snapshots ----------------------------------------------------------------------------------

void weir_allocator::add_to_snapshot(device_state& state, MempoolId_t only,
                                     torch_cuda::SnapshotInfo& snapshot) {
  const weir::allocator_snapshot all = state.memory.snapshot();
  std::unordered_set<std::uint64_t> pending;
  std::uint64_t active = 0;
  for (const weir::pool_snapshot& pool : all.pools) {
    // Processes with the same requests must have the same order. An arena is one range of addresses
    // that is filled in the order of the requests; segments are numbered.
    std::size_t position = 0;
    const MempoolId_t id = state.pools.torch_id_of(pool.id);
    const bool is_shown = only == MempoolId_t(0, 0) || id == only;
    for (const snapshot_segment& range : segments_of(pool)) {
      torch_cuda::SegmentInfo segment;
      segment.device = state.index;
      segment.address = range.address;
      segment.total_size = range.size;
      segment.requested_size = range.requested;
      segment.allocated_size = range.allocated;
      segment.active_size = range.active;
      segment.stream = state.streams.handle_of(range.stream);
      segment.is_large = !pool.in_segments || range.size > small_segment;
      segment.is_expandable = !pool.in_segments;
      segment.owner_private_pool_id = id;
      set_registration_order(segment, range.number != 0 ? range.number : position);
      ++position;
      segment.context_when_allocated = state.history.segment_stack_of(range.address);
      for (const snapshot_block& piece : range.blocks) {
        if (piece.state == snapshot_block::kind::pending_free) pending.insert(piece.address);
        if (!is_shown) continue;
        torch_cuda::BlockInfo block;
        block.size = piece.size;
        block.requested_size = piece.requested;
        if (block.requested_size != 0 && state.padded.any()) {
          const auto* const address = reinterpret_cast<const void*>(piece.address);
          block.requested_size = state.padded.requested_of(address).value_or(piece.requested);
          segment.requested_size -= piece.requested - block.requested_size;
        }
        block.allocated = piece.state == snapshot_block::kind::allocated;
        block.active = piece.state != snapshot_block::kind::inactive;
        if (block.allocated) block.context_when_allocated = state.history.stack_of(piece.address);
        segment.blocks.push_back(std::move(block));
      }
      if (!is_shown) continue;
      active += range.active;
      snapshot.segments.push_back(std::move(segment));
    }
  }
  state.history.complete_frees(pending);
  std::sort(snapshot.segments.begin(), snapshot.segments.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  if (snapshot.device_traces.size() > static_cast<std::size_t>(state.index))
    snapshot.device_traces[static_cast<std::size_t>(state.index)] = state.history.entries();
  state.history.on_snapshot(active, only);
}

torch_cuda::SnapshotInfo weir_allocator::snapshot(MempoolId_t pool, bool with_traces) {
  torch_cuda::SnapshotInfo info{};
  if (with_traces) info.device_traces.resize(static_cast<std::size_t>(devices_.load()));
  for_each_device([&](device_state& state) { add_to_snapshot(state, pool, info); });
  if (with_traces) {
    static auto& clock = *new c10::ApproximateClockToUnixTimeConverter;
    const auto to_ns = clock.makeConverter();
    info.external_annotations = annotations_.all();
    for (auto& entry : info.external_annotations)
      entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    for (auto& entries : info.device_traces)
      for (auto& entry : entries) entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
  }
  info.config_metadata = describe_settings<decltype(info.config_metadata)>();
  return info;
}

}  // namespace weir_torch

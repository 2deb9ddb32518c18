// Numbers and pictures: memory_stats() and memory_snapshot().
#include <c10/core/AllocatorConfig.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <cstdint>
#include <unordered_set>

#include "allocator.hpp"
#include "pictures.hpp"

namespace weir_torch {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

std::int64_t as_signed(std::uint64_t value) noexcept { return static_cast<std::int64_t>(value); }

/// weir knows no small and large pools; torch's sums must add up, so all of it counts as large.
void fill(StatArray& out, weir::gauge now, std::int64_t allocated, std::int64_t freed) {
  Stat all;
  all.current = as_signed(now.current);
  all.peak = as_signed(std::max(now.peak, now.current));
  all.allocated = std::max<std::int64_t>(allocated, 0);
  all.freed = std::max<std::int64_t>(freed, 0);
  out[static_cast<std::size_t>(StatType::AGGREGATE)] = all;
  out[static_cast<std::size_t>(StatType::LARGE_POOL)] = all;
}

/// Sums since the last reset: what was ever allocated is counted, and what was freed follows from
/// what is left.
void fill_sum(StatArray& out, weir::gauge now, weir::gauge then, std::uint64_t ever,
              std::uint64_t ever_then) {
  const std::int64_t allocated = as_signed(ever - ever_then);
  fill(out, now, allocated, allocated - (as_signed(now.current) - as_signed(then.current)));
}

}  // namespace

torch_cuda::DeviceStats weir_allocator::getDeviceStats(c10::DeviceIndex device) {
  torch_cuda::DeviceStats out;
  out.max_split_size = -1;
  device_seat* const there = seat(device);
  if (there == nullptr) return out;
  const weir::memory_stats now = there->memory.stats();
  const tally::sums ever = counted_.read(static_cast<std::size_t>(device));
  counters_at_reset then;
  {
    const std::lock_guard lock{there->watching};
    then = there->reset;
  }
  const auto since = [](std::uint64_t counter, std::uint64_t before) {
    return as_signed(counter - before);
  };

  fill_sum(out.allocation, now.blocks, then.stats.blocks, now.allocations, then.stats.allocations);
  fill_sum(out.active, now.active_blocks, then.stats.active_blocks, now.allocations,
           then.stats.allocations);
  const std::uint64_t handles = now.handles_created - now.handles_released;
  const std::int64_t created = since(now.handles_created, then.stats.handles_created);
  const std::int64_t released = since(now.handles_released, then.stats.handles_released);
  fill(out.segment, {handles, handles}, created, released);
  fill_sum(out.allocated_bytes, now.allocated, then.stats.allocated, ever.rounded, then.rounded);
  fill_sum(out.active_bytes, now.active, then.stats.active, ever.rounded, then.rounded);
  // To torch, what waits for recorded streams is requested still, though not allocated.
  fill_sum(out.requested_bytes, now.active_requested, then.stats.active_requested, ever.asked,
           then.asked);
  // Of physical memory only the net change is known.
  const std::int64_t grown =
      as_signed(now.reserved.current) - as_signed(then.stats.reserved.current);
  fill(out.reserved_bytes, now.reserved, grown, -grown);
  out.num_ooms = since(there->shortages, then.shortages);
  out.num_device_alloc = created;
  out.num_device_free = released;
  out.num_sync_all_streams = since(there->synchronizations, then.synchronizations);
  return out;
}

void weir_allocator::resetAccumulatedStats(c10::DeviceIndex device) {
  device_seat* const there = seat(device);
  if (there == nullptr) return;
  counters_at_reset now;
  now.stats = there->memory.stats();
  const tally::sums ever = counted_.read(static_cast<std::size_t>(device));
  now.asked = ever.asked;
  now.rounded = ever.rounded;
  now.synchronizations = there->synchronizations;
  now.shortages = there->shortages;
  const std::lock_guard lock{there->watching};
  there->reset = now;
}

void weir_allocator::resetPeakStats(c10::DeviceIndex device) {
  if (device_seat* const there = seat(device)) there->memory.reset_peaks();
}

// --- Snapshots ----------------------------------------------------------------------------------

void weir_allocator::draw_device(device_seat& there, MempoolId_t only,
                                 torch_cuda::SnapshotInfo& into) {
  const weir::allocator_snapshot all = there.memory.snapshot();
  std::unordered_set<std::uint64_t> pending;
  std::uint64_t active = 0;
  for (const weir::pool_snapshot& pool : all.pools) {
    const MempoolId_t id = there.pools.name_of(pool.id);
    const bool shown = only == MempoolId_t(0, 0) || id == only;
    for (const segment_picture& each : draw(pool)) {
      torch_cuda::SegmentInfo segment;
      segment.device = there.index;
      segment.address = each.address;
      segment.total_size = each.size;
      segment.requested_size = each.requested;
      segment.allocated_size = each.allocated;
      segment.active_size = each.active;
      segment.stream = there.streams.handle_of(each.stream);
      segment.is_large = true;
      segment.is_expandable = true;
      segment.owner_private_pool_id = id;
      for (const block_picture& piece : each.blocks) {
        if (piece.state == block_picture::kind::pending_free) pending.insert(piece.address);
        if (!shown) continue;
        torch_cuda::BlockInfo block;
        block.size = piece.size;
        block.requested_size = piece.requested;
        block.allocated = piece.state == block_picture::kind::allocated;
        block.active = piece.state != block_picture::kind::inactive;
        if (block.allocated) block.context_when_allocated = there.past.stack_of(piece.address);
        segment.blocks.push_back(std::move(block));
      }
      if (!shown) continue;
      active += each.active;
      into.segments.push_back(std::move(segment));
    }
  }
  there.past.complete_frees(pending);
  std::sort(into.segments.begin(), into.segments.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  if (into.device_traces.size() > static_cast<std::size_t>(there.index))
    into.device_traces[static_cast<std::size_t>(there.index)] = there.past.entries();
  there.past.snapshot_taken(active, only);
}

torch_cuda::SnapshotInfo weir_allocator::snapshot(MempoolId_t pool, bool with_traces) {
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  using torch_cuda::CUDAAllocatorConfig;
  torch_cuda::SnapshotInfo out;
  if (with_traces) out.device_traces.resize(static_cast<std::size_t>(devices_.load()));
  for_each_seat([&](device_seat& each) { draw_device(each, pool, out); });
  if (with_traces) {
    static auto& clock = *new c10::ApproximateClockToUnixTimeConverter;
    const auto to_ns = clock.makeConverter();
    out.external_annotations = annotations_.all();
    for (auto& entry : out.external_annotations)
      entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
    for (auto& entries : out.device_traces)
      for (auto& entry : entries) entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
  }
  auto& config = out.config_metadata;
  config.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  config.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  config.pinned_num_register_threads = CUDAAllocatorConfig::pinned_num_register_threads();
  config.expandable_segments = CUDAAllocatorConfig::expandable_segments();
  config.release_lock_on_malloc = CUDAAllocatorConfig::release_lock_on_cudamalloc();
  config.pinned_use_host_register = CUDAAllocatorConfig::pinned_use_cuda_host_register();
  config.last_allocator_settings = AcceleratorAllocatorConfig::last_allocator_settings();
  config.graph_capture_record_stream_reuse =
      CUDAAllocatorConfig::graph_capture_record_stream_reuse();
  config.roundup_power2_divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
  return out;
}

}  // namespace weir_torch

// SPDX-License-Identifier: Apache-2.0
// Pools for graphs and users, and the checkpoints that graph trees return to.
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "allocator.hpp"
#include "errors.hpp"
#include "provider_source.hpp"

namespace weir_torch {
namespace {

struct live_block {
  weir::bytes size;  // as requested
  weir::stream_id stream;

  friend bool operator==(const live_block&, const live_block&) = default;
};
using live_blocks = std::map<std::uint64_t, live_block>;

/// The live blocks of a pool at some moment.
struct checkpoint final : torch_cuda::AllocatorState {
  MempoolId_t pool;
  live_blocks blocks;
};

live_blocks live_in(const weir::memory_pool& pool) {
  live_blocks live;
  for (const weir::block_info& block : pool.snapshot().blocks) {
    if (block.state == weir::block_state::live)
      live.emplace(block.address, live_block{block.requested, block.stream});
  }
  return live;
}

void check_provider(const torch_cuda::CUDAAllocator* provider) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      provider == nullptr,
      "weir.torch.enable() makes all memory of this process weir's: a MemPool with an allocator of "
      "its own is not supported. Use MemPool() without one, or run without weir.torch.enable().");
}

weir::memory_pool find_pool(const device_state& state, MempoolId_t id) {
  weir::memory_pool pool = state.pools.find(id);
  TORCH_CHECK(pool, "Could not find pool of id (", id.first, ", ", id.second, ")");
  return pool;
}

}  // namespace

void weir_allocator::beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                                         std::function<bool(cudaStream_t)> filter) {
  // torch before 2.8 does not say with createOrIncrefPool() that a pool has an allocator.
  if (const active_pool active = find_active_pool(); active.id == pool)
    check_provider(active.provider);
  device_state& state = state_of(device);
  const auto current = c10::cuda::getCurrentCUDAStream(device);
  // Now or never: a stream that a capture took in cannot be identified.
  state.pools.begin(pool, std::move(filter), state.streams.identify_all(current));
}

void weir_allocator::markCaptureBegin(c10::DeviceIndex device) {
  state_of(device).pools.mark_capture_begin();
}

void weir_allocator::markCaptureEnd(c10::DeviceIndex device) {
  state_of(device).pools.mark_capture_end();
}

void weir_allocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) {
  device_state& state = state_of(device);
  state.pools.end(pool);
  state.reuse.end(pool, !state.pools.is_capturing());
}

void weir_allocator::releasePool(c10::DeviceIndex device, MempoolId_t pool) {
  device_state& state = state_of(device);
  if (state.pools.use_count(pool) == 1) note_pool_reserves(state);  // the last time that it can be
  state.pools.release(pool);
}

int weir_allocator::getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) {
  return state_of(device).pools.use_count(pool);
}

void weir_allocator::createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool,
                                        std::shared_ptr<torch_cuda::CUDAAllocator> provider) {
  weir::pool_options options{.for_graphs = true, .segments = true};
  if (provider != nullptr)
    options.source = std::make_shared<provider_source>(device, std::move(provider));
  state_of(device).pools.acquire(pool, std::move(options));
}

void weir_allocator::setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool value) {
  state_of(device).pools.set_fallback(pool, value);
}

void weir_allocator::setNoSplit(c10::DeviceIndex device, MempoolId_t pool) {
  state_of(device).pools.set_no_split(pool);
}

// --- Checkpoints --------------------------------------------------------------------------------

bool weir_allocator::checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                              const std::unordered_set<void*>& expected) {
  const live_blocks live = live_in(find_pool(state_of(device), pool));
  if (live.size() != expected.size()) return false;
  for (const auto& [address, block] : live)
    if (expected.count(reinterpret_cast<void*>(address)) == 0) return false;
  return true;
}

std::shared_ptr<torch_cuda::AllocatorState> weir_allocator::getCheckpointState(
    c10::DeviceIndex device, MempoolId_t pool) {
  auto saved = std::make_shared<checkpoint>();
  saved->pool = pool;
  saved->blocks = live_in(find_pool(state_of(device), pool));
  return saved;
}

torch_cuda::CheckpointDelta weir_allocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> saved) {
  const auto target = std::dynamic_pointer_cast<checkpoint>(saved);
  TORCH_CHECK(target != nullptr, "the checkpoint was not created by weir");
  device_state& state = state_of(device);
  const weir::memory_pool pool = find_pool(state, target->pool);
  torch_cuda::CheckpointDelta delta;
  // torch is told that all blocks were freed and allocated again, and takes the live ones over;
  // those that are unchanged need not be touched for that.
  const live_blocks live = live_in(pool);
  for (const auto& [address, block] : live) {
    void* const pointer = reinterpret_cast<void*>(address);
    delta.ptrs_freed.push_back(pointer);
    const auto kept = target->blocks.find(address);
    if (kept == target->blocks.end() || !(kept->second == block)) raw_delete(pointer);
  }
  for (const auto& [address, block] : target->blocks) {
    void* const pointer = reinterpret_cast<void*>(address);
    const auto current = live.find(address);
    if (current == live.end() || !(current->second == block)) {
      const auto stream = state.streams.with_id(block.stream);
      TORCH_CHECK(stream, "a block of the checkpoint belongs to an unknown stream");
      static_cast<void>(checked(pool.allocate_at(pointer, block.size, *stream)));
      byte_counters_.add(static_cast<std::size_t>(device), block.size.count());
      // As the frees above were.
      const weir::bytes taken = checked(weir::caching_allocator::rounded_size(block.size));
      notify_tools(state, pointer, static_cast<std::int64_t>(taken.count()));
      if (state.history.is_active()) {
        state.history.on_allocated(trace_of(state, pointer),
                                   state.history.capture_stack(torch_cuda::RecordContext::STATE));
      }
    }
    delta.dataptrs_allocd.emplace_back(pointer, pointer, &deleter, c10::Device{c10::kCUDA, device});
  }
  return delta;
}

}  // namespace weir_torch

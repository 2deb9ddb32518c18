// Pools for graphs and users, and the states that graph trees go back to.
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "allocator.hpp"
#include "errors.hpp"

namespace weir_torch {
namespace {

struct live_block {
  weir::bytes size;  // as asked for
  weir::stream_id stream;

  friend bool operator==(const live_block&, const live_block&) = default;
};
using live_blocks = std::map<std::uint64_t, live_block>;

/// What was live in a pool at some moment.
struct checkpoint final : torch_cuda::AllocatorState {
  MempoolId_t pool;
  live_blocks blocks;
};

live_blocks live_in(const weir::memory_pool& pool) {
  live_blocks out;
  for (const weir::block_info& piece : pool.snapshot().blocks) {
    if (piece.state == weir::block_state::live)
      out.emplace(piece.address, live_block{piece.requested, piece.stream});
  }
  return out;
}

weir::memory_pool find_pool(const device_seat& seat, MempoolId_t id) {
  weir::memory_pool found = seat.pools.find(id);
  TORCH_CHECK(found, "Could not find pool of id (", id.first, ", ", id.second, ")");
  return found;
}

}  // namespace

void weir_allocator::beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                                         std::function<bool(cudaStream_t)> filter) {
  device_seat& seat = at(device);
  const auto current = c10::cuda::getCurrentCUDAStream(device);
  // Now or never: a stream that a capture took in cannot be asked.
  seat.streams.identify_all(current);
  std::optional<weir::stream_ref> scratch;
  seat.pools.begin(pool, std::move(filter), seat.streams.look_up(current, scratch));
}

void weir_allocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) {
  at(device).pools.end(pool);
}

void weir_allocator::releasePool(c10::DeviceIndex device, MempoolId_t pool) {
  at(device).pools.release(pool);
}

int weir_allocator::getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) {
  return at(device).pools.uses(pool);
}

void weir_allocator::createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool,
                                        std::shared_ptr<torch_cuda::CUDAAllocator> provider) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      provider == nullptr,
      "weir.torch.enable() makes all memory of this process weir's: a MemPool with an allocator of "
      "its own is not supported. Use MemPool() without one, or run without weir.torch.enable().");
  at(device).pools.acquire(pool);
}

void weir_allocator::setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool value) {
  at(device).pools.set_last_resort(pool, value);
}

void weir_allocator::setNoSplit(c10::DeviceIndex /*device*/, MempoolId_t /*pool*/) {
  TORCH_WARN_ONCE("weir has no segments that it could leave whole: no_split has no effect");
}

// --- Checkpoints --------------------------------------------------------------------------------

bool weir_allocator::checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                              const std::unordered_set<void*>& expected) {
  const live_blocks live = live_in(find_pool(at(device), pool));
  if (live.size() != expected.size()) return false;
  for (const auto& [address, block] : live)
    if (expected.count(reinterpret_cast<void*>(address)) == 0) return false;
  return true;
}

std::shared_ptr<torch_cuda::AllocatorState> weir_allocator::getCheckpointState(
    c10::DeviceIndex device, MempoolId_t pool) {
  auto state = std::make_shared<checkpoint>();
  state->pool = pool;
  state->blocks = live_in(find_pool(at(device), pool));
  return state;
}

torch_cuda::CheckpointDelta weir_allocator::setCheckpointPoolState(
    c10::DeviceIndex device, std::shared_ptr<torch_cuda::AllocatorState> state) {
  const auto wanted = std::dynamic_pointer_cast<checkpoint>(state);
  TORCH_CHECK(wanted != nullptr, "not a checkpoint of weir's");
  device_seat& seat = at(device);
  const weir::memory_pool pool = find_pool(seat, wanted->pool);
  torch_cuda::CheckpointDelta delta;
  // torch is told that everything was freed and made again, and takes what is live over; what is
  // as it was need not be touched for that.
  const live_blocks live = live_in(pool);
  for (const auto& [address, block] : live) {
    void* const pointer = reinterpret_cast<void*>(address);
    delta.ptrs_freed.push_back(pointer);
    const auto kept = wanted->blocks.find(address);
    if (kept == wanted->blocks.end() || !(kept->second == block)) raw_delete(pointer);
  }
  for (const auto& [address, block] : wanted->blocks) {
    void* const pointer = reinterpret_cast<void*>(address);
    const auto there = live.find(address);
    if (there == live.end() || !(there->second == block)) {
      const auto stream = seat.streams.with_id(block.stream);
      TORCH_CHECK(stream, "a block of the checkpoint belongs to a stream that is not known");
      static_cast<void>(checked(pool.allocate_at(pointer, block.size, *stream)));
      counted_.add(static_cast<std::size_t>(device), block.size.count());
      if (seat.past.wanted()) {
        seat.past.allocated(note_of(seat, pointer),
                            seat.past.gather(torch_cuda::RecordContext::STATE));
      }
    }
    delta.dataptrs_allocd.emplace_back(pointer, pointer, &deleter, c10::Device{c10::kCUDA, device});
  }
  return delta;
}

}  // namespace weir_torch

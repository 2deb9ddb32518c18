// SPDX-License-Identifier: Apache-2.0
// The devices' states, limits and caches.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/env.h>

#include <algorithm>
#include <utility>

#include "allocator.hpp"
#include "errors.hpp"
#include "memory_limit.hpp"

namespace weir_torch {
namespace {

bool is_classic(weir::placement_policy policy) noexcept {
  return policy == weir::placement_policy::classic ||
         policy == weir::placement_policy::classic_expandable;
}

/// Calls back those who registered with torch to free memory where none is cached.
bool run_torch_callbacks() noexcept {
  bool freed = false;
  try {
    auto* const registry = c10::FreeCudaMemoryCallbacksRegistry();
    for (const auto& name : registry->Keys()) freed |= registry->Create(name)->Execute();
  } catch (...) {
    // One that failed freed nothing; the request fails with its own error.
  }
  return freed;
}

/// Whether the environment sends every request to cudaMalloc: to find errors with a memory checker,
/// for which a cache hides them.
bool is_cache_forbidden() {
  static const bool forbidden =
      c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING").value_or(false);
  return forbidden;
}

void check_index(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && static_cast<std::size_t>(device) < byte_counters::max_devices,
              "Invalid device argument ", static_cast<int>(device));
}

}  // namespace

weir_allocator::weir_allocator(std::shared_ptr<weir::runtime> runtime, weir::options settings,
                               bool exportable_if_possible)
    : runtime_{std::move(runtime)},
      settings_{std::move(settings)},
      exportable_if_possible_{exportable_if_possible} {
  if (runtime_->device_count() > 1) device_by_page_ = std::make_unique<device_by_page>();
  update_slow_path();
}

void weir_allocator::mark_stream_used(c10::DeviceIndex device, std::int64_t id) {
  check_index(device);
  stream_table::mark_used(used_streams_[static_cast<std::size_t>(device)], id);
}

void weir_allocator::init(int devices) { devices_ = std::max(devices_.load(), devices); }
bool weir_allocator::initialized() { return devices_ > 0; }

void weir_allocator::check_device(c10::DeviceIndex device) const {
  TORCH_CHECK(device >= 0 && device < devices_.load(), "Invalid device argument ",
              static_cast<int>(device), ": did you call init?");
}

device_state& weir_allocator::create_state(c10::DeviceIndex device) {
  check_index(device);
  const std::lock_guard lock{mutex_};
  if (device_state* const existing = find_state(device)) return *existing;
  const weir::device gpu = checked(runtime_->device(weir::device_id{device}));
  auto options = weir::allocator_options::from(settings_);
  if (exportable_if_possible_)
    options.exportable = gpu.capabilities().posix_descriptors && !is_classic(options.policy);
  auto memory = checked(weir::caching_allocator::create(gpu, options));
  auto* const state =
      new device_state{device, std::move(memory), used_streams_[static_cast<std::size_t>(device)],
                       [this] { update_slow_path(); }};
  if (options.policy == weir::placement_policy::classic_expandable)
    state->history.let_segments_expand();
  // Work on any stream that torch has handed out counts, whether or not it ever requests memory.
  state->stream_source = checked(
      weir::watch_streams(gpu, [table = &state->streams](std::vector<weir::stream_ref>& streams) {
        table->append_used(streams);
      }));
  // A first probe for streams that were handed out before: the sooner, the fewer can have wrapped
  // around since.
  std::vector<weir::stream_ref> used_until_now;
  state->streams.append_used(used_until_now);
  state->oom_callback =
      state->memory.on_out_of_memory([](weir::bytes) { return run_torch_callbacks(); }).value();
  // Tensors that other processes are done with, for instance.
  state->growth_callback =
      state->memory.before_growth([](weir::bytes) { return run_torch_callbacks(); }).value();
  const double fraction = configured_memory_fraction();
  if (fraction < 1.0) {
    state->memory_fraction = fraction;
    checked(state->memory.set_limit(memory_limit(settings_, gpu.total_memory(), fraction)));
  }
  if (device_by_page_ == nullptr) only_state_.store(state, std::memory_order_release);
  states_[static_cast<std::size_t>(device)].store(state, std::memory_order_release);
  if (history_settings_.enabled) state->history.configure(history_settings_);
  for (const auto& tracker : trackers_) state->history.attach(tracker);
  const std::lock_guard state_lock{state->mutex};
  state->update_history_observer();
  state->update_growth_observer(torch_settings_.collection_threshold() > 0);
  return *state;
}

device_state* weir_allocator::ask_each_for(const void* pointer) const noexcept {
  for (const auto& each : states_) {
    device_state* const state = each.load(std::memory_order_acquire);
    if (state != nullptr && state->memory.block_at(pointer)) return state;
  }
  return nullptr;
}

void weir_allocator::update_slow_path() {
  if (is_forked()) return;
  static std::mutex& updating = *new std::mutex;
  const std::lock_guard lock{updating};
  std::uint32_t reasons = 0;
  for_each_device([&](device_state& state) {
    if (state.pools.is_active()) reasons |= pools_active;
    if (state.history.is_active()) reasons |= history_active;
    if (state.padded.any()) reasons |= rounding_up;
  });
  if (torch_settings_.rounding().rounds_up()) reasons |= rounding_up;
  if (torch_settings_.collection_threshold() > 0) reasons |= collecting;
  if (ipc_server_.load(std::memory_order_acquire) != nullptr) reasons |= sharing_active;
  if (is_cache_forbidden() || !isEnabled()) reasons |= cache_off;
  if (uncached_.any()) reasons |= uncached_live;
  slow_path_.store(reasons, std::memory_order_relaxed);
}

void weir_allocator::on_forked_child() noexcept {
  // A process that never created a device's state has neither memory nor locks of the plug-in, and
  // its child may begin anew.
  for_each_device([&](device_state&) { slow_path_.store(forked, std::memory_order_relaxed); });
}

void weir_allocator::apply_settings() {
  torch_settings_.refresh();
  const bool has_threshold = torch_settings_.collection_threshold() > 0;
  for_each_device([&](device_state& state) {
    const std::lock_guard state_lock{state.mutex};
    state.update_growth_observer(has_threshold);
  });
  update_slow_path();
}

void weir_allocator::enable(bool value) {
  enabled_.store(value, std::memory_order_relaxed);
  update_slow_path();
}

// --- Limits and caches --------------------------------------------------------------------------

double weir_allocator::getMemoryFraction(c10::DeviceIndex device) {
  check_index(device);
  device_state& state = state_of(device);
  const std::lock_guard lock{state.mutex};
  return state.memory_fraction;
}

void weir_allocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  check_index(device);
  device_state& state = state_of(device);
  checked(state.memory.set_limit(memory_limit(settings_, state.gpu.total_memory(), fraction)));
  const std::lock_guard lock{state.mutex};
  state.memory_fraction = fraction;
}

void weir_allocator::emptyCache(MempoolId_t pool) {
  if (pool != MempoolId_t(0, 0)) {
    // A pool that is in use keeps its memory, for graphs that may be replayed. One that is not
    // releases it by itself as streams come to rest; who asks for it wants that now.
    for_each_device([&](device_state& state) {
      const event_stack cause{state.history.capture_stack(torch_cuda::RecordContext::ALL)};
      state.pools.empty_released(pool);
    });
    return;
  }
  for_each_device([](device_state& state) {
    const event_stack cause{state.history.capture_stack(torch_cuda::RecordContext::ALL)};
    state.synchronizations.fetch_add(1, std::memory_order_relaxed);
    state.unmaps.drain(state.pools.is_capturing());
    const auto released = state.memory.empty_cache();
    if (!released && released.code() != weir::errc::capture_forbidden) fail(released.error());
  });
}

void weir_allocator::cacheInfo(c10::DeviceIndex device, std::size_t* largest) {
  device_state& state = state_of(device);
  const weir::memory_stats stats = state.memory.stats();
  std::uint64_t room = (stats.cached - std::min(stats.cached, stats.stream_bound)).count();
  if (const auto info = state.gpu.memory_info(); info) room += info->free.count();
  const std::uint64_t limit = state.memory.limit().count();
  room = std::min(room, limit - std::min(limit, stats.active.current.count()));
  *largest = std::max<std::size_t>(*largest, room);
}

void* weir_allocator::getBaseAllocation(void* pointer, std::size_t* size) {
  const weir::block_info block = checked(owner_of(pointer).memory.block_at(pointer));
  if (size != nullptr) *size = block.size.count();
  return reinterpret_cast<void*>(block.address);
}

segment_sizes weir_allocator::getExpandableSegmentSizes(c10::DeviceIndex /*device*/) {
  return {};  // weir's memory belongs to no stream
}

void weir_allocator::enablePeerAccess(c10::DeviceIndex from, c10::DeviceIndex to) {
  check_index(from);
  check_index(to);
  {
    // Memory that did not come from here is reached by whole devices.
    const c10::cuda::CUDAGuard guard{from};
    const cudaError_t enabled = cudaDeviceEnablePeerAccess(to, 0);
    if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
    } else {
      C10_CUDA_CHECK(enabled);
    }
  }
  device_state& owner = state_of(to);
  const weir::device peer = checked(runtime_->device(weir::device_id{from}));
  checked(owner.memory.enable_peer(peer));
  enable_peer_of_imported(owner, peer);
}

cudaError_t weir_allocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                        std::size_t count, cudaStream_t stream, bool peers) {
  // Without access between the devices only a copy that names both handles memory that was mapped.
  if (peers || to_device == from_device)
    return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
}

}  // namespace weir_torch

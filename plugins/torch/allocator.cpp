// SPDX-License-Identifier: Apache-2.0
// Requests and frees.
#include "allocator.hpp"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include "errors.hpp"
#include "profilers.hpp"

namespace weir_torch {
namespace {

std::atomic<weir_allocator*> installed_allocator{nullptr};

/// Whether torch counts the failure as out of memory.
bool is_out_of_memory(weir::errc code) noexcept {
  return code == weir::errc::out_of_memory || code == weir::errc::limit_exceeded ||
         code == weir::errc::size_overflow;
}

constexpr std::size_t block_unit = 512;

/// As torch's profiler counts blocks.
std::int64_t as_block_size(std::size_t size) noexcept {
  return static_cast<std::int64_t>((size + block_unit - 1) / block_unit * block_unit);
}

/// With the rest of a segment, if that is too small for another block. Costs a lock.
std::size_t size_taken_by(const void* block, const device_state& state, std::size_t otherwise) {
  const auto placed = state.memory.block_at(block);
  return placed ? placed->size.count() : otherwise;
}

/// Whether a profiler or a sanitizer is attached that is notified of every block.
[[gnu::always_inline]] inline bool has_tools() {
  return C10_UNLIKELY(c10::impl::GPUTrace::haveState) || C10_UNLIKELY(profilers::want_memory());
}

}  // namespace

weir_allocator* installed() noexcept { return installed_allocator.load(std::memory_order_acquire); }
void set_installed(weir_allocator* allocator) noexcept {
  installed_allocator.store(allocator, std::memory_order_release);
}
bool is_in_use() noexcept {
  const weir_allocator* const allocator = installed();
  return allocator != nullptr && torch_cuda::get() == allocator;
}
weir_allocator& installed_or_throw() {
  weir_allocator* const allocator = installed();
  TORCH_CHECK(allocator != nullptr, "call weir.torch.enable() first");
  return *allocator;
}

std::string format_size(std::uint64_t size) {
  constexpr double unit = 1024.0;
  const auto exact = static_cast<double>(size);
  std::array<char, 64> text{};
  if (size <= 1024) return std::to_string(size) + " bytes";
  if (exact <= unit * unit) {
    std::snprintf(text.data(), text.size(), "%.2f KiB", exact / unit);
  } else if (exact <= unit * unit * unit) {
    std::snprintf(text.data(), text.size(), "%.2f MiB", exact / (unit * unit));
  } else {
    std::snprintf(text.data(), text.size(), "%.2f GiB", exact / (unit * unit * unit));
  }
  return text.data();
}

// --- Requests -----------------------------------------------------------------------------------

inline c10::DeviceIndex weir_allocator::current_device() const {
  if (device_by_page_ == nullptr) return 0;  // a query would cost more than all the rest
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

/// What most requests are.
[[gnu::always_inline]] inline void* weir_allocator::allocate_on(device_state& state,
                                                                std::size_t size,
                                                                const weir::stream_ref& stream) {
  if (C10_UNLIKELY(slow_path_.load(std::memory_order_relaxed) != 0) || has_tools())
    return allocate_on_slow_path(state, size, stream);
  void* block = nullptr;
  try {
    block = state.memory.allocate(weir::bytes{size}, stream);
  } catch (...) {
    throw_as_torch(state, size, stream);
  }
  byte_counters_.add(static_cast<std::size_t>(state.index), size);
  if (device_by_page_ != nullptr) device_by_page_->set(block, state.index);
  return block;
}

c10::DataPtr weir_allocator::allocate(std::size_t size) {
  const c10::DeviceIndex device = current_device();
  void* block = nullptr;
  if (size != 0) {
    constexpr std::size_t exabyte = std::size_t{1} << 60;
    TORCH_CHECK_WITH(OutOfMemoryError, size < exabyte,
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    device_state& state = state_of(device);
    std::optional<weir::stream_ref> scratch;
    block = allocate_on(state, size,
                        state.streams.look_up(c10::cuda::getCurrentCUDAStream(device), scratch));
  }
  return {block, block, &deleter, c10::Device{c10::kCUDA, device}};
}

void* weir_allocator::raw_alloc(std::size_t size) {
  if (size == 0) return nullptr;
  const c10::DeviceIndex device = current_device();
  device_state& state = state_of(device);
  std::optional<weir::stream_ref> scratch;
  return allocate_on(state, size,
                     state.streams.look_up(c10::cuda::getCurrentCUDAStream(device), scratch));
}

void* weir_allocator::raw_alloc_with_stream(std::size_t size, cudaStream_t stream) {
  if (size == 0) return nullptr;
  device_state& state = state_of(current_device());
  std::optional<weir::stream_ref> scratch;
  return allocate_on(state, size, state.streams.look_up(stream, scratch));
}

void* weir_allocator::allocate_on_slow_path(device_state& state, std::size_t size,
                                            const weir::stream_ref& stream) {
  const std::uint32_t reasons = slow_path_.load(std::memory_order_relaxed);
  if (C10_UNLIKELY((reasons & cache_off) != 0)) return allocate_uncached(state, size);
  std::size_t rounded = size;
  if (C10_UNLIKELY((reasons & rounding_up) != 0)) {
    // What is less than a unit more, weir adds itself, and still counts what was requested.
    const std::size_t taken = torch_settings_.rounding().round(size);
    if (taken - size >= block_unit) rounded = taken;
  }
  placed_block block;
  try {
    if (reasons == 0 || reasons == forked) {
      block = {state.memory.allocate(weir::bytes{size}, stream), size};
    } else {
      block = slow_allocate(state, size, rounded, stream);
    }
  } catch (...) {
    throw_as_torch(state, rounded, stream);
  }
  byte_counters_.add(static_cast<std::size_t>(state.index), size, block.taken);
  if (device_by_page_ != nullptr) device_by_page_->set(block.address, state.index);
  if (has_tools()) notify_tools(state, block.address, as_block_size(rounded));
  // Another thread may have turned rounding off meanwhile. The slow path must stay on until the
  // padding of this block is forgotten with its free.
  if (C10_UNLIKELY(rounded != size) && state.padded.add(block.address, size, rounded))
    update_slow_path();
  if (C10_UNLIKELY((reasons & collecting) != 0))
    collect(state, torch_settings_.collection_threshold());
  return block.address;
}

void weir_allocator::throw_as_torch(device_state& state, std::size_t size,
                                    const weir::stream_ref& stream) {
  try {
    throw;
  } catch (const weir::out_of_memory& failed) {
    throw_out_of_memory(state, size, stream, failed.report());
  } catch (const weir::failure& failed) {
    if (!is_out_of_memory(failed.code())) fail(failed.reason());
    throw_out_of_memory(state, size, stream, failed.what());
  }
}

void weir_allocator::collect(device_state& state, double threshold) {
  if (threshold <= 0 || !state.grown.take() || state.pools.is_capturing()) return;
  const weir::bytes limit = state.memory.limit();
  if (limit == weir::bytes::max()) return;  // torch's own collects below a limit only, too
  const auto most = static_cast<std::uint64_t>(threshold * static_cast<double>(limit.count()));
  if (state.memory.stats().reserved.current.count() <= most) return;
  // What cannot be released now stays: nobody needs it yet.
  static_cast<void>(state.memory.trim(weir::bytes{most}));
}

weir_allocator::placed_block weir_allocator::slow_allocate(device_state& state, std::size_t size,
                                                           std::size_t rounded,
                                                           const weir::stream_ref& stream) {
  // Before anything is locked: it may need the interpreter.
  context stack = state.history.capture_stack(torch_cuda::RecordContext::STATE);
  cudaStream_t const handle = stream.is_legacy() ? nullptr : stream.handle();
  const event_stack cause{stack};
  const tracker_failure registration;
  std::optional<pool_table::route> route;
  if (state.pools.is_active()) route = state.pools.find_route(handle);
  void* block = nullptr;
  if (!route) {
    block = state.memory.allocate(weir::bytes{rounded}, stream);
  } else {
    if (state.reuse.is_active()) {
      for (const void* const freed : state.reuse.take_reusable(handle))
        static_cast<void>(state.memory.assume_joined(freed));
    }
    try {
      block = route->memory.allocate(weir::bytes{rounded}, stream);
      if (torch_settings_.reuses_in_captures()) state.reuse.on_allocated(block);
    } catch (const weir::failure& failed) {
      if (failed.code() != weir::errc::capture_forbidden) throw;
      block = allocate_for_unidentified(state, *route, rounded);
    }
  }
  if (state.history.is_active()) {
    traced_block traced{.address = reinterpret_cast<std::uint64_t>(block),
                        .size = size,
                        .stream = handle,
                        .pool = route ? route->id : MempoolId_t(0, 0)};
    if (!route && state.pools.has_fallback()) traced.pool = trace_of(state, block).pool;
    state.history.on_allocated(traced, std::move(stack));
  }
  try {
    registration.rethrow();
  } catch (...) {
    slow_free(state, block);
    throw;
  }
  const bool in_segment = route ? route->in_segments : state.pools.has_fallback();
  return {block, in_segment ? size_taken_by(block, state, rounded) : rounded};
}

c10::DataPtr weir_allocator::allocateWithAddress(std::size_t size, void* address) {
  const c10::DeviceIndex device = current_device();
  const c10::Device where{c10::kCUDA, device};
  if (size == 0) return {nullptr, nullptr, &deleter, where};
  device_state& state = state_of(device);
  std::optional<weir::stream_ref> scratch;
  const weir::stream_ref& stream =
      state.streams.look_up(c10::cuda::getCurrentCUDAStream(device), scratch);
  const auto route = state.pools.is_active()
                         ? state.pools.find_route(stream.is_legacy() ? nullptr : stream.handle())
                         : std::nullopt;
  TORCH_CHECK_NOT_IMPLEMENTED(
      route,
      "weir allocates at an exact address only in a memory pool: use torch.cuda.use_mem_pool()");
  context stack = state.history.capture_stack(torch_cuda::RecordContext::STATE);
  const auto block = route->memory.allocate_at(address, weir::bytes{size}, stream);
  TORCH_CHECK(block || block.code() != weir::errc::bad_alignment,
              "allocateWithAddress: the address must be aligned to kMinBlockSize (512 bytes), got ",
              address);
  TORCH_CHECK(block, "cannot allocate ", format_size(size), " at the exact address ", address, ": ",
              block.error().message());
  byte_counters_.add(static_cast<std::size_t>(device), size, size_taken_by(address, state, size));
  if (device_by_page_ != nullptr) device_by_page_->set(address, device);
  if (state.history.is_active())
    state.history.on_allocated(trace_of(state, address), std::move(stack));
  if (has_tools()) notify_tools(state, address, static_cast<std::int64_t>(size));
  return {address, address, &deleter, where};
}

/// A stream that is being captured and was never seen before cannot be identified: the driver would
/// invalidate the capture. Its memory is allocated in the name of the stream that the capture began
/// on, and its free is deferred, because nothing orders the two.
void* weir_allocator::allocate_for_unidentified(device_state& state, const pool_table::route& route,
                                                std::size_t size) {
  void* const block = route.memory.allocate(weir::bytes{size}, route.origin);
  state.pools.hold(block);
  return block;
}

void weir_allocator::throw_out_of_memory(device_state& state, std::size_t size,
                                         const weir::stream_ref& stream,
                                         const std::string& report) {
  state.ooms.fetch_add(1, std::memory_order_relaxed);
  weir::memory_info device{};
  if (const auto info = state.gpu.memory_info(); info) device = *info;
  const weir::memory_stats stats = state.memory.stats();
  if (state.history.has_readers()) {
    cudaStream_t const handle = stream.is_legacy() ? nullptr : stream.handle();
    const auto route = state.pools.is_active() ? state.pools.find_route(handle) : std::nullopt;
    state.history.on_out_of_memory(size, device.free.count(), handle,
                                   route ? route->id : MempoolId_t(0, 0),
                                   state.history.capture_stack(torch_cuda::RecordContext::STATE));
  }
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(size), stats.allocated.current.count(),
                                   stats.reserved.current.count(),
                                   c10::Device{c10::kCUDA, state.index});
  std::vector<torch_cuda::OutOfMemoryObserver> observers;
  {
    const std::lock_guard lock{mutex_};
    observers = oom_observers_;
  }
  const weir::bytes limit = state.memory.limit();
  const std::uint64_t most = std::min(limit.count(), device.total.count());
  const weir::bytes held = stats.reserved.current + stats.suspended;  // blocks of either are live
  for (const auto& observer : observers) observer(state.index, size, most, device.free.count());
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(size),
      ". GPU ", static_cast<int>(state.index), " has a total capacity of ",
      format_size(device.total.count()), " of which ", format_size(device.free.count()),
      " is free.", limit < device.total ? " " + format_size(limit.count()) + " allowed." : "",
      " Of the allocated memory ", format_size(stats.allocated.current.count()),
      " is allocated by PyTorch, and ", format_size((held - stats.allocated.current).count()),
      " is reserved by PyTorch but unallocated.\n", report);
}

// --- Frees --------------------------------------------------------------------------------------

device_state& weir_allocator::owner_of(const void* pointer) const {
  device_state* const owner = find_owner(pointer);
  TORCH_CHECK(owner != nullptr, "invalid device pointer: ", pointer);
  return *owner;
}

void weir_allocator::deleter(void* pointer) { installed()->free_block(pointer); }

c10::DeleterFnPtr weir_allocator::raw_deleter() const { return &deleter; }

/// Whether a free is more than weir's own.
[[gnu::always_inline]] inline bool weir_allocator::is_free_slow() const {
  return C10_UNLIKELY(slow_path_.load(std::memory_order_relaxed) != 0) || has_tools();
}

void weir_allocator::free_block(void* pointer) noexcept {
  if (pointer == nullptr) return;
  if (is_uncached(pointer)) {
    C10_CUDA_CHECK_WARN(free_uncached(pointer));
    return;
  }
  device_state* const state = find_owner(pointer);
  if (state == nullptr) {
    weir::report_error({{.code = weir::errc::foreign_pointer}});
    return;
  }
  if (is_free_slow()) {
    slow_free(*state, pointer);
  } else {
    state->memory.deallocate(pointer);
  }
}

void weir_allocator::slow_free(device_state& state, void* pointer) noexcept {
  if (is_forked()) {
    state.memory.deallocate(pointer);
    return;
  }
  context stack;
  try {
    if (is_free_deferred(state, pointer)) {
      weir::report_error({{.code = weir::errc::double_free}});
      return;
    }
    if (prepare_free(state, pointer, stack)) return;
  } catch (...) {
    // A tool could not be notified; the memory is freed all the same.
  }
  const event_stack cause{stack};
  state.memory.deallocate(pointer);
}

void weir_allocator::raw_delete(void* pointer) {
  if (pointer == nullptr) return;
  if (is_uncached(pointer)) {
    C10_CUDA_CHECK(free_uncached(pointer));
    return;
  }
  device_state* const state = find_owner(pointer);
  TORCH_CHECK(state != nullptr, "invalid device pointer: ", pointer);
  const auto freed =
      is_free_slow() ? slow_delete(*state, pointer) : state->memory.try_deallocate(pointer);
  TORCH_CHECK(freed, "invalid device pointer: ", pointer, ": ", freed.error().message());
}

weir::result<void> weir_allocator::slow_delete(device_state& state, void* pointer) {
  if (is_forked()) return state.memory.try_deallocate(pointer);
  if (is_free_deferred(state, pointer)) return weir::errc::double_free;
  context stack;
  if (prepare_free(state, pointer, stack)) return {};
  const event_stack cause{stack};
  return state.memory.try_deallocate(pointer);
}

/// To weir such a block is live.
bool weir_allocator::is_free_deferred(const device_state& state, void* pointer) {
  return state.pools.is_active() && state.pools.is_free_deferred(pointer);
}

bool weir_allocator::prepare_free(device_state& state, void* pointer, context& stack) {
  if (has_tools()) {
    const auto size = state.memory.size_of(pointer);
    if (size) notify_tools(state, pointer, -as_block_size(size->count()));
  }
  const std::uint32_t reasons = slow_path_.load(std::memory_order_relaxed);
  if (reasons == 0) return false;
  if ((reasons & sharing_active) != 0) {
    if (ipc_server* const server = ipc_server_.load(std::memory_order_acquire))
      server->withdraw(reinterpret_cast<std::uint64_t>(pointer));
  }
  if (state.history.is_active()) {
    stack = state.history.capture_stack(torch_cuda::RecordContext::ALL);
    const traced_block freed = trace_of(state, pointer);
    if (freed.size != 0) state.history.on_free(freed, stack);  // else it is no block
  }
  if ((reasons & rounding_up) != 0 && state.padded.any()) {
    state.padded.remove(pointer);
    if (!state.padded.any()) update_slow_path();
  }
  if (state.reuse.is_active()) {
    const traced_block block = trace_of(state, pointer);
    state.reuse.on_free(pointer, static_cast<cudaStream_t>(block.stream), block.pool);
  }
  return state.pools.is_active() && state.pools.defer_free(pointer);
}

traced_block weir_allocator::trace_of(device_state& state, const void* pointer) const {
  traced_block traced{.address = reinterpret_cast<std::uint64_t>(pointer)};
  const auto block = state.memory.block_at(pointer);
  if (block && block->address == traced.address) {  // not a pointer into the middle of one
    traced.size = block->requested.count();
    if (state.padded.any()) traced.size = state.padded.requested_of(pointer).value_or(traced.size);
    traced.stream = state.streams.handle_of(block->stream);
    traced.pool = state.pools.torch_id_of(block->pool);
  }
  return traced;
}

void weir_allocator::notify_tools(device_state& state, void* pointer, std::int64_t size) {
  if (const auto* const trace = c10::impl::GPUTrace::get_trace()) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (size > 0) {
      (*trace)->trace_gpu_memory_allocation(c10::kCUDA, address);
    } else {
      (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, address);
    }
  }
  if (!c10::memoryProfilingEnabled()) return;
  const weir::memory_stats stats = state.memory.stats();
  // A free is reported before it is made, and counts already.
  const auto freed = static_cast<std::uint64_t>(size < 0 ? -size : 0);
  c10::reportMemoryUsageToProfiler(pointer, size, stats.allocated.current.count() - freed,
                                   stats.reserved.current.count(),
                                   c10::Device{c10::kCUDA, state.index});
}

// --- Without the cache --------------------------------------------------------------------------

void* weir_allocator::allocate_uncached(device_state& state, std::size_t size) {
  void* block = nullptr;
  cudaError_t outcome = cudaMalloc(&block, size);
  if (outcome == cudaErrorMemoryAllocation) {
    // What weir caches was freed before the cache was switched off.
    static_cast<void>(cudaGetLastError());
    static_cast<void>(state.memory.empty_cache());
    outcome = cudaMalloc(&block, size);
  }
  if (outcome == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                     format_size(size), " on GPU ", static_cast<int>(state.index),
                     " from cudaMalloc, because the caching allocator is switched off.");
  }
  C10_CUDA_CHECK(outcome);  // of a capture, too: its memory must not come from here
  try {
    uncached_.add(block);
  } catch (...) {
    static_cast<void>(cudaFree(block));
    throw;
  }
  update_slow_path();
  if (const auto* const trace = c10::impl::GPUTrace::get_trace())
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(block));
  return block;
}

cudaError_t weir_allocator::free_uncached(void* pointer) {
  if (!uncached_.remove(pointer)) return cudaSuccess;  // another thread was faster
  if (!uncached_.any()) update_slow_path();
  if (const auto* const trace = c10::impl::GPUTrace::get_trace())
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(pointer));
  return cudaFree(pointer);  // waits for the work of all streams
}

// --- The rest -----------------------------------------------------------------------------------

void weir_allocator::copy_data(void* to, const void* from, std::size_t count) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, count, cudaMemcpyDeviceToDevice));
}

void weir_allocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  // Memory of other processes, and memory that was sent to them, is counted by torch itself.
  if (pointer.get() == nullptr || pointer.get_deleter() != &deleter) return;
  if (is_uncached(pointer.get())) return;  // its free waits for all streams
  device_state& state = owner_of(pointer.get());
  // A stream of another device is looked up in that device's table, but weir decides whether it can
  // be used here.
  std::optional<weir::stream_ref> scratch;
  const weir::stream_ref& used_on =
      stream.device_index() == state.index
          ? state.streams.look_up(stream, scratch)
          : state_of(stream.device_index()).streams.look_up(stream, scratch);
  // As in torch's own allocator, a record on the block's own stream delays nothing.
  if (state.history.enabled() && trace_of(state, pointer.get()).stream != stream.stream())
    state.history.on_stream_recorded(reinterpret_cast<std::uint64_t>(pointer.get()));
  const auto recorded = state.memory.record_stream(pointer.get(), used_on);
  if (!recorded && recorded.code() == weir::errc::capture_forbidden && state.pools.is_active()) {
    state.pools.hold(pointer.get());  // a captured stream that nobody knows: till the capture ends
  } else {
    checked(recorded);
  }
  if (state.reuse.is_active()) state.reuse.on_use(pointer.get(), stream.stream());
}

void weir_allocator::attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) {
  const std::lock_guard lock{mutex_};
  oom_observers_.push_back(std::move(observer));
}

}  // namespace weir_torch

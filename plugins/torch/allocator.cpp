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

namespace weir_torch {
namespace {

std::atomic<weir_allocator*> the_one{nullptr};

/// Failures that torch knows as out of memory.
bool is_shortage(weir::errc code) noexcept {
  return code == weir::errc::out_of_memory || code == weir::errc::limit_exceeded ||
         code == weir::errc::size_overflow;
}

/// Whether a profiler or a sanitizer wants to hear of every block.
bool tools_listen() {
  return C10_UNLIKELY(c10::impl::GPUTrace::haveState || c10::memoryProfilingEnabled());
}

}  // namespace

weir_allocator* installed() noexcept { return the_one.load(std::memory_order_acquire); }
void set_installed(weir_allocator* made) noexcept {
  the_one.store(made, std::memory_order_release);
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
  if (owners_ == nullptr) return 0;  // asking the driver would cost more than all the rest
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

c10::DataPtr weir_allocator::allocate(std::size_t size) {
  const c10::DeviceIndex device = current_device();
  void* made = nullptr;
  if (size != 0) {
    constexpr std::size_t exabyte = std::size_t{1} << 60;
    TORCH_CHECK_WITH(OutOfMemoryError, size < exabyte,
                     "CUDA out of memory. Tried to allocate more than 1EB memory.");
    device_seat& seat = at(device);
    std::optional<weir::stream_ref> scratch;
    made = take(seat, size, seat.streams.look_up(c10::cuda::getCurrentCUDAStream(device), scratch));
  }
  return {made, made, &deleter, c10::Device{c10::kCUDA, device}};
}

void* weir_allocator::raw_alloc(std::size_t size) {
  if (size == 0) return nullptr;
  const c10::DeviceIndex device = current_device();
  device_seat& seat = at(device);
  std::optional<weir::stream_ref> scratch;
  return take(seat, size, seat.streams.look_up(c10::cuda::getCurrentCUDAStream(device), scratch));
}

void* weir_allocator::raw_alloc_with_stream(std::size_t size, cudaStream_t stream) {
  if (size == 0) return nullptr;
  device_seat& seat = at(current_device());
  std::optional<weir::stream_ref> scratch;
  return take(seat, size, seat.streams.look_up(stream, scratch));
}

void* weir_allocator::take(device_seat& seat, std::size_t size, const weir::stream_ref& on) {
  void* made = nullptr;
  try {
    made = attention_.load(std::memory_order_relaxed) == 0
               ? seat.memory.allocate(weir::bytes{size}, on)
               : take_with_care(seat, size, on);
  } catch (const weir::out_of_memory& shortage) {
    made = after_shortage(seat, size, on, shortage.report());
  } catch (const weir::failure& failed) {
    if (!is_shortage(failed.code())) fail(failed.reason());
    made = after_shortage(seat, size, on, failed.what());
  }
  counted_.add(static_cast<std::size_t>(seat.index), size);
  if (owners_ != nullptr) owners_->note(made, seat.index);
  if (tools_listen()) tell_tools(seat, made, static_cast<std::int64_t>(size));
  return made;
}

void* weir_allocator::take_with_care(device_seat& seat, std::size_t size,
                                     const weir::stream_ref& on) {
  // Before anything is locked: it may need the interpreter.
  context where = seat.past.gather(torch_cuda::RecordContext::STATE);
  cudaStream_t const handle = on.is_legacy() ? nullptr : on.handle();
  std::optional<pool_table::route> route;
  if (seat.pools.wanted()) route = seat.pools.find_route(handle);
  void* made = nullptr;
  if (!route) {
    made = seat.memory.allocate(weir::bytes{size}, on);
  } else {
    try {
      made = route->memory.allocate(weir::bytes{size}, on);
    } catch (const weir::failure& failed) {
      if (failed.code() != weir::errc::capture_forbidden) throw;
      made = take_for_unknown_stream(seat, *route, size);
    }
  }
  if (seat.past.wanted()) {
    seat.past.allocated({.address = reinterpret_cast<std::uint64_t>(made),
                         .size = size,
                         .stream = handle,
                         .pool = route ? route->id : MempoolId_t(0, 0)},
                        std::move(where));
  }
  return made;
}

/// A stream that is being captured and was never seen before cannot be asked who it is: the driver
/// would break the capture. Its memory is taken in the name of the stream that the capture began
/// on, and held back when it is freed, because nothing orders the two.
void* weir_allocator::take_for_unknown_stream(device_seat& seat, const pool_table::route& where,
                                              std::size_t size) {
  void* const made = where.memory.allocate(weir::bytes{size}, where.begun_on);
  seat.pools.hold(made);
  return made;
}

void* weir_allocator::after_shortage(device_seat& seat, std::size_t size,
                                     const weir::stream_ref& on, const std::string& report) {
  for (const weir::memory_pool& pool : seat.pools.last_resorts()) {
    if (auto found = pool.try_allocate(weir::bytes{size}, on); found) return *found;
  }
  seat.shortages.fetch_add(1, std::memory_order_relaxed);
  weir::memory_info device{};
  if (const auto asked = seat.gpu.memory_info(); asked) device = *asked;
  const weir::memory_stats now = seat.memory.stats();
  const c10::Device where{c10::kCUDA, seat.index};
  if (seat.past.writes()) {
    seat.past.out_of_memory(size, device.free.count(), on.is_legacy() ? nullptr : on.handle(),
                            {0, 0}, seat.past.gather(torch_cuda::RecordContext::STATE));
  }
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(size), now.allocated.current,
                                   now.reserved.current, where);
  std::vector<torch_cuda::OutOfMemoryObserver> observers;
  {
    const std::lock_guard lock{mutex_};
    observers = shortage_observers_;
  }
  const weir::bytes limit = seat.memory.limit();
  const std::uint64_t most = std::min(limit.count(), device.total.count());
  for (const auto& tell : observers) tell(seat.index, size, most, device.free.count());
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(size),
      ". GPU ", static_cast<int>(seat.index), " has a total capacity of ",
      format_size(device.total.count()), " of which ", format_size(device.free.count()),
      " is free.", limit < device.total ? " " + format_size(limit.count()) + " allowed." : "",
      " Of the allocated memory ", format_size(now.allocated.current),
      " is allocated by PyTorch, and ", format_size(now.reserved.current - now.allocated.current),
      " is reserved by PyTorch but unallocated.\n", report);
}

// --- Frees --------------------------------------------------------------------------------------

void weir_allocator::deleter(void* pointer) { installed()->give(pointer); }

c10::DeleterFnPtr weir_allocator::raw_deleter() const { return &deleter; }

device_seat* weir_allocator::owner_of(const void* pointer) const noexcept {
  if (owners_ == nullptr) return only_.load(std::memory_order_acquire);
  const int device = owners_->of(pointer);
  return device == page_owners::none ? nullptr : seat(static_cast<c10::DeviceIndex>(device));
}

device_seat& weir_allocator::checked_owner(const void* pointer) const {
  device_seat* const found = owner_of(pointer);
  TORCH_CHECK(found != nullptr, "invalid device pointer: ", pointer);
  return *found;
}

/// Whether a free is more than weir's own.
inline bool weir_allocator::must_prepare() const {
  return C10_UNLIKELY(attention_.load(std::memory_order_relaxed) != 0) || tools_listen();
}

void weir_allocator::give(void* pointer) noexcept {
  if (pointer == nullptr) return;
  device_seat* const seat = owner_of(pointer);
  if (seat == nullptr) {
    weir::report_error({.code = weir::errc::foreign_pointer});
    return;
  }
  if (must_prepare()) {
    try {
      if (prepare_free(*seat, pointer)) return;
    } catch (...) {
      // A tool failed to hear of it; the memory is freed all the same.
    }
  }
  seat->memory.deallocate(pointer);
}

void weir_allocator::raw_delete(void* pointer) {
  if (pointer == nullptr) return;
  device_seat& seat = checked_owner(pointer);
  if (must_prepare() && prepare_free(seat, pointer)) return;
  const auto freed = seat.memory.try_deallocate(pointer);
  TORCH_CHECK(freed, "invalid device pointer: ", pointer, ": ", freed.error().message());
}

bool weir_allocator::prepare_free(device_seat& seat, void* pointer) {
  if (tools_listen()) {
    const auto size = seat.memory.size_of(pointer);
    if (size) tell_tools(seat, pointer, -static_cast<std::int64_t>(size->count()));
  }
  const std::uint32_t why = attention_.load(std::memory_order_relaxed);
  if (why == 0) return false;
  if ((why & shares_wanted) != 0) {
    if (descriptor_desk* const desk = desk_.load(std::memory_order_acquire))
      desk->withdraw(reinterpret_cast<std::uint64_t>(pointer));
  }
  if (seat.past.wanted())
    seat.past.freed(note_of(seat, pointer), seat.past.gather(torch_cuda::RecordContext::ALL));
  return seat.pools.wanted() && seat.pools.keep_back(pointer);
}

block_note weir_allocator::note_of(device_seat& seat, const void* pointer) const {
  block_note out{.address = reinterpret_cast<std::uint64_t>(pointer)};
  if (const auto found = seat.memory.block_at(pointer); found) {
    out.size = found->requested.count();
    out.stream = seat.streams.handle_of(found->stream);
    out.pool = seat.pools.name_of(found->pool);
  }
  return out;
}

void weir_allocator::tell_tools(device_seat& seat, void* pointer, std::int64_t change) {
  if (const auto* const trace = c10::impl::GPUTrace::get_trace()) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (change > 0) {
      (*trace)->trace_gpu_memory_allocation(c10::kCUDA, address);
    } else {
      (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, address);
    }
  }
  if (!c10::memoryProfilingEnabled()) return;
  const weir::memory_stats now = seat.memory.stats();
  c10::reportMemoryUsageToProfiler(pointer, change, now.allocated.current, now.reserved.current,
                                   c10::Device{c10::kCUDA, seat.index});
}

// --- The rest -----------------------------------------------------------------------------------

void weir_allocator::copy_data(void* to, const void* from, std::size_t count) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, count, cudaMemcpyDeviceToDevice));
}

void weir_allocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  // Memory of other processes, and memory that was sent to them, is counted by torch itself.
  if (pointer.get() == nullptr || pointer.get_deleter() != &deleter) return;
  device_seat& seat = checked_owner(pointer.get());
  // A stream of another device is asked about on its own device's table, but it is weir's to say
  // whether it can be used here.
  std::optional<weir::stream_ref> scratch;
  const weir::stream_ref& on = stream.device_index() == seat.index
                                   ? seat.streams.look_up(stream, scratch)
                                   : at(stream.device_index()).streams.look_up(stream, scratch);
  if (seat.past.enabled())
    seat.past.recorded_stream(reinterpret_cast<std::uint64_t>(pointer.get()));
  checked(seat.memory.record_stream(pointer.get(), on));
}

void weir_allocator::attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) {
  const std::lock_guard lock{mutex_};
  shortage_observers_.push_back(std::move(observer));
}

}  // namespace weir_torch

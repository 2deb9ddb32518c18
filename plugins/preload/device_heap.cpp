// SPDX-License-Identifier: Apache-2.0
// Plain and stream-ordered memory from a caching allocator.
#include "device_heap.hpp"

#include <new>
#include <utility>

#include "device/finished_work.hpp"
#include "recordings.hpp"
#include "settings.hpp"

namespace weir_preload {

namespace {

using weir::errc;
using weir::error;

[[nodiscard]] CUresult answer_to(const error& reason) noexcept {
  if (reason.native() != 0) return static_cast<CUresult>(reason.native());
  return reason.code() == errc::out_of_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

}  // namespace

weir::result<std::shared_ptr<device_heap>> device_heap::create(
    const real_driver& driver, int device, CUcontext context,
    std::shared_ptr<context_captures> captures) {
  if (driver.version < oldest_driver)
    return error{
        {.code = errc::driver_too_old, .detail = "weir needs a driver of CUDA 11.2 or later"}};
  // A context that is not active is not the one that is current; to retain it would make it.
  unsigned flags = 0;
  int active = 0;
  WEIR_TRY(check(call::device_primary_ctx_get_state,
                 driver.calls.device_primary_ctx_get_state(device, &flags, &active)));
  if (active == 0) return errc::not_found;
  const signals_blocked quiet;  // live pages and budgets have threads
  WEIR_TRY_VALUE(machine, weir::runtime::open_table(driver.calls, "libcuda.so.1"));
  WEIR_TRY_VALUE(gpu, machine->device(weir::device_id{device}));
  WEIR_TRY_VALUE(primary, gpu.context());
  if (primary != context) return errc::not_found;

  auto options = weir::allocator_options::from(settings::get().heap);
  options.record = "off";  // the recorder is ours, with what the driver serves beside it
  WEIR_TRY_VALUE(memory, weir::caching_allocator::create(gpu, options));
  WEIR_TRY_VALUE(plain, weir::stream::create(gpu));
  std::shared_ptr<device_heap> heap{
      new device_heap{machine, gpu, memory, std::move(plain), std::move(captures)}};
  heap->device_ = device;
  heap->context_ = context;
  if (gpu.capabilities().memory_pools &&
      driver.calls.device_get_default_mem_pool(&heap->default_pool_, device) != CUDA_SUCCESS)
    heap->default_pool_ = nullptr;
  return heap;
}

device_heap::device_heap(std::shared_ptr<weir::runtime> machine, weir::device gpu,
                         weir::caching_allocator memory, weir::stream plain,
                         std::shared_ptr<context_captures> captures)
    : machine_{std::move(machine)},
      gpu_{gpu},
      memory_{std::move(memory)},
      plain_{std::move(plain)},
      captures_{std::move(captures)},
      marks_{gpu} {}

// --- Plain memory -------------------------------------------------------------------------------

weir::result<void*> device_heap::allocate_plain(std::size_t bytes) {
  if (lost_.load(std::memory_order_relaxed)) return errc::device_lost;
  collect(false);
  auto block = memory_.try_allocate(weir::bytes{bytes}, plain_.ref());
  if (block || block.code() != errc::out_of_memory) return block;
  collect(true);
  return memory_.try_allocate(weir::bytes{bytes}, plain_.ref());
}

CUresult device_heap::free_plain(void* pointer) {
  collect(false);
  if (settings::get().frees_async && defer_behind_event(pointer)) return CUDA_SUCCESS;
  if (const CUresult failure = wait_for_work(); failure != CUDA_SUCCESS) return failure;
  const auto freed = memory_.try_deallocate(pointer, plain_.ref());
  return freed ? CUDA_SUCCESS : answer_to(freed.error());
}

CUresult device_heap::wait_for_work() {
  const weir::context_scope scope{gpu_};
  if (!scope) return answer_to(scope.error());
  const auto waited = weir::detail::wait_for_all_work(scope);
  if (waited) return CUDA_SUCCESS;
  if (waited.code() == errc::device_lost) lost_.store(true, std::memory_order_relaxed);
  return answer_to(waited.error());
}

bool device_heap::defer_behind_event(void* pointer) {
  const weir::context_scope scope{gpu_};
  const weir::thread_capture_mode_guard relaxed{gpu_};
  if (!scope || !relaxed) return false;
  auto mark = marks_.acquire();
  if (!mark) return false;
  {
    // The call invalidates captures of the context.
    const auto held = captures_->hold();
    if (captures_->any() || !mark->record_all(scope)) return false;
  }
  const std::lock_guard lock{mutex_};
  pending_.push_back({pointer, *std::move(mark)});
  return true;
}

void device_heap::collect(bool wait) {
  std::deque<pending_free> done;
  {
    const std::lock_guard lock{mutex_};
    if (pending_.empty()) return;
    if (wait) done.swap(pending_);
  }
  if (wait) {
    if (wait_for_work() == CUDA_SUCCESS) return free_pending(done);
    const std::lock_guard lock{mutex_};
    pending_.insert(pending_.begin(), std::make_move_iterator(done.begin()),
                    std::make_move_iterator(done.end()));
    return;
  }
  const weir::thread_capture_mode_guard relaxed{gpu_};
  if (!relaxed) return;
  {
    const std::lock_guard lock{mutex_};
    // In the order of the frees, so that a mark that is not reached stands for those behind it.
    while (!pending_.empty()) {
      const auto reached = pending_.front().mark.is_complete();
      if (!reached || !*reached) break;
      done.push_back(std::move(pending_.front()));
      pending_.pop_front();
    }
  }
  free_pending(done);
}

void device_heap::end_frees() {
  lost_.store(true);
  std::deque<pending_free> rest;
  {
    const std::lock_guard lock{mutex_};
    rest.swap(pending_);
  }
  free_pending(rest);
}

void device_heap::free_pending(std::deque<pending_free>& done) noexcept {
  for (pending_free& each : done) {
    memory_.deallocate(each.pointer, plain_.ref());
    static_cast<void>(marks_.release(std::move(each.mark)));
  }
}

// --- Ordered memory -----------------------------------------------------------------------------

weir::result<void*> device_heap::allocate_ordered(std::size_t bytes, CUstream stream) {
  if (lost_.load(std::memory_order_relaxed)) return errc::device_lost;
  {
    const std::lock_guard lock{mutex_};
    streams_.insert(stream);
  }
  const weir::stream_ref order{gpu_, stream};
  auto block = memory_.try_allocate(weir::bytes{bytes}, order);
  if (block || block.code() != errc::out_of_memory) return block;
  collect(true);
  return memory_.try_allocate(weir::bytes{bytes}, order);
}

CUresult device_heap::free_ordered(void* pointer, CUstream stream) {
  weir::result<void> freed;
  if (stream == nullptr) {
    freed = memory_.try_deallocate(pointer);
  } else {
    {
      const std::lock_guard lock{mutex_};
      streams_.insert(stream);
    }
    freed = memory_.try_deallocate(pointer, weir::stream_ref{gpu_, stream});
  }
  return freed ? CUDA_SUCCESS : answer_to(freed.error());
}

void device_heap::count_ordered(std::int64_t bytes) noexcept {
  const std::uint64_t now =
      ordered_.fetch_add(static_cast<std::uint64_t>(bytes)) + static_cast<std::uint64_t>(bytes);
  std::uint64_t peak = ordered_peak_.load();
  while (bytes > 0 && now > peak && !ordered_peak_.compare_exchange_weak(peak, now)) {
  }
}

// --- The rest -----------------------------------------------------------------------------------

bool device_heap::has_block_at(CUdeviceptr address) const {
  const auto size = memory_.size_of(reinterpret_cast<const void*>(address));
  return size || size.code() == errc::double_free;
}

std::size_t device_heap::release_cached() {
  collect(true);
  const auto released = memory_.empty_cache();
  return released ? released->count() : 0;
}

void device_heap::forget_stream(CUstream stream) noexcept {
  {
    const std::lock_guard lock{mutex_};
    if (streams_.erase(stream) == 0) return;
  }
  try {
    static_cast<void>(memory_.release_stream(weir::stream_ref{gpu_, stream}));
  } catch (const std::bad_alloc&) {
    // Its memory stays with it until the device was seen to rest.
  }
}

void device_heap::enable_peer(int device) noexcept {
  try {
    if (const auto peer = machine_->device(weir::device_id{device}))
      static_cast<void>(memory_.enable_peer(*peer));
  } catch (const std::bad_alloc&) {
    // As if the devices were not connected.
  }
}

void device_heap::notice_captures(bool any) {
  weir::capture_guard notice = any ? memory_.guard_captures().value() : weir::capture_guard{};
  const std::lock_guard lock{mutex_};
  std::swap(notice_, notice);
}

void device_heap::close() noexcept {
  try {
    collect(true);
    notice_captures(false);
    static_cast<void>(memory_.close());
    static_cast<void>(plain_.close());
  } catch (const std::bad_alloc&) {
    // The end of the context takes the rest.
  }
}

}  // namespace weir_preload

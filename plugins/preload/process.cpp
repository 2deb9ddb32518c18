// SPDX-License-Identifier: Apache-2.0
// The state of the process.
#include "process.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "remarks.hpp"

namespace weir_preload {

namespace {

std::atomic<process*> the_process{nullptr};
std::atomic<bool> forked{false};

/// While a heap is made, on the thread that makes it: services that it goes without are told of.
thread_local bool makes_heap = false;

/// Other errors that weir reports are not for the program's output, in builds for debugging either.
void note_error(const weir::error& reason, void*) noexcept {
  if (!makes_heap) return;
  try {
    say_once(remark::no_service, reason.message());
  } catch (const std::bad_alloc&) {
    say_once(remark::no_service);
  }
}

/// Whether an error says that it would be the same the next time.
bool is_final(weir::errc code) noexcept {
  return code == weir::errc::driver_too_old || code == weir::errc::symbol_missing ||
         code == weir::errc::not_supported || code == weir::errc::bad_option;
}

}  // namespace

process* process::get() noexcept try {
  if (forked.load(std::memory_order_relaxed)) return nullptr;
  if (process* const known = the_process.load(std::memory_order_acquire)) return known;
  if (const std::string& problem = settings::get().problem; !problem.empty()) {
    say_once(remark::unusable, problem);
    return nullptr;
  }
  const real_driver* const driver = real_driver::get(true);
  if (driver == nullptr) return nullptr;
  static const int watches_forks = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
  if (watches_forks != 0) return nullptr;
  weir::set_error_handler(note_error, nullptr);
  auto made = std::make_unique<process>(*driver);
  process* first = nullptr;
  if (!the_process.compare_exchange_strong(first, made.get())) return first;
  static const int stops_at_exit = std::atexit([] {
    process* const here = the_process.load();
    if (here != nullptr && !forked.load()) here->end_recordings();
  });
  static_cast<void>(stops_at_exit);
  return made.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

void process::restart() noexcept { delete the_process.exchange(nullptr); }

process::process(const real_driver& driver)
    : driver_{driver}, captures_{[this](CUcontext context, bool any) {
        if (const auto heap = existing_heap(context)) heap->notice_captures(any);
      }} {}

void process::end_recordings() noexcept {
  try {
    for (const auto& heap : all_heaps()) heap->end_frees();
  } catch (const std::bad_alloc&) {
    // What waits for the context is live in the recording.
  }
  traces_.stop();
}

// --- Heaps --------------------------------------------------------------------------------------

std::optional<int> process::current_device() const noexcept {
  CUdevice device = 0;
  if (calls().ctx_get_device == nullptr || calls().ctx_get_device(&device) != CUDA_SUCCESS)
    return std::nullopt;
  return device;
}

std::optional<int> process::device_of(CUcontext context) const noexcept {
  CUcontext current = nullptr;
  if (calls().ctx_get_current(&current) != CUDA_SUCCESS) return std::nullopt;
  if (current == context) return current_device();
  if (calls().ctx_push_current(context) != CUDA_SUCCESS) return std::nullopt;
  const auto device = current_device();
  return calls().ctx_pop_current(&current) == CUDA_SUCCESS ? device : std::nullopt;
}

CUcontext process::current_context() const noexcept {
  CUcontext current = nullptr;
  if (calls().ctx_get_current == nullptr || calls().ctx_get_current(&current) != CUDA_SUCCESS)
    return nullptr;
  return current;
}

CUcontext process::context_of(CUstream stream) const noexcept {
  if (stream == nullptr || stream == legacy_stream() || stream == per_thread_stream())
    return current_context();
  CUcontext context = nullptr;
  if (calls().stream_get_ctx == nullptr || calls().stream_get_ctx(stream, &context) != CUDA_SUCCESS)
    return nullptr;
  return context;
}

CUcontext process::primary_context(int device) const noexcept {
  unsigned flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  // To retain a context that is not active would make it.
  if (calls().device_primary_ctx_get_state(device, &flags, &active) != CUDA_SUCCESS ||
      active == 0 || calls().device_primary_ctx_retain(&context, device) != CUDA_SUCCESS)
    return nullptr;
  static_cast<void>(calls().device_primary_ctx_release(device));
  return context;
}

std::shared_ptr<device_heap> process::heap_of_current() { return heap_of(current_context()); }

std::shared_ptr<device_heap> process::heap_of(CUstream stream) {
  return heap_of(context_of(stream));
}

std::shared_ptr<device_heap> process::heap_of(CUcontext context) {
  if (context == nullptr) return nullptr;
  auto known = existing_heap(context);
  return known != nullptr ? known : make_heap(context);
}

std::shared_ptr<device_heap> process::existing_heap(CUcontext context) {
  const std::lock_guard lock{mutex_};
  for (const auto& [device, heap] : heaps_)
    if (heap->context() == context) return heap;
  return nullptr;
}

std::shared_ptr<device_heap> process::make_heap(CUcontext context) {
  const auto device = device_of(context);
  if (!device) return nullptr;
  const std::lock_guard making{making_};
  if (auto known = existing_heap(*device); known != nullptr) {
    if (known->context() == context) return known;
    say_once(remark::other_context);
    return nullptr;
  }
  {
    const std::lock_guard lock{mutex_};
    if (unusable_.contains(*device)) return nullptr;
  }
  const auto captured = captures_.of(context);
  makes_heap = true;
  auto made = device_heap::create(driver_, *device, context, captured);
  makes_heap = false;
  if (!made) {
    if (made.code() == weir::errc::not_found) {
      say_once(remark::other_context);
    } else if (is_final(made.code())) {
      say_once(remark::unusable, made.error().message());
      const std::lock_guard lock{mutex_};
      unusable_.insert(*device);
    } else {
      say_once(remark::not_yet, made.error().message());
    }
    return nullptr;
  }
  const std::shared_ptr<device_heap>& heap = *made;
  if (weir::recorder* const recorder = traces_.of(*device, driver_)) heap->observe(*recorder);
  const auto held = captured->hold();
  if (captured->any()) heap->notice_captures(true);
  add_heap(heap);
  return heap;
}

/// From here on others find the heap. What the driver has served before counts towards its limit.
void process::add_heap(const std::shared_ptr<device_heap>& heap) {
  const int device = heap->device();
  const auto limit = limit_of(device);
  std::vector<int> readers;
  {
    const std::lock_guard limits{limits_};
    if (limit) {
      const std::uint64_t passed = passed_on_[device];
      static_cast<void>(heap->memory().set_limit(weir::bytes{*limit - std::min(*limit, passed)}));
    }
    const std::lock_guard lock{mutex_};
    for (const auto& [owner, reader] : peers_)
      if (owner == device) readers.push_back(reader);
    heaps_.emplace(device, heap);
  }
  for (const int reader : readers) heap->enable_peer(reader);
}

std::shared_ptr<device_heap> process::existing_heap(int device) {
  const std::lock_guard lock{mutex_};
  const auto entry = heaps_.find(device);
  return entry == heaps_.end() ? nullptr : entry->second;
}

std::shared_ptr<device_heap> process::heap_with_pool(CUmemoryPool default_pool) {
  if (default_pool == nullptr) return nullptr;
  const std::lock_guard lock{mutex_};
  for (const auto& [device, heap] : heaps_)
    if (heap->default_pool() == default_pool) return heap;
  return nullptr;
}

std::vector<std::shared_ptr<device_heap>> process::all_heaps() {
  std::vector<std::shared_ptr<device_heap>> heaps;
  const std::lock_guard lock{mutex_};
  heaps.reserve(heaps_.size());
  for (const auto& [device, heap] : heaps_) heaps.push_back(heap);
  return heaps;
}

bool process::is_segment_of_weir(CUdeviceptr address) noexcept try {
  if (settings::get().heap.heap_policy != weir::placement_policy::classic) return false;
  const auto heaps = all_heaps();
  return std::any_of(heaps.begin(), heaps.end(),
                     [address](const auto& heap) { return heap->has_block_at(address); });
} catch (...) {
  return false;
}

std::optional<int> process::device_with_pool(CUmemoryPool default_pool) const noexcept {
  int count = 0;
  if (calls().device_get_count(&count) != CUDA_SUCCESS) return std::nullopt;
  for (int device = 0; device < count; ++device) {
    CUmemoryPool pool = nullptr;
    if (calls().device_get_default_mem_pool(&pool, device) == CUDA_SUCCESS && pool == default_pool)
      return device;
  }
  return std::nullopt;
}

std::optional<int> process::device_of_request(CUstream stream, CUmemoryPool pool) noexcept {
  if (pool != nullptr) {
    if (const auto device = pools_.of(pool)) return device;
    if (const auto device = device_with_pool(pool)) return device;
  }
  if (stream != nullptr)
    if (const auto device = device_of(context_of(stream))) return device;
  return current_device();
}

void process::drop_heap(int device) {
  const std::lock_guard making{making_};
  std::shared_ptr<device_heap> heap;
  {
    const std::lock_guard lock{mutex_};
    const auto entry = heaps_.find(device);
    if (entry == heaps_.end()) return;
    heap = std::move(entry->second);
    heaps_.erase(entry);
    std::erase_if(peers_, [&](const auto& each) { return each.first == device; });
  }
  // What the program has not freed ends with the context, and is freed for the books' sake.
  for (const served_block& each : blocks_.take_all(*heap))
    heap->memory().deallocate(reinterpret_cast<void*>(each.address));
  heap->close();
}

void process::forget_context(CUcontext context) {
  if (context == nullptr) return;
  captures_.end_context(context);
  for (const served_block& each : blocks_.take_all(context)) {
    traces_.freed(each, driver_);
    if (!each.is_managed) leave(each.device, each.bytes);
  }
}

int process::count_context(int device, int change) {
  const std::lock_guard lock{mutex_};
  int& count = context_counts_[device];
  count = std::max(count + change, 0);
  return count;
}

bool process::holds_context_alone(int device) {
  const std::lock_guard lock{mutex_};
  const auto count = context_counts_.find(device);
  return heaps_.contains(device) && (count == context_counts_.end() || count->second == 0);
}

// --- Limits -------------------------------------------------------------------------------------

std::optional<std::uint64_t> process::limit_of(int device) {
  std::optional<std::uint64_t> limit;
  if (settings::get().records_only) return limit;  // the program runs as without weir
  const weir::options& options = settings::get().heap;
  if (options.heap_limit.count() != 0) limit = options.heap_limit.count();
  if (options.heap_limit_percent < 100) {
    std::size_t total = 0;
    if (calls().device_total_mem != nullptr &&
        calls().device_total_mem(&total, device) == CUDA_SUCCESS) {
      const auto percent = static_cast<std::uint64_t>(options.heap_limit_percent);
      const std::uint64_t share = total / 100 * percent + total % 100 * percent / 100;
      limit = std::min(limit.value_or(share), share);
    }
  }
  return limit;
}

bool process::admit(int device, std::size_t bytes) {
  const auto limit = limit_of(device);
  const std::lock_guard lock{limits_};
  std::uint64_t& passed = passed_on_[device];
  if (limit && (bytes > *limit || passed > *limit - bytes)) return false;
  passed += bytes;
  try {
    if (!limit || make_room(device, *limit - passed)) return true;
  } catch (...) {
    passed -= bytes;
    throw;
  }
  passed -= bytes;
  fit_heap(device, *limit - passed);
  return false;
}

/// The heap may have `rest` from now on. What it caches beyond that goes; what is live must fit.
bool process::make_room(int device, std::uint64_t rest) {
  const auto heap = existing_heap(device);
  if (heap == nullptr) return true;
  fit_heap(device, rest);
  heap->collect_done();
  if (heap->memory().stats().reserved.current.count() > rest)
    static_cast<void>(heap->memory().shrink(weir::bytes{rest}));
  return heap->memory().stats().reserved.current.count() <= rest;
}

void process::leave(int device, std::size_t bytes) {
  const auto limit = limit_of(device);
  const std::lock_guard lock{limits_};
  std::uint64_t& passed = passed_on_[device];
  passed -= std::min<std::uint64_t>(passed, bytes);
  if (limit) fit_heap(device, *limit - std::min(*limit, passed));
}

void process::fit_heap(int device, std::uint64_t rest) {
  if (const auto heap = existing_heap(device))
    static_cast<void>(heap->memory().set_limit(weir::bytes{rest}));
}

std::uint64_t process::passed_on(int device) {
  const std::lock_guard lock{limits_};
  return passed_on_[device];
}

// --- Streams and peers --------------------------------------------------------------------------

void process::forget_stream(CUstream stream) {
  for (const auto& heap : all_heaps()) heap->forget_stream(stream);
  captures_.end(stream);
}

void process::add_peer(int owner, int reader) {
  if (owner == reader) return;
  {
    const std::lock_guard lock{mutex_};
    peers_.emplace(owner, reader);
  }
  if (const auto heap = existing_heap(owner)) heap->enable_peer(reader);
}

std::uint64_t process::stream_number(CUstream stream) const noexcept {
  // The legacy stream is not asked: another stream's capture may forbid it.
  if (stream == nullptr || stream == legacy_stream()) return 1;
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  unsigned long long number = 0;
  if (calls().stream_get_id != nullptr && calls().stream_is_capturing != nullptr &&
      calls().stream_is_capturing(stream, &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_NONE &&
      calls().stream_get_id(stream, &number) == CUDA_SUCCESS)
    return number;
  return reinterpret_cast<std::uint64_t>(stream);
}

std::optional<CUresult> hand_out(process& here, const std::shared_ptr<device_heap>& heap,
                                 const weir::result<void*>& block, std::size_t bytes,
                                 served_as kind, CUdeviceptr* address) {
  if (!block) {
    if (block.code() == weir::errc::out_of_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    return std::nullopt;
  }
  const auto given = reinterpret_cast<CUdeviceptr>(*block);
  try {
    here.blocks().insert(
        {.address = given, .bytes = bytes, .kind = kind, .device = heap->device(), .heap = heap});
  } catch (const std::bad_alloc&) {
    heap->memory().deallocate(*block);
    return std::nullopt;
  }
  *address = given;
  return CUDA_SUCCESS;
}

CUresult settle_freed(process& here, served_block block, CUresult answer) noexcept {
  if (answer != CUDA_SUCCESS) {
    here.traces().allocated(block, here.driver());
    here.blocks().put_back(std::move(block));
  } else if (!block.is_managed) {
    try {
      here.leave(block.device, block.bytes);
    } catch (const std::bad_alloc&) {
      // It counts for ever.
    }
  }
  return answer;
}

bool serves_plain() noexcept {
  return !settings::get().records_only && !settings::get().keeps_plain;
}

bool serves_ordered() noexcept {
  return !settings::get().records_only && !settings::get().keeps_ordered;
}

}  // namespace weir_preload

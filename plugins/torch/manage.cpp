// Devices, limits, caches, histories: everything about the allocator as a whole.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "allocator.hpp"
#include "errors.hpp"

namespace weir_torch {
namespace {

bool is_classic(weir::placement_policy policy) noexcept {
  return policy == weir::placement_policy::classic ||
         policy == weir::placement_policy::classic_expandable;
}

/// Whether weir itself starts a recording of every allocator (docs/options.md, "record").
bool recorded_by_weir(const weir::options& settings) {
  const char* const path = secure_getenv("WEIR_RECORD");
  return settings.record != "off" ||
         (path != nullptr && *path != '\0' && std::string_view{path} != "off");
}

/// What others registered with torch to free memory when there is none left.
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

void check_index(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && static_cast<std::size_t>(device) < tally::most_devices,
              "Invalid device argument ", static_cast<int>(device));
}

}  // namespace

weir_allocator::weir_allocator(std::shared_ptr<weir::runtime> machine, weir::options settings,
                               bool exportable_if_possible)
    : machine_{std::move(machine)},
      settings_{std::move(settings)},
      exportable_if_possible_{exportable_if_possible} {
  if (machine_->device_count() > 1) owners_ = std::make_unique<page_owners>();
}

void weir_allocator::note_stream(c10::DeviceIndex device, std::int64_t id) {
  check_index(device);
  stream_table::note(handed_out_[static_cast<std::size_t>(device)], id);
}

void weir_allocator::init(int devices) { devices_ = std::max(devices_.load(), devices); }
bool weir_allocator::initialized() { return devices_ > 0; }

device_seat& weir_allocator::make(c10::DeviceIndex device) {
  check_index(device);
  const std::lock_guard lock{mutex_};
  if (device_seat* const there = seat(device)) return *there;
  const weir::device gpu = checked(machine_->device(weir::device_id{device}));
  weir::options settings = settings_;
  const bool can_export = gpu.capabilities().posix_descriptors && !is_classic(settings.heap_policy);
  if (exportable_if_possible_) settings.heap_exportable = can_export;
  auto memory = checked(weir::caching_allocator::create(gpu, settings));
  auto* const made =
      new device_seat{device, std::move(memory), handed_out_[static_cast<std::size_t>(device)],
                      recorded_by_weir(settings), [this] { update_attention(); }};
  // Work on any stream that torch has handed out counts, whether or not it ever asks for memory.
  made->watched = checked(weir::watch_streams(
      gpu, [table = &made->streams](std::vector<weir::stream_ref>& known) { table->tell(known); }));
  // A first look at what was handed out before: the sooner, the less can have gone round since.
  std::vector<weir::stream_ref> until_now;
  made->streams.tell(until_now);
  made->callbacks =
      made->memory.on_out_of_memory([](weir::bytes) { return run_torch_callbacks(); });
  const double fraction = torch_cuda::CUDAAllocatorConfig::per_process_memory_fraction();
  if (fraction < 1.0) {
    made->fraction = fraction;
    checked(made->memory.set_limit(weir::bytes{
        static_cast<std::uint64_t>(fraction * static_cast<double>(gpu.total_memory().count()))}));
  }
  if (owners_ == nullptr) only_.store(made, std::memory_order_release);
  seats_[static_cast<std::size_t>(device)].store(made, std::memory_order_release);
  if (history_settings_.enabled) made->past.configure(history_settings_);
  for (const auto& tracker : trackers_) made->past.attach(tracker);
  const std::lock_guard watching{made->watching};
  made->watch();
  return *made;
}

void weir_allocator::update_attention() {
  static std::mutex& updating = *new std::mutex;
  const std::lock_guard lock{updating};
  std::uint32_t why = 0;
  for_each_seat([&](device_seat& each) {
    if (each.pools.wanted()) why |= pools_wanted;
    if (each.past.wanted()) why |= history_wanted;
  });
  if (desk_.load(std::memory_order_acquire) != nullptr) why |= shares_wanted;
  attention_.store(why, std::memory_order_relaxed);
}

void weir_allocator::enable(bool value) {
  TORCH_CHECK(value,
              "weir is the CUDA allocator of this process and cannot be switched off; to run "
              "without a cache, start the program without weir.torch.enable()");
}

// --- Limits and caches --------------------------------------------------------------------------

double weir_allocator::getMemoryFraction(c10::DeviceIndex device) {
  check_index(device);
  device_seat& at_device = at(device);
  const std::lock_guard lock{at_device.watching};
  return at_device.fraction;
}

void weir_allocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  check_index(device);
  device_seat& at_device = at(device);
  const auto total = static_cast<double>(at_device.gpu.total_memory().count());
  const weir::bytes most = fraction < 1.0
                               ? weir::bytes{static_cast<std::uint64_t>(fraction * total)}
                               : weir::bytes::max();
  checked(at_device.memory.set_limit(most));
  const std::lock_guard lock{at_device.watching};
  at_device.fraction = fraction;
}

void weir_allocator::emptyCache(MempoolId_t pool) {
  // A pool that somebody holds keeps its memory, for graphs that may be replayed; one that nobody
  // holds gives it back by itself.
  if (pool != MempoolId_t(0, 0)) return;
  for_each_seat([](device_seat& each) {
    each.synchronizations.fetch_add(1, std::memory_order_relaxed);
    each.leaving.unmap(each.pools.capturing());
    const auto emptied = each.memory.empty_cache();
    if (!emptied && emptied.code() != weir::errc::capture_forbidden) fail(emptied.error());
  });
}

void weir_allocator::cacheInfo(c10::DeviceIndex device, std::size_t* largest) {
  device_seat& at_device = at(device);
  const weir::memory_stats now = at_device.memory.stats();
  std::uint64_t room = now.cached - std::min(now.cached, now.stream_bound);
  if (const auto asked = at_device.gpu.memory_info(); asked) room += asked->free.count();
  const std::uint64_t limit = at_device.memory.limit().count();
  room = std::min(room, limit - std::min(limit, now.active.current));
  *largest = std::max<std::size_t>(*largest, room);
}

void* weir_allocator::getBaseAllocation(void* pointer, std::size_t* size) {
  const weir::block_info found = checked(checked_owner(pointer).memory.block_at(pointer));
  if (size != nullptr) *size = found.size.count();
  return reinterpret_cast<void*>(found.address);
}

std::vector<torch_cuda::StreamSegmentSize> weir_allocator::getExpandableSegmentSizes(
    c10::DeviceIndex /*device*/) {
  return {};  // weir's memory belongs to no stream
}

void weir_allocator::enablePeerAccess(c10::DeviceIndex from, c10::DeviceIndex to) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "weir does not let GPU ", static_cast<int>(from),
                              " reach the memory of GPU ", static_cast<int>(to),
                              " directly; move the tensor through the host, or run without weir");
}

cudaError_t weir_allocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                        std::size_t count, cudaStream_t stream, bool /*peers*/) {
  if (to_device == from_device)
    return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
}

// --- History ------------------------------------------------------------------------------------

bool weir_allocator::isHistoryEnabled() {
  const std::lock_guard lock{mutex_};
  return history_settings_.enabled;
}

void weir_allocator::recordHistory(bool enabled, torch_cuda::CreateContextFn recorder,
                                   std::size_t most, torch_cuda::RecordContext when, bool clear,
                                   const std::vector<std::string>& skipped) {
  const std::lock_guard lock{mutex_};
  history_settings_ = {.enabled = enabled,
                       .recorder = recorder,
                       .most = most,
                       .when = when,
                       .clear = clear,
                       .skipped = skipped};
  annotations_.configure(enabled, most, clear);
  for_each_seat([&](device_seat& each) {
    each.past.configure(history_settings_);
    const std::lock_guard watching{each.watching};
    each.watch();
  });
}

void weir_allocator::attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) {
  const std::lock_guard lock{mutex_};
  trackers_.push_back(tracker);
  for_each_seat([&](device_seat& each) {
    each.past.attach(tracker);
    const std::lock_guard watching{each.watching};
    each.watch();
  });
}

void weir_allocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& what) {
  if (!annotations_.enabled()) return;
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  annotation entry{device, c10::getApproximateTime()};
  for (const auto& [name, value] : what) entry.recordUserMetadata(name, value);
  annotations_.add(std::move(entry));
}

void weir_allocator::pushCompileContext(std::string& text) {
  if (annotations_.enabled()) history::push_compile_context(text);
}

void weir_allocator::popCompileContext() {
  if (annotations_.enabled()) history::pop_compile_context();
}

void weir_allocator::setUserMetadata(const std::string& text) {
  at(c10::cuda::current_device()).past.set_metadata(text);
}

std::string weir_allocator::getUserMetadata() {
  return at(c10::cuda::current_device()).past.metadata();
}

// --- Recording ----------------------------------------------------------------------------------

void weir_allocator::record(c10::DeviceIndex device, const std::string& path, bool stacks) {
  device_seat& at_device = at(device);
  const std::lock_guard lock{at_device.watching};
  TORCH_CHECK(!at_device.recorded_elsewhere,
              "this process is recorded already: WEIR_RECORD or the option `record` is set");
  TORCH_CHECK(at_device.tape == nullptr, "a recording of GPU ", static_cast<int>(device),
              " is under way");
  at_device.tape =
      checked(weir::recorder::start(path, {.stacks = stacks,
                                           .device = std::string{at_device.gpu.name()},
                                           .device_capacity = at_device.gpu.total_memory()}));
  at_device.watch();
}

void weir_allocator::stop_recording(c10::DeviceIndex device) {
  device_seat* const there = seat(device);
  if (there == nullptr) return;
  std::unique_ptr<weir::recorder> ended;
  {
    const std::lock_guard lock{there->watching};
    std::swap(ended, there->tape);
    there->watch();
  }
  if (ended != nullptr) checked(ended->stop());
}

void weir_allocator::mark(const std::string& text) {
  for_each_seat([&](device_seat& each) {
    const std::lock_guard lock{each.watching};
    if (each.tape != nullptr) each.tape->marker(text);
  });
}

}  // namespace weir_torch

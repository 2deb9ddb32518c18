// SPDX-License-Identifier: Apache-2.0
// The state of a simulated machine: what surrounds every call, and the helpers that calls share.
#include "sim/state.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "base/signals_blocked.hpp"
#include "base/thread_number.hpp"
#include "observe/own_work.hpp"
#include "sim/dispatch.hpp"
#include "sim/graphs.hpp"
#include "sim/managed.hpp"
#include "sim/modules.hpp"
#include "sim/pools.hpp"
#include "sim/sharing.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

std::atomic<std::uint64_t> next_serial{1};

/// Contexts are numbers, like all handles: a tag and the device's ordinal.
constexpr std::uintptr_t context_base = 0x5200'0000'0000;
constexpr std::uintptr_t context_stride = 64;

/// Calls that work before init().
bool works_uninitialized(driver::call call) {
  using enum driver::call;
  return call == init || call == driver_get_version || call == get_error_name ||
         call == get_error_string;
}

/// Calls that work whatever context is current: those about devices and contexts themselves, and
/// the virtual memory calls, which name their device.
bool needs_context(driver::call call) {
  using enum driver::call;
  const auto between = [&](driver::call first, driver::call last) {
    return call >= first && call <= last;
  };
  return !between(init, ctx_pop_current) &&
         !between(mem_address_reserve, mem_import_from_shareable_handle);
}

/// Calls whose fate during a capture depends on the stream or event they name: they ask
/// graph_set::forbid() themselves, once they know it.
bool judged_by_argument(driver::call call) {
  using enum driver::call;
  return call == event_query || call == event_synchronize || call == stream_query ||
         call == stream_synchronize || call == mem_alloc_async ||
         call == mem_alloc_from_pool_async || call == mem_free_async;
}

}  // namespace

state::state(machine_options settings)
    : options{std::move(settings)},
      serial{next_serial.fetch_add(1)},
      fork_generation{sim::fork_generation()},
      flow{*this},
      space{*this} {
  for (const device_spec& spec : options.devices) {
    device_state device;
    device.spec = spec;
    device.peer_enabled.resize(options.devices.size(), false);
    devices.push_back(std::move(device));
  }
  pools = std::make_unique<pool_set>(*this);
  graphs = std::make_unique<graph_set>(*this);
  modules = std::make_unique<module_set>(*this);
  shared = std::make_unique<sharing>(*this);
}

state::~state() = default;

// --- Around every call ---------------------------------------------------------------------------

bool state::before(driver::call call, CUresult& answer) {
  if (down) {
    answer = CUDA_ERROR_DEINITIALIZED;
    return true;
  }
  ++counts[static_cast<std::size_t>(call)];
  ++count_all;
  charged_units = 1;
  charged_bytes = 0;
  if (time_source) {
    clock = std::max(clock, time_source());
    if (flow.due()) flow.make_progress(lock());
  }
  if (!faults.empty() && fault_due(call, answer)) return answer != CUDA_SUCCESS;
  if (!initialized && !works_uninitialized(call)) {
    answer = CUDA_ERROR_NOT_INITIALIZED;
    return true;
  }
  if (context_ever_ended && needs_context(call)) {
    const int device = current_device();
    if (device >= 0 && devices[static_cast<std::size_t>(device)].context_ended) {
      answer = CUDA_ERROR_CONTEXT_IS_DESTROYED;
      return true;
    }
  }
  if (graphs->any_active() && !judged_by_argument(call)) {
    answer = graphs->forbid(call);
    return answer != CUDA_SUCCESS;
  }
  return false;
}

bool state::fault_due(driver::call call, CUresult& answer) {
  for (auto planned = faults.begin(); planned != faults.end(); ++planned) {
    if (!planned->any && planned->call != call) continue;
    if (--planned->remaining != 0) continue;
    const planned_fault due = *planned;
    faults.erase(planned);
    clock += due.extra;
    answer = due.result;
    return true;
  }
  return false;
}

void state::after(driver::call call) {
  const call_cost& cost = options.costs.of[static_cast<std::size_t>(call)];
  const double mebibytes = static_cast<double>(charged_bytes) / (1 << 20);
  const duration spent{static_cast<std::int64_t>(cost.nanoseconds * charged_units +
                                                 cost.nanoseconds_per_mib * mebibytes)};
  clock += spent;
  driver_time += spent;
  times[static_cast<std::size_t>(call)] += spent;
  if (flow.due()) flow.make_progress(lock());
}

// --- Threads and contexts ------------------------------------------------------------------------

thread_state& state::thread() {
  // The machine that the thread called last: few threads use several in turn.
  struct latest_machine {
    std::uint64_t serial = 0;
    thread_state* state = nullptr;
  };
  static constinit thread_local latest_machine latest{};
  if (latest.serial != serial) {
    thread_state& own = threads_[detail::thread_number()];
    if (own.number == 0) own.number = threads_.size();
    latest = {serial, &own};
  }
  return *latest.state;
}

CUcontext state::context_of(int device) const noexcept {
  return reinterpret_cast<CUcontext>(context_base +
                                     static_cast<std::uintptr_t>(device) * context_stride);
}

int state::device_of(CUcontext context) const noexcept {
  const auto number = reinterpret_cast<std::uintptr_t>(context);
  if (number < context_base || (number - context_base) % context_stride != 0) return -1;
  const auto device = (number - context_base) / context_stride;
  return device < devices.size() ? static_cast<int>(device) : -1;
}

int state::current_device() {
  const thread_state& caller = thread();
  return caller.contexts.empty() || caller.contexts.back() == nullptr
             ? -1
             : device_of(caller.contexts.back());
}

CUresult state::health(int ordinal) const noexcept {
  const device_state& device = devices[static_cast<std::size_t>(ordinal)];
  if (device.sticky != CUDA_SUCCESS) return device.sticky;
  return device.lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

void state::fault(int ordinal, CUresult result) noexcept {
  device_state& device = devices[static_cast<std::size_t>(ordinal)];
  if (device.sticky == CUDA_SUCCESS) device.sticky = result;
}

std::shared_ptr<stream_state> state::find_stream(CUstream handle) {
  if (handle == nullptr || handle == legacy_stream()) {
    const int device = current_device();
    return device < 0 ? nullptr : flow.legacy(device);
  }
  if (handle == per_thread_stream()) {
    const int device = current_device();
    if (device < 0) return nullptr;
    auto& own_stream = thread().default_streams[device];
    if (!own_stream) own_stream = flow.make_stream(device, CU_STREAM_DEFAULT, 0);
    return own_stream;
  }
  return stream_handles.share(handle);
}

bool state::is_capturing(stream_id number) const noexcept {
  return std::any_of(flow.streams.begin(), flow.streams.end(), [&](const auto& each) {
    return each->id == number.number() && each->capturing != nullptr;
  });
}

CUresult state::missing_stream() {
  return current_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

// --- Work ---------------------------------------------------------------------------------------

CUresult state::may_use(const stream_state& stream) {
  if (const CUresult failure = health(stream.device); failure != CUDA_SUCCESS) return failure;
  const bool beside_capture = stream.is_legacy && graphs->any_active();
  return beside_capture ? graphs->check_legacy(stream.device) : CUDA_SUCCESS;
}

CUresult state::submit(const std::shared_ptr<stream_state>& stream, work task) {
  if (const CUresult failure = may_use(*stream); failure != CUDA_SUCCESS) return failure;
  if (stream->capturing) return graphs->add_node(stream, std::move(task));
  flow.enqueue(stream, std::move(task));
  return CUDA_SUCCESS;
}

CUresult state::submit_and_wait(const std::shared_ptr<stream_state>& stream, work task) {
  if (stream->capturing) return graphs->misuse(stream);
  if (const CUresult failure = submit(stream, std::move(task)); failure != CUDA_SUCCESS)
    return failure;
  return flow.synchronize(stream, lock());
}

CUresult state::drain(const std::shared_ptr<stream_state>& stream) {
  if (stream->capturing) return graphs->misuse(stream);
  if (const CUresult failure = may_use(*stream); failure != CUDA_SUCCESS) return failure;
  return flow.synchronize(stream, lock());
}

void state::after_synchronize(int device) { pools->after_synchronize(device); }

void state::host_access(std::uint64_t address, std::uint64_t size, bool write, const char* label) {
  const moment when = flow.host_moment();
  const auto accessor = std::make_shared<const party>(party{.label = label,
                                                            .order = when.at.tick,
                                                            .extent = {address, size},
                                                            .writes = write,
                                                            .queued = clock,
                                                            .step = ++steps});
  // A host function's blocks may have been freed behind it before it ran.
  if (options.check_hazards && !timeline::in_host_function())
    check_blocks(accessor->extent, *accessor, block_book::occasion::queued);
  space.each(address, size, [&](region& area, std::uint64_t from, std::uint64_t length) {
    if (options.check_hazards) {
      area.pages->history.touch(area.offset + (from - area.base), length,
                                write ? access_kind::write : access_kind::read, when, accessor,
                                from, hazards);
    }
    if (area.managed) managed_touch(*this, area, from, length, -1, write);
    return true;
  });
}

void state::check_blocks(const range& touched, const party& accessor, block_book::occasion when) {
  if (blocks.empty() || observe::is_own_work()) return;
  const auto wrong = blocks.check(touched, when);
  if (wrong) hazards.report({wrong->kind, wrong->before, accessor, wrong->bytes});
}

// --- Background ---------------------------------------------------------------------------------

void state::start_background() {
  if (background_.joinable()) return;
  const detail::signals_blocked quiet;
  background_ = std::thread{[this] {
    while (!background_stop_.load()) {
      {
        machine_lock guard{*this};
        for (int i = 0; i < 64 && flow.step(guard.lock()); ++i) {
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds{50});
    }
  }};
}

void state::stop_background() {
  background_stop_.store(true);
  if (background_.joinable()) background_.join();
}

}}}  // namespace weir::v0::sim

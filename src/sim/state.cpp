// The inside of a simulated machine: what surrounds every call, and the helpers that calls share.
#include "sim/state.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "sim/dispatch.hpp"
#include "sim/graphs.hpp"
#include "sim/managed.hpp"
#include "sim/modules.hpp"
#include "sim/pools.hpp"
#include "sim/sharing.hpp"

namespace weir::inline v0::sim {

namespace {

std::atomic<std::uint64_t> next_serial{1};

/// Contexts are numbers, like all handles: a tag and the device's ordinal.
constexpr std::uintptr_t context_base = 0x5200'0000'0000;
constexpr std::uintptr_t context_stride = 64;

/// Calls that work before init().
bool works_uninitialized(driver::call which) {
  using enum driver::call;
  return which == init || which == driver_get_version || which == get_error_name ||
         which == get_error_string;
}

/// Calls that work whatever context is current: those about devices and contexts themselves, and
/// the virtual memory calls, which name their device.
bool needs_context(driver::call which) {
  using enum driver::call;
  const auto between = [&](driver::call first, driver::call last) {
    return which >= first && which <= last;
  };
  return !between(init, ctx_pop_current) &&
         !between(mem_address_reserve, mem_import_from_shareable_handle);
}

/// Calls whose fate during a capture depends on the stream or event they name: they ask
/// graph_set::forbid() themselves, once they know it.
bool judged_by_argument(driver::call which) {
  using enum driver::call;
  return which == event_query || which == event_synchronize || which == stream_query ||
         which == stream_synchronize || which == mem_alloc_async ||
         which == mem_alloc_from_pool_async || which == mem_free_async;
}

}  // namespace

state::state(machine_options wanted)
    : options{std::move(wanted)},
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

bool state::before(driver::call which, CUresult& answer) {
  if (down) {
    answer = CUDA_ERROR_DEINITIALIZED;
    return true;
  }
  ++counts[static_cast<std::size_t>(which)];
  ++count_all;
  charged_units = 1;
  charged_bytes = 0;
  if (time_source) {
    clock = std::max(clock, time_source());
    if (flow.due()) flow.let_time_pass(lock());
  }
  if (!faults.empty() && fault_due(which, answer)) return answer != CUDA_SUCCESS;
  if (!initialized && !works_uninitialized(which)) {
    answer = CUDA_ERROR_NOT_INITIALIZED;
    return true;
  }
  if (context_ever_ended && needs_context(which)) {
    const int device = current_device();
    if (device >= 0 && devices[static_cast<std::size_t>(device)].context_ended) {
      answer = CUDA_ERROR_CONTEXT_IS_DESTROYED;
      return true;
    }
  }
  if (graphs->any_active() && !judged_by_argument(which)) {
    answer = graphs->forbid(which);
    return answer != CUDA_SUCCESS;
  }
  return false;
}

bool state::fault_due(driver::call which, CUresult& answer) {
  for (auto planned = faults.begin(); planned != faults.end(); ++planned) {
    if (!planned->any && planned->which != which) continue;
    if (--planned->left != 0) continue;
    const planned_fault now = *planned;
    faults.erase(planned);
    clock += now.extra;
    answer = now.with;
    return true;
  }
  return false;
}

void state::after(driver::call which) {
  const call_cost& cost = options.costs.of[static_cast<std::size_t>(which)];
  const double mebibytes = static_cast<double>(charged_bytes) / (1 << 20);
  const duration spent{static_cast<std::int64_t>(cost.nanoseconds * charged_units +
                                                 cost.nanoseconds_per_mib * mebibytes)};
  clock += spent;
  driver_time += spent;
  if (flow.due()) flow.let_time_pass(lock());
}

// --- Threads and contexts ------------------------------------------------------------------------

thread_state& state::thread() {
  struct remembered {
    std::uint64_t serial = 0;
    thread_state* state = nullptr;
  };
  thread_local std::array<remembered, slot_count> known{};
  remembered& entry = known[static_cast<std::size_t>(slot)];
  if (entry.serial != serial) {
    threads_.push_back(std::make_unique<thread_state>());
    threads_.back()->number = threads_.size();
    entry = {serial, threads_.back().get()};
  }
  return *entry.state;
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
  const thread_state& me = thread();
  return me.contexts.empty() || me.contexts.back() == nullptr ? -1 : device_of(me.contexts.back());
}

CUresult state::health(int device) const noexcept {
  const device_state& which = devices[static_cast<std::size_t>(device)];
  if (which.sticky != CUDA_SUCCESS) return which.sticky;
  return which.lost ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

void state::fault(int device, CUresult with) noexcept {
  device_state& which = devices[static_cast<std::size_t>(device)];
  if (which.sticky == CUDA_SUCCESS) which.sticky = with;
}

std::shared_ptr<stream_state> state::stream(CUstream handle) {
  if (handle == nullptr || handle == legacy_stream()) {
    const int device = current_device();
    return device < 0 ? nullptr : flow.legacy(device);
  }
  if (handle == per_thread_stream()) {
    const int device = current_device();
    if (device < 0) return nullptr;
    auto& mine = thread().default_streams[device];
    if (!mine) mine = flow.make_stream(device, CU_STREAM_DEFAULT, 0);
    return mine;
  }
  return stream_handles.share(handle);
}

CUresult state::no_stream() {
  return current_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

// --- Work ---------------------------------------------------------------------------------------

CUresult state::submit(const std::shared_ptr<stream_state>& on, work what) {
  if (const CUresult bad = health(on->device); bad != CUDA_SUCCESS) return bad;
  if (on->capturing) return graphs->add_node(on, std::move(what));
  if (on->is_legacy && graphs->any_active()) {
    if (const CUresult bad = graphs->check_legacy(on->device); bad != CUDA_SUCCESS) return bad;
  }
  flow.enqueue(on, std::move(what));
  return CUDA_SUCCESS;
}

CUresult state::submit_and_wait(const std::shared_ptr<stream_state>& on, work what) {
  if (on->capturing) return graphs->misuse(on);
  if (const CUresult bad = submit(on, std::move(what)); bad != CUDA_SUCCESS) return bad;
  return flow.synchronize(on, lock());
}

void state::after_synchronize(int device) { pools->after_synchronize(device); }

void state::host_access(std::uint64_t address, std::uint64_t size, bool write, const char* what) {
  const moment when = flow.host_deed();
  const auto story = std::make_shared<const party>(
      party{what, stream_id{0}, when.at.tick, {address, size}, write, clock});
  space.each(address, size, [&](region& in, std::uint64_t from, std::uint64_t length) {
    if (options.check_hazards) {
      in.pages->history.touch(in.offset + (from - in.base), length,
                              write ? deed::write : deed::read, when, story, from, hazards);
    }
    if (in.managed) managed_touch(*this, in, from, length, -1, write);
    return true;
  });
}

// --- Background ---------------------------------------------------------------------------------

void state::start_background() {
  if (background_.joinable()) return;
  background_ = std::thread{[this] {
    while (!background_stop_.load()) {
      {
        entered here{*this};
        for (int i = 0; i < 64 && flow.step(here.lock()); ++i) {
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

}  // namespace weir::inline v0::sim

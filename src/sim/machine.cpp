// SPDX-License-Identifier: Apache-2.0
// weir::sim::machine: the public face of a simulated machine.
#include <algorithm>
#include <utility>

#include "sim/block_book.hpp"
#include "sim/dispatch.hpp"
#include "sim/modules.hpp"
#include "sim/state.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

error refuse(std::string reason) {
  return {{.code = errc::invalid_argument, .detail = std::move(reason)}};
}

}  // namespace

machine_options machine_options::from(const weir::options& settings) {
  machine_options machine;
  const auto count = static_cast<std::size_t>(std::max(settings.sim_devices, 0));
  machine.devices.assign(count, device_spec{.capacity = settings.sim_capacity});
  machine.seed = settings.sim_seed;
  machine.lag = settings.sim_lag;
  machine.check_hazards = settings.sim_hazards;
  switch (settings.sim_mode) {
    case sim_progress::seeded:
      machine.mode = progress::seeded;
      break;
    case sim_progress::timed:
      machine.mode = progress::timed;
      break;
    case sim_progress::manual:
      machine.mode = progress::manual;
      break;
  }
  return machine;
}

result<std::shared_ptr<machine>> machine::create(machine_options options) {
  if (options.devices.size() > 64) return refuse("a machine has at most 64 devices");
  for (const device_spec& spec : options.devices) {
    const std::uint64_t unit = spec.granularity.count();
    if (unit < 4096 || (unit & (unit - 1)) != 0) {
      return refuse("granularity must be a power of two and at least 4 KiB");
    }
    if (spec.context_overhead > spec.capacity) return refuse("the context does not fit the device");
  }
  if (options.lag < duration{0}) return refuse("lag must not be negative");
  try {
    const bool background = options.background;
    auto implementation = std::make_unique<state>(std::move(options));
    implementation->slot = take_slot(implementation.get());
    if (implementation->slot < 0) {
      return error{{.code = errc::limit_exceeded, .detail = "8 simulated machines exist already"}};
    }
    if (background) implementation->start_background();
    return std::shared_ptr<machine>{new machine{std::move(implementation)}};
  } catch (const std::bad_alloc&) {
    return errc::no_host_memory;
  }
}

machine::machine(std::unique_ptr<state> implementation) : state_{std::move(implementation)} {}

machine::~machine() {
  if (state_->fork_generation != fork_generation()) {
    // A forked child: threads and locks of the parent did not come along, and the mappings are the
    // parent's business. Leaking it all is the only safe thing.
    leave_slot(state_->slot);
    static_cast<void>(state_.release());
    return;
  }
  state_->stop_background();
  leave_slot(state_->slot);
  const std::lock_guard drain{state_->mutex};  // a call that had entered already gets out first
  state_->down = true;
}

const driver::table& machine::driver() const noexcept { return table_of(state_->slot); }
const machine_options& machine::options() const noexcept { return state_->options; }

void machine::add_kernel(kernel definition) {
  const machine_lock guard{*state_};
  state_->modules->add(std::move(definition));
}

result<void> machine::launch(driver::CUstream handle, std::string label,
                             std::vector<access> accesses, std::function<void()> body,
                             duration takes) {
  machine_lock guard{*state_};
  const auto stream = state_->find_stream(handle);
  if (!stream) return make_error(driver::call::launch_kernel, CUDA_ERROR_INVALID_HANDLE);
  work task{.type = CU_GRAPH_NODE_TYPE_KERNEL,
            .label = std::move(label),
            .accesses = std::move(accesses),
            .takes = takes};
  if (body) {
    task.body = [run = std::move(body)] {
      run();
      return CUDA_SUCCESS;
    };
  }
  const CUresult answer = state_->submit(stream, std::move(task));
  state_->flow.make_progress(guard.lock());
  return check(driver::call::launch_kernel, answer);
}

void machine::host_read(const void* address, std::size_t size) {
  const machine_lock guard{*state_};
  state_->host_access(reinterpret_cast<std::uintptr_t>(address), size, false, "host read");
}

void machine::host_write(void* address, std::size_t size) {
  const machine_lock guard{*state_};
  state_->host_access(reinterpret_cast<std::uintptr_t>(address), size, true, "host write");
}

std::unique_ptr<event_sink> machine::watch_blocks() {
  return std::make_unique<block_watch>(*state_);
}

void machine::name_stream(driver::CUstream handle, std::string name) {
  const machine_lock guard{*state_};
  if (const auto stream = state_->find_stream(handle)) stream->name = std::move(name);
}

bool machine::step() {
  machine_lock guard{*state_};
  return state_->flow.step(guard.lock());
}

void machine::run_until_idle() {
  machine_lock guard{*state_};
  while (state_->flow.step(guard.lock())) {
  }
}

void machine::hold(driver::CUstream handle) {
  const machine_lock guard{*state_};
  if (const auto stream = state_->find_stream(handle)) stream->held = true;
}

void machine::release(driver::CUstream handle) {
  const machine_lock guard{*state_};
  if (const auto stream = state_->find_stream(handle)) stream->held = false;
  state_->flow.wake_waiters();
}

time_point machine::now() const {
  const machine_lock guard{*state_};
  return state_->clock;
}

void machine::advance(duration by) {
  machine_lock guard{*state_};
  state_->clock += std::max(by, duration{0});
  state_->flow.make_progress(guard.lock());
}

void machine::set_time(time_point to) {
  machine_lock guard{*state_};
  state_->clock = std::max(state_->clock, to);
  state_->flow.make_progress(guard.lock());
}

void machine::follow_time(std::function<time_point()> source) {
  const machine_lock guard{*state_};
  state_->time_source = std::move(source);
}

duration machine::driver_time() const {
  const machine_lock guard{*state_};
  return state_->driver_time;
}

duration machine::driver_time(driver::call call) const {
  const machine_lock guard{*state_};
  return state_->times[static_cast<std::size_t>(call)];
}

void machine::fail(driver::call call, std::uint64_t nth, driver::CUresult result) {
  const machine_lock guard{*state_};
  if (nth != 0) state_->faults.push_back({.call = call, .remaining = nth, .result = result});
}

void machine::fail_any(std::uint64_t nth, driver::CUresult result) {
  const machine_lock guard{*state_};
  if (nth != 0) state_->faults.push_back({.any = true, .remaining = nth, .result = result});
}

void machine::delay(driver::call call, std::uint64_t nth, duration extra) {
  const machine_lock guard{*state_};
  if (nth != 0) state_->faults.push_back({.call = call, .remaining = nth, .extra = extra});
}

void machine::clear_faults() {
  const machine_lock guard{*state_};
  state_->faults.clear();
}

void machine::lose_device(device_id device) {
  const machine_lock guard{*state_};
  if (!state_->valid_device(device.number())) return;
  device_state& lost_device = state_->devices[static_cast<std::size_t>(device.number())];
  lost_device.lost = true;
  if (!state_->flow.idle(device.number())) lost_device.sticky = CUDA_ERROR_LAUNCH_FAILED;
  state_->flow.wake_waiters();
}

void machine::set_capacity(device_id device, bytes capacity) {
  const machine_lock guard{*state_};
  if (!state_->valid_device(device.number())) return;
  state_->devices[static_cast<std::size_t>(device.number())].spec.capacity = capacity;
}

void machine::set_pinnable(bytes most) {
  const machine_lock guard{*state_};
  state_->pinnable = most.count();
}

bytes machine::pinned() const {
  const machine_lock guard{*state_};
  return bytes{state_->space.pinned_bytes()};
}

void machine::shut_down() {
  const machine_lock guard{*state_};
  state_->down = true;
  state_->flow.wake_waiters();
}

std::vector<hazard> machine::hazards() const {
  const machine_lock guard{*state_};
  return state_->hazards.all();
}

void machine::clear_hazards() {
  const machine_lock guard{*state_};
  state_->hazards.clear();
}

void machine::on_hazard(std::function<void(const hazard&)> listener) {
  const machine_lock guard{*state_};
  state_->hazards.listen(std::move(listener));
}

std::uint64_t machine::calls(driver::call call) const {
  const machine_lock guard{*state_};
  return state_->counts[static_cast<std::size_t>(call)];
}

std::uint64_t machine::calls() const {
  const machine_lock guard{*state_};
  return state_->count_all;
}

bytes machine::used(device_id device) const {
  const machine_lock guard{*state_};
  return state_->valid_device(device.number()) ? bytes{state_->space.used(device.number())}
                                               : bytes{};
}

migration_counts machine::migrations(device_id device) const {
  const machine_lock guard{*state_};
  if (!state_->valid_device(device.number())) return {};
  return state_->devices[static_cast<std::size_t>(device.number())].migrations;
}

}}}  // namespace weir::v0::sim

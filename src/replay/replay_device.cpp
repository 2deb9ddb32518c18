// SPDX-License-Identifier: Apache-2.0
// Opening a device for a replay.
#include "replay/replay_device.hpp"

#include "replay/metered_driver.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace replay {

result<std::unique_ptr<replay_device>> replay_device::open(const settings& settings,
                                                           std::size_t streams) {
  std::unique_ptr<replay_device> opened{new replay_device};
  if (settings.target.simulated) {
    WEIR_TRY(opened->open_simulated(settings));
  } else {
    WEIR_TRY(opened->open_real(settings));
  }
  WEIR_TRY_VALUE(gpu, opened->runtime_->device(device_id{settings.target.device}));
  opened->gpu_.push_back(gpu);
  for (std::size_t i = 0; i < streams; ++i) {
    WEIR_TRY_VALUE(queue, stream::create(gpu));
    opened->references_.push_back(queue.ref());
    opened->streams_.push_back(std::move(queue));
  }
  return opened;
}

result<void> replay_device::open_simulated(const settings& settings) {
  sim::machine_options description;
  description.mode = sim::progress::timed;
  description.lag = settings.lag;
  description.check_hazards = settings.verify;
  description.back_memory = settings.verify;
  sim::device_spec& card = description.devices.front();
  if (settings.capacity.count() != 0) {
    const auto total = checked_add(settings.capacity.count(), card.context_overhead.count());
    if (!total) return errc::size_overflow;
    card.capacity = bytes{*total};
  }
  WEIR_TRY_VALUE(machine, sim::machine::create(description));
  machine_ = std::move(machine);
  machine_->follow_time([this] { return time_; });
  unmetered_ = &machine_->driver();
  if (settings.profiled) {
    WEIR_TRY_VALUE(metered,
                   runtime::open_table(meter_driver(machine_->driver()), "simulated", machine_));
    runtime_ = std::move(metered);
  } else {
    WEIR_TRY_VALUE(simulated, runtime::open_simulated(machine_));
    runtime_ = std::move(simulated);
  }
  return {};
}

result<void> replay_device::open_real(const settings& settings) {
  std::shared_ptr<runtime> real;
  if (settings.driver.empty()) {
    WEIR_TRY_VALUE(opened, runtime::open_cuda());
    real = std::move(opened);
  } else {
    WEIR_TRY_VALUE(opened, runtime::open_cuda(settings.driver));
    real = std::move(opened);
  }
  unmetered_ = &real->driver();
  WEIR_TRY_VALUE(metered,
                 runtime::open_table(meter_driver(real->driver()), real->describe().driver, real));
  runtime_ = std::move(metered);
  return {};
}

driver_cost replay_device::cost() const {
  if (machine_ != nullptr) return {machine_->calls(), machine_->driver_time()};
  return metered_cost();
}

std::array<call_tally, driver::call_count> replay_device::tallies() const {
  if (machine_ == nullptr) return metered_tallies();
  std::array<call_tally, driver::call_count> all;
  for (std::size_t i = 0; i < driver::call_count; ++i) {
    const auto call = static_cast<driver::call>(i);
    all[i] = {machine_->calls(call), machine_->driver_time(call)};
  }
  return all;
}

}}}  // namespace weir::v0::replay

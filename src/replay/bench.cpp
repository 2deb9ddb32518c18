// Opening a device for a replay.
#include "replay/bench.hpp"

#include "replay/metered_driver.hpp"
#include "weir/base/checked.hpp"

namespace weir::inline v0::replay {

result<std::unique_ptr<bench>> bench::open(const settings& how, std::size_t streams) {
  std::unique_ptr<bench> made{new bench};
  if (how.where.simulated) {
    WEIR_TRY(made->open_simulated(how));
  } else {
    WEIR_TRY(made->open_real(how));
  }
  WEIR_TRY_VALUE(gpu, made->runtime_->device(device_id{how.where.device}));
  made->gpu_.push_back(gpu);
  for (std::size_t i = 0; i < streams; ++i) {
    WEIR_TRY_VALUE(queue, stream::create(gpu));
    made->references_.push_back(queue.ref());
    made->streams_.push_back(std::move(queue));
  }
  return made;
}

result<void> bench::open_simulated(const settings& how) {
  sim::machine_options description;
  description.mode = sim::progress::timed;
  description.lag = how.lag;
  description.check_hazards = how.verify;
  description.back_memory = how.verify;
  sim::device_spec& card = description.devices.front();
  if (how.capacity.count() != 0) {
    const auto whole = checked_add(how.capacity.count(), card.context_overhead.count());
    if (!whole) return errc::size_overflow;
    card.capacity = bytes{*whole};
  }
  WEIR_TRY_VALUE(machine, sim::machine::create(description));
  machine_ = std::move(machine);
  machine_->follow_time([this] { return now_; });
  WEIR_TRY_VALUE(opened, runtime::open_simulated(machine_));
  runtime_ = std::move(opened);
  unmetered_ = &runtime_->driver();
  return {};
}

result<void> bench::open_real(const settings& how) {
  std::shared_ptr<runtime> real;
  if (how.driver.empty()) {
    WEIR_TRY_VALUE(opened, runtime::open_cuda());
    real = std::move(opened);
  } else {
    WEIR_TRY_VALUE(opened, runtime::open_cuda(how.driver));
    real = std::move(opened);
  }
  unmetered_ = &real->driver();
  WEIR_TRY_VALUE(metered,
                 runtime::open_table(meter_driver(real->driver()), real->describe().driver, real));
  runtime_ = std::move(metered);
  return {};
}

driver_use bench::used() const {
  if (machine_ != nullptr) return {machine_->calls(), machine_->driver_time()};
  return metered_use();
}

}  // namespace weir::inline v0::replay

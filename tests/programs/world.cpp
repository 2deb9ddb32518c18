// SPDX-License-Identifier: Apache-2.0
// Creating the simulated machine, and a driver table that never lacks host memory.
#include "world.hpp"

#include "host_memory.hpp"
#include "support/environment.hpp"
#include "support/sizes.hpp"
#include "weir/base/error.hpp"

namespace weir::programs_test {
namespace {

using testing_support::mib;
constexpr std::uint64_t overhead = 32 * mib;
const std::size_t kept_steps = testing_support::number_from("WEIR_PROGRAMS_LOG", 40);

const driver::table* real_table = nullptr;

template <auto Row, class Signature>
struct thunk;

template <auto Row, class... Arguments>
struct thunk<Row, driver::CUresult (*)(Arguments...)> {
  static driver::CUresult call(Arguments... arguments) {
    const spared_memory spared;
    return (real_table->*Row)(arguments...);
  }
};

const driver::table& with_memory_of_its_own(const driver::table& real) {
  static driver::table table;
  real_table = &real;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  table.member = real.member == nullptr                                       \
                     ? nullptr                                                \
                     : &thunk<&driver::table::member, decltype(driver::table::member)>::call;
#include "weir/driver/calls.def"
  return table;
}

sim::machine_options choose_machine(rng& random, std::uint64_t seed, std::uint64_t capacity) {
  sim::machine_options chosen;
  chosen.seed = seed;
  chosen.mode = random.one_in(2) ? sim::progress::manual : sim::progress::seeded;
  chosen.devices.resize(device_count);
  for (sim::device_spec& each : chosen.devices) {
    each.capacity = bytes{capacity + overhead};
    each.context_overhead = bytes{overhead};
  }
  return chosen;
}

}  // namespace

world::world(std::uint64_t seed) : seed_{seed}, random_{seed} {
  capacity_ = random_.any_of({192 * mib, 256 * mib, 384 * mib, 512 * mib});
  machine_ = sim::machine::create(choose_machine(random_, seed, capacity_)).value();
  machine_->on_hazard([failure = failure_](const sim::hazard& hazard) {
    failure->report("hazard: " + hazard.message());
  });
  runtime_ = runtime::open_table(with_memory_of_its_own(machine_->driver()), "simulated", machine_)
                 .value();
  for (std::size_t i = 0; i < device_count; ++i) {
    gpus_.push_back(runtime_->device(device_id{static_cast<int>(i)}).value());
    static_cast<void>(gpus_.back().memory_info());  // creates the context
    used_before_[i] = used(i);
  }
  set_error_handler(
      [](const error& reported, void* context) noexcept {
        auto& self = *static_cast<world*>(context);
        if (!self.tolerates_reports_) self.fail("reported: " + reported.message());
      },
      this);
}

world::~world() { set_error_handler(nullptr); }

void world::log(std::string step) {
  const std::lock_guard lock{log_mutex_};
  log_.push_back(std::to_string(steps_++) + " " + std::move(step));
  if (log_.size() > kept_steps) log_.pop_front();
}

std::string world::last_steps() const {
  const std::lock_guard lock{log_mutex_};
  std::string text;
  for (const std::string& each : log_) text += "\n  " + each;
  return text;
}

std::string world::outcome() const {
  if (!failed()) return {};
  return "seed " + std::to_string(seed_) + (tolerates_reports_ ? " (with failing calls)" : "") +
         ": " + failure_->message() + "\nlast steps:" + last_steps();
}

}  // namespace weir::programs_test

// SPDX-License-Identifier: Apache-2.0
// Opening a machine: a table of calls, its devices, and what happens to both when a process forks.
#include "weir/device/runtime.hpp"

#include <pthread.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/environment.hpp"
#include "base/host_memory.hpp"
#include "device/state.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 {
namespace detail {

std::atomic<std::uint32_t> fork_generation{0};

namespace {

result<void> watch_forks() {
  static const int refused = pthread_atfork(
      nullptr, nullptr, +[] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
  if (refused == 0) return {};
  return error{{.code = refused == ENOMEM ? errc::no_host_memory : errc::system,
                .native = refused,
                .detail = std::string{"pthread_atfork: "} + std::strerror(refused)}};
}

/// The optional calls that `calls` lacks; symbol_missing, with all names, if a required one is.
result<std::vector<std::string_view>> missing_calls(const driver::table& calls) {
  std::vector<std::string_view> optional;
  std::string required;
  const auto add_if_missing = [&](driver::call call, bool present) {
    if (present) return;
    const auto& row = driver::info(call);
    if (!row.required) {
      optional.push_back(row.symbol);
    } else {
      required += required.empty() ? "" : ", ";
      required += row.symbol;
    }
  };
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  add_if_missing(driver::call::member, calls.member != nullptr);
#include "weir/driver/calls.def"
  if (required.empty()) return optional;
  return error{{.code = errc::symbol_missing, .detail = std::move(required)}};
}

result<std::shared_ptr<sim::machine>> simulated_machine(const options& settings) {
  if (settings.sim_devices < 1) {
    return error{{.code = errc::bad_option,
                  .detail = "sim_devices = " + std::to_string(settings.sim_devices)}};
  }
  return sim::machine::create(sim::machine_options::from(settings));
}

/// Whether a real driver failed only by not being there.
bool means_no_driver(errc code) noexcept {
  return code == errc::driver_unavailable || code == errc::driver_too_old ||
         code == errc::symbol_missing || code == errc::no_device;
}

/// Which numbers are taken. No lock: a child that was forked in the middle could not trust it.
std::array<std::atomic<bool>, runtime_number::most> taken_numbers{};

}  // namespace

result<std::shared_ptr<const runtime_number>> runtime_number::take() {
  for (std::size_t i = 0; i < most; ++i) {
    if (taken_numbers[i].exchange(true, std::memory_order_relaxed)) continue;
    try {
      return std::make_shared<const runtime_number>(i);
    } catch (const std::bad_alloc&) {
      taken_numbers[i].store(false, std::memory_order_relaxed);
      return no_host_memory();
    }
  }
  return error{
      {.code = errc::limit_exceeded,
       .detail = "a process can have " + std::to_string(most) + " open runtimes; close one"}};
}

runtime_number::~runtime_number() { taken_numbers[value_].store(false, std::memory_order_relaxed); }

}  // namespace detail

runtime::runtime() = default;

runtime::~runtime() {
  for (const auto& device : devices_) device->default_pool.reset();
  for (const auto& device : devices_) {
    if (device->forked()) continue;
    if (device->context.load(std::memory_order_acquire) == nullptr) continue;
    detail::report_failure(driver::check(driver::call::device_primary_ctx_release,
                                         calls_.device_primary_ctx_release(device->native)));
  }
}

result<std::shared_ptr<runtime>> runtime::open() try {
  return open(detail::environment_defaults());
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<std::shared_ptr<runtime>> runtime::open(const options& settings) try {
  if (settings.print_errors != error_printing::automatic) set_error_printing(settings.print_errors);
  std::optional<error> no_real_driver;
  if (settings.runtime != runtime_choice::simulated) {
    auto real = open_cuda(settings.driver_path);
    if (real || settings.runtime == runtime_choice::cuda) return real;
    if (!detail::means_no_driver(real.code())) return real;
    no_real_driver = std::move(real).error();
  }
  WEIR_TRY_VALUE(machine, detail::simulated_machine(settings));
  WEIR_TRY_VALUE(opened, open_simulated(std::move(machine)));
  opened->description_.no_real_driver = std::move(no_real_driver);
  return std::move(opened);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<std::shared_ptr<runtime>> runtime::open_cuda(const std::string& path) try {
  WEIR_TRY_VALUE(loaded, driver::load(path.c_str()));
  std::shared_ptr<const driver::library> library = std::move(loaded);
  return open_table(library->calls, library->path, library);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<std::shared_ptr<runtime>> runtime::open_simulated(
    std::shared_ptr<sim::machine> machine) try {
  if (machine == nullptr) return errc::invalid_argument;
  sim::machine& opened = *machine;  // kept alive by the runtime, which every allocator keeps
  WEIR_TRY_VALUE(runtime, open_table(opened.driver(), "simulated", std::move(machine)));
  if (opened.options().check_hazards && opened.options().watch_blocks) {
    for (const auto& device : runtime->devices_)
      device->make_block_watch = [&opened] { return opened.watch_blocks(); };
  }
  return std::move(runtime);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<std::shared_ptr<runtime>> runtime::open_table(const driver::table& calls, std::string name,
                                                     std::shared_ptr<const void> keep_alive) try {
  using driver::call;
  using driver::check;
  detail::check_environment();
  WEIR_TRY(detail::watch_forks());
  std::shared_ptr<runtime> opened{new runtime};
  opened->calls_ = calls;
  opened->keep_alive_ = std::move(keep_alive);
  opened->description_.driver = std::move(name);
  WEIR_TRY_VALUE(missing, detail::missing_calls(calls));
  opened->description_.missing_calls = std::move(missing);

  WEIR_TRY(check(call::init, calls.init(0)));
  int version = 0;
  WEIR_TRY(check(call::driver_get_version, calls.driver_get_version(&version)));
  opened->description_.driver_version = version;
  int count = 0;
  WEIR_TRY(check(call::device_get_count, calls.device_get_count(&count)));
  if (count <= 0) return errc::no_device;

  WEIR_TRY_VALUE(number, detail::runtime_number::take());
  const auto generation = detail::fork_generation.load(std::memory_order_relaxed);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto& state = *opened->devices_.emplace_back(std::make_unique<detail::device_state>());
    state.owner = opened.get();
    state.calls = &opened->calls_;
    state.driver_version = version;
    state.generation = generation;
    state.runtime_tag = number;
    WEIR_TRY(detail::query_device(state, ordinal));
  }
  return opened;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

int runtime::device_count() const noexcept { return static_cast<int>(devices_.size()); }

result<weir::device> runtime::device(device_id id) const try {
  if (id.number() < 0 || id.number() >= device_count()) {
    return error{{.code = errc::no_device,
                  .detail = "device " + std::to_string(id.number()) + " of " +
                            std::to_string(device_count())}};
  }
  return devices_[static_cast<std::size_t>(id.number())]->handle();
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

const driver::table& runtime::driver() const noexcept { return calls_; }
int runtime::driver_version() const noexcept { return description_.driver_version; }
const runtime_description& runtime::describe() const noexcept { return description_; }

std::string to_string(const runtime_description& description) {
  std::string text = description.driver + ", CUDA " +
                     std::to_string(description.driver_version / 1000) + '.' +
                     std::to_string(description.driver_version % 1000 / 10);
  const char* separator = "; lacks ";
  for (const std::string_view call : description.missing_calls) {
    text.append(std::exchange(separator, ", ")).append(call);
  }
  if (description.no_real_driver) {
    text += "; no real driver: " + description.no_real_driver->message();
  }
  return text;
}

}}  // namespace weir::v0

// SPDX-License-Identifier: Apache-2.0
// A library that the loader takes for libcuda, with a simulated machine inside. The environment
// says what kind of driver it is:
//
// - FAKE_VERSION: what cuDriverGetVersion says, and up to which calls are there (13000 is 13.0)
// - FAKE_DEVICES: how many devices the machine has
// - FAKE_PLAIN: set, they can do nothing but plain memory
// - FAKE_ATTRIBUTE: one attribute, by its number, that reads as 0
// - FAKE_LACKS: a call that is not there
// - FAKE_REFUSES: a call that fails the first time, with CUDA_ERROR_NOT_PERMITTED
// - FAKE_THROWS: what it throws when it is asked for an attribute, which no driver does
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace {

std::string_view text(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? value : "";
}

int number(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? std::atoi(value) : otherwise;
}

/// Complains at the end of the process, when whoever used the driver should have tidied up.
struct inspected_machine {
  std::shared_ptr<weir::sim::machine> machine;

  ~inspected_machine() {
    const int devices = static_cast<int>(machine->options().devices.size());
    for (int device = 0; device < devices; ++device) {
      const weir::bytes leaked = machine->used(weir::device_id{device});
      if (leaked.count() == 0) continue;
      std::fprintf(stderr, "device %d: %s left behind\n", device, to_string(leaked).c_str());
    }
    for (const auto& hazard : machine->hazards()) {
      std::fprintf(stderr, "%s\n", hazard.message().c_str());
    }
  }
};

std::shared_ptr<weir::sim::machine> make_machine() {
  weir::sim::device_spec spec;
  if (!text("FAKE_PLAIN").empty()) {
    spec.virtual_memory = spec.memory_pools = spec.managed_memory = false;
    spec.concurrent_managed_access = spec.posix_handles = false;
  }
  weir::sim::machine_options options;
  options.devices.assign(static_cast<std::size_t>(number("FAKE_DEVICES", 1)), spec);
  options.driver_version = number("FAKE_VERSION", options.driver_version);
  auto machine = weir::sim::machine::create(options).value();
  for (std::size_t i = 0; i < weir::driver::call_count; ++i) {
    const auto refused = static_cast<weir::driver::call>(i);
    if (weir::driver::info(refused).symbol != text("FAKE_REFUSES")) continue;
    machine->fail(refused, 1, weir::driver::CUDA_ERROR_NOT_PERMITTED);
  }
  return machine;
}

const weir::sim::machine& the_machine() {
  static const inspected_machine here{make_machine()};
  return *here.machine;
}

weir::driver::CUresult attribute_as_told(int* value, weir::driver::CUdevice_attribute attribute,
                                         weir::driver::CUdevice device) {
  if (const auto reason = text("FAKE_THROWS"); !reason.empty())
    throw std::runtime_error{std::string{reason}};
  const auto status = the_machine().driver().device_get_attribute(value, attribute, device);
  if (static_cast<int>(attribute) == number("FAKE_ATTRIBUTE", 0)) *value = 0;
  return status;
}

/// The newest signature of `symbol` that is not newer than `version`, as the driver does it.
void* find(std::string_view symbol, int version) {
  const weir::driver::table& calls = the_machine().driver();
  void* best = nullptr;
  int best_version = -1;
  const auto offer = [&](std::string_view name, int since, void* function) {
    if (name != symbol || since > version || since < best_version) return;
    best = function;
    best_version = since;
  };
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  offer(#symbol, version, reinterpret_cast<void*>(calls.member));
#include "weir/driver/calls.def"
  if (symbol == "cuDeviceGetAttribute") best = reinterpret_cast<void*>(&attribute_as_told);
  return symbol == text("FAKE_LACKS") ? nullptr : best;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(
    const char* symbol, void** function, int version, std::uint64_t /*flags*/, int* status) {
  *function = nullptr;
  // No driver knows the future: CUDA_ERROR_INVALID_VALUE.
  if (version > the_machine().options().driver_version) return 1;
  *function = find(symbol, version);
  *status = *function != nullptr ? 0 : 1;  // found, or no such symbol
  return 0;
}

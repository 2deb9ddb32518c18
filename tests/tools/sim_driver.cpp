// A library that the loader takes for libcuda, with a simulated machine inside. Built several
// times:
//
//   VERSION  what cuDriverGetVersion says, and up to which the calls are there (13000 is CUDA 13.0)
//   DEVICES  how many devices the machine has
//   PLAIN    whether they can do nothing but plain memory
//   LACKS    a call that is not there
//   REFUSES  a call that fails once, with CUDA_ERROR_NOT_PERMITTED
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>

#include "weir/driver.hpp"
#include "weir/sim.hpp"

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef PLAIN
#define PLAIN 0
#endif
#ifndef LACKS
#define LACKS ""
#endif

namespace {

/// Complains at the end of the process, when whoever used the driver should have tidied up.
struct inspected_machine {
  std::shared_ptr<weir::sim::machine> machine;

  ~inspected_machine() {
    for (int device = 0; device < DEVICES; ++device) {
      const weir::bytes left = machine->used(weir::device_id{device});
      if (left.count() == 0) continue;
      std::fprintf(stderr, "device %d: %s left behind\n", device, to_string(left).c_str());
    }
    for (const auto& found : machine->hazards())
      std::fprintf(stderr, "%s\n", found.story().c_str());
  }
};

std::shared_ptr<weir::sim::machine> make_machine() {
  weir::sim::device_spec spec;
  if (PLAIN != 0) {
    spec.virtual_memory = spec.memory_pools = spec.managed_memory = false;
    spec.concurrent_managed_access = spec.posix_handles = false;
  }
  weir::sim::machine_options options;
  options.devices.assign(DEVICES, spec);
  options.driver_version = VERSION;
  auto machine = weir::sim::machine::create(options).value();
#ifdef REFUSES
  machine->fail(weir::driver::call::REFUSES, 1, weir::driver::CUDA_ERROR_NOT_PERMITTED);
#endif
  return machine;
}

/// The newest signature of `symbol` that is not newer than `version`, as the driver does it.
void* find(std::string_view symbol, int version) {
  static const inspected_machine here{make_machine()};
  const weir::driver::table& calls = here.machine->driver();
  void* best = nullptr;
  int best_version = -1;
  const auto offer = [&](std::string_view name, int since, void* function) {
    if (name != symbol || since > version || since < best_version) return;
    best = function;
    best_version = since;
  };
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  offer(#symbol, version, reinterpret_cast<void*>(calls.member));
#include "weir/driver_calls.def"
  return symbol == LACKS ? nullptr : best;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(
    const char* symbol, void** function, int version, std::uint64_t /*flags*/, int* status) {
  *function = nullptr;
  if (version > VERSION) return 1;  // no driver knows the future: CUDA_ERROR_INVALID_VALUE
  *function = find(symbol, version);
  *status = *function != nullptr ? 0 : 1;  // found, or no such symbol
  return 0;
}

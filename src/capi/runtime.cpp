// The C ABI's runtimes and devices.
#include "weir/device/runtime.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"

namespace weir::inline v0::capi {

result<device_argument> find_device(weir_runtime* handle, std::int32_t number) {
  WEIR_TRY_VALUE(found, find(handle));
  WEIR_TRY_VALUE(which, found->machine->device(device_id{number}));
  return device_argument{found->machine, which};
}

result<options> read_options(options settings, const char* list) {
  if (list != nullptr) WEIR_TRY(set_all(settings, list));
  return settings;
}

namespace {

result<void> open_runtime(const options& initial, const char* list, weir_runtime** into) {
  if (into == nullptr) return missing("runtime");
  WEIR_TRY_VALUE(settings, read_options(initial, list));
  WEIR_TRY_VALUE(opened, runtime::open(settings));
  auto object = std::make_shared<runtime_object>();
  object->machine = std::move(opened);
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_runtime>(std::move(object)));
  *into = handle;
  return {};
}

std::uint32_t features_of(const device& which) {
  const device_capabilities& can = which.capabilities();
  std::uint32_t bits = 0;
  const auto add = [&](bool has, std::uint32_t bit) { bits |= has ? bit : 0; };
  add(can.unified_addressing, weir_device_unified_addressing);
  add(can.virtual_memory, weir_device_virtual_memory);
  add(can.memory_pools, weir_device_memory_pools);
  add(can.managed_memory, weir_device_managed_memory);
  add(can.concurrent_managed_access, weir_device_concurrent_managed_access);
  add(can.posix_descriptors, weir_device_posix_descriptors);
  add(can.fabric_handles, weir_device_fabric_handles);
  add(can.rdma, weir_device_rdma);
  add(which.uuid().has_value(), weir_device_has_uuid);
  return bits;
}

}  // namespace
}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_runtime_open(const char* list, weir_runtime** into) {
  return guarded([&] { return open_runtime({}, list, into); });
}

weir_error weir_runtime_open_from_environment(const char* list, weir_runtime** into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(settings, options_from_environment());
    return open_runtime(settings, list, into);
  });
}

weir_error weir_runtime_close(weir_runtime* handle) {
  return guarded([&]() -> result<void> {
    if (handle == nullptr) return {};
    WEIR_TRY_VALUE(found, find(handle));
    if (found->permanent)
      return error{.code = errc::not_permitted, .detail = "this runtime is the process's own"};
    WEIR_TRY(take(handle));
    return {};
  });
}

weir_error weir_runtime_get_info(weir_runtime* handle, weir_runtime_info* into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find(handle));
    weir_runtime_info known{};
    known.driver_version = found->machine->driver_version();
    known.device_count = found->machine->device_count();
    copy_text(known.driver, found->machine->describe().driver);
    return hand_out(known, into);
  });
}

weir_error weir_device_get_info(weir_runtime* handle, int32_t number, weir_device_info* into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_device(handle, number));
    const device& which = found.which;
    weir_device_info known{};
    known.features = features_of(which);
    known.total_memory = which.total_memory().count();
    known.granularity = which.capabilities().granularity.count();
    known.compute_major = which.capabilities().compute_major;
    known.compute_minor = which.capabilities().compute_minor;
    known.multiprocessors = which.capabilities().multiprocessors;
    copy_text(known.name, which.name());
    copy_text(known.pci_bus_id, which.pci_bus_id());
    if (which.uuid()) std::copy(which.uuid()->begin(), which.uuid()->end(), known.uuid);
    return hand_out(known, into);
  });
}

weir_error weir_device_get_memory(weir_runtime* handle, int32_t number, uint64_t* free,
                                  uint64_t* total) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_device(handle, number));
    WEIR_TRY_VALUE(memory, found.which.memory_info());
    if (free != nullptr) *free = memory.free.count();
    if (total != nullptr) *total = memory.total.count();
    return {};
  });
}

weir_error weir_device_synchronize(weir_runtime* handle, int32_t number) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, find_device(handle, number));
    return found.which.synchronize();
  });
}
}

// SPDX-License-Identifier: Apache-2.0
// The C ABI's runtimes and devices.
#include "weir/device/runtime.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/environment.hpp"
#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"

namespace weir { inline namespace v0 { namespace capi {

result<device_argument> find_device(weir_runtime* handle, std::int32_t number) {
  WEIR_TRY_VALUE(object, find(handle));
  WEIR_TRY_VALUE(device, object->machine->device(device_id{number}));
  return device_argument{object->machine, device};
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

std::uint32_t features_of(const device& described) {
  const device_capabilities& can = described.capabilities();
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
  add(described.uuid().has_value(), weir_device_has_uuid);
  return bits;
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_runtime_open(const char* list, weir_runtime** into) {
  return guarded([&] { return open_runtime(detail::environment_defaults(), list, into); });
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
    WEIR_TRY_VALUE(object, find(handle));
    if (object->permanent)
      return error{{.code = errc::not_permitted,
                    .detail = "the process's default runtime cannot be closed"}};
    WEIR_TRY(take(handle));
    return {};
  });
}

weir_error weir_runtime_get_info(weir_runtime* handle, weir_runtime_info* into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(handle));
    weir_runtime_info known{};
    known.driver_version = object->machine->driver_version();
    known.device_count = object->machine->device_count();
    copy_text(known.driver, object->machine->describe().driver);
    return hand_out(known, into);
  });
}

weir_error weir_device_get_info(weir_runtime* handle, int32_t number, weir_device_info* into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, find_device(handle, number));
    const device& described = home.device;
    weir_device_info known{};
    known.features = features_of(described);
    known.total_memory = described.total_memory().count();
    known.granularity = described.capabilities().granularity.count();
    known.compute_major = described.capabilities().compute_major;
    known.compute_minor = described.capabilities().compute_minor;
    known.multiprocessors = described.capabilities().multiprocessors;
    copy_text(known.name, described.name());
    copy_text(known.pci_bus_id, described.pci_bus_id());
    if (described.uuid()) std::copy(described.uuid()->begin(), described.uuid()->end(), known.uuid);
    return hand_out(known, into);
  });
}

weir_error weir_device_get_memory(weir_runtime* handle, int32_t number, uint64_t* free,
                                  uint64_t* total) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, find_device(handle, number));
    WEIR_TRY_VALUE(memory, home.device.memory_info());
    if (free != nullptr) *free = memory.free.count();
    if (total != nullptr) *total = memory.total.count();
    return {};
  });
}

weir_error weir_device_get_stream_priorities(weir_runtime* handle, int32_t number, int32_t* least,
                                             int32_t* greatest) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, find_device(handle, number));
    WEIR_TRY_VALUE(range, home.device.stream_priorities());
    if (least != nullptr) *least = range.least;
    if (greatest != nullptr) *greatest = range.greatest;
    return {};
  });
}

weir_error weir_device_can_access_peer(weir_runtime* handle, int32_t number, int32_t other,
                                       int32_t* can_access) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, find_device(handle, number));
    WEIR_TRY_VALUE(peer, find_device(handle, other));
    WEIR_NEEDS(can_access);
    WEIR_TRY_VALUE(reaches, home.device.can_access_peer(peer.device));
    *can_access = reaches ? 1 : 0;
    return {};
  });
}

weir_error weir_device_set_peer_access(weir_runtime* handle, int32_t number, int32_t other,
                                       int32_t enabled) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, find_device(handle, number));
    WEIR_TRY_VALUE(peer, find_device(handle, other));
    return enabled != 0 ? home.device.enable_peer_access(peer.device)
                        : home.device.disable_peer_access(peer.device);
  });
}

weir_error weir_device_synchronize(weir_runtime* handle, int32_t number) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(home, find_device(handle, number));
    return home.device.synchronize();
  });
}
}

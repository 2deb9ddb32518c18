// The C ABI's runtimes and devices.
#include "weir/runtime.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "capi/guard.hpp"
#include "weir.h"

namespace weir::inline v0::capi {
namespace {

// The open runtimes by handle. A handle is a number that is never used twice, dressed as a pointer:
// a stale one can be told from a live one, which an address cannot.
class open_runtimes {
 public:
  weir_runtime* add(std::shared_ptr<runtime> opened) {
    const std::lock_guard lock{mutex_};
    runtimes_.emplace(next_, std::move(opened));
    return reinterpret_cast<weir_runtime*>(next_++);
  }

  // Shared, so that a runtime outlives the call that uses it even if it is closed meanwhile.
  result<std::shared_ptr<runtime>> find(const weir_runtime* handle) {
    const std::lock_guard lock{mutex_};
    const auto found = runtimes_.find(number_of(handle));
    if (found == runtimes_.end()) return unknown(number_of(handle));
    return found->second;
  }

  result<std::shared_ptr<runtime>> remove(const weir_runtime* handle) {
    const std::lock_guard lock{mutex_};
    auto taken = runtimes_.extract(number_of(handle));
    if (taken.empty()) return unknown(number_of(handle));
    return std::move(taken.mapped());
  }

 private:
  static std::uintptr_t number_of(const weir_runtime* handle) {
    return reinterpret_cast<std::uintptr_t>(handle);
  }
  [[nodiscard]] error unknown(std::uintptr_t number) const {
    if (number != 0 && number < next_)
      return {.code = errc::already_freed, .detail = "the runtime was closed"};
    return {.code = errc::invalid_argument, .detail = "this is no runtime"};
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<runtime>> runtimes_;
  std::uintptr_t next_ = 1;
};

// Never destroyed: other threads, and destructors of static objects, may still call at exit.
open_runtimes& registry() {
  static open_runtimes* const all = new open_runtimes;
  return *all;
}

error missing(const char* what) {
  return {.code = errc::invalid_argument, .detail = std::string{what} + " is null"};
}

result<void> open(options settings, const char* list, weir_runtime** into) {
  if (into == nullptr) return missing("runtime");
  if (list != nullptr) WEIR_TRY(set_all(settings, list));
  WEIR_TRY_VALUE(opened, runtime::open(settings));
  *into = registry().add(std::move(opened));
  return {};
}

template <std::size_t Size>
void copy_text(char (&into)[Size], std::string_view text) {
  const std::size_t length = std::min(text.size(), Size - 1);
  std::memcpy(into, text.data(), length);
  into[length] = '\0';
}

// Hands `known` to a caller whose structure may be older (shorter) or newer (longer) than ours.
// What this library does not know is zero; struct_size comes back as what it does know.
template <class Info>
result<void> hand_out(Info known, Info* into) {
  const std::size_t asked = into->struct_size;
  if (asked < sizeof(Info)) {
    return error{.code = errc::bad_version,
                 .detail = "struct_size is " + std::to_string(asked) + ", the first version has " +
                           std::to_string(sizeof(Info))};
  }
  known.struct_size = sizeof(Info);
  auto* const to = reinterpret_cast<std::byte*>(into);
  std::memcpy(to, &known, sizeof(Info));
  std::memset(to + sizeof(Info), 0, asked - sizeof(Info));
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
  return guarded([&] { return capi::open({}, list, into); });
}

weir_error weir_runtime_open_from_environment(const char* list, weir_runtime** into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(settings, options_from_environment());
    return capi::open(settings, list, into);
  });
}

weir_error weir_runtime_close(weir_runtime* handle) {
  return guarded([&]() -> result<void> {
    if (handle == nullptr) return {};
    WEIR_TRY(registry().remove(handle));
    return {};
  });
}

weir_error weir_runtime_get_info(weir_runtime* handle, weir_runtime_info* into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, registry().find(handle));
    if (into == nullptr) return missing("info");
    weir_runtime_info known{};
    known.driver_version = found->driver_version();
    known.device_count = found->device_count();
    copy_text(known.driver, found->describe().driver);
    return hand_out(known, into);
  });
}

weir_error weir_device_get_info(weir_runtime* handle, int32_t number, weir_device_info* into) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(found, registry().find(handle));
    if (into == nullptr) return missing("info");
    WEIR_TRY_VALUE(which, found->device(device_id{number}));
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
    WEIR_TRY_VALUE(found, registry().find(handle));
    WEIR_TRY_VALUE(which, found->device(device_id{number}));
    WEIR_TRY_VALUE(memory, which.memory_info());
    if (free != nullptr) *free = memory.free.count();
    if (total != nullptr) *total = memory.total.count();
    return {};
  });
}
}

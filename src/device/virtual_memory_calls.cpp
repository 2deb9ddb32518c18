// SPDX-License-Identifier: Apache-2.0
// Virtual memory without ownership: the driver's rules, checked before the driver sees a call.
#include "weir/device/virtual_memory.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "device/state.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 {

using detail::device_state;
using driver::call;
using driver::check;

namespace {

result<bytes> unit_of(device owner) {
  const bytes unit = owner.capabilities().granularity;
  if (unit == bytes{}) {
    return error{{.code = errc::not_supported,
                  .detail = "the device does not support virtual memory management"}};
  }
  return unit;
}

result<void> check_size(device owner, bytes size) {
  WEIR_TRY_VALUE(unit, unit_of(owner));
  if (size != bytes{} && size % unit == bytes{}) return {};
  return error{{.code = errc::invalid_argument,
                .requested = size,
                .detail = "size must be a multiple of the granularity, " + to_string(unit)}};
}

result<void> check_range(device owner, device_address address, bytes size) {
  WEIR_TRY(check_size(owner, size));
  if (address == 0) return error{{.code = errc::invalid_argument, .detail = "the address is null"}};
  const bytes unit = owner.capabilities().granularity;
  if (address % unit.count() != 0) {
    return error{
        {.code = errc::bad_alignment,
         .detail = "the address must be a multiple of the granularity, " + to_string(unit)}};
  }
  if (!checked_add(std::uint64_t{address}, size.count())) {
    return error{{.code = errc::size_overflow, .requested = size}};
  }
  return {};
}

result<bytes> round_up(bytes size, bytes unit) {
  if (size == bytes{}) return errc::invalid_argument;
  const auto rounded = checked_round_up(size, unit);
  if (!rounded) return error{{.code = errc::size_overflow, .requested = size}};
  return *rounded;
}

result<void> check_properties(const device_capabilities& capabilities,
                              const physical_properties& properties) {
  const auto lacks = [](const char* property) {
    return error{{.code = errc::not_supported,
                  .detail = std::string{"the device does not support handles with "} + property}};
  };
  if (properties.posix_descriptor && !capabilities.posix_descriptors)
    return lacks("posix_descriptor");
  if (properties.fabric) {
    return error{
        {.code = errc::not_supported,
         .detail = "fabric handles cannot be exported or imported yet; use posix_descriptor"}};
  }
  if (properties.rdma && !capabilities.rdma_with_virtual_memory) return lacks("rdma");
  return {};
}

}  // namespace

std::string to_string(const physical_properties& properties) {
  std::string names;
  const auto add = [&](bool is_set, const char* name) {
    if (is_set) names.append(names.empty() ? "" : ", ").append(name);
  };
  add(properties.posix_descriptor, "posix_descriptor");
  add(properties.fabric, "fabric");
  add(properties.rdma, "rdma");
  return names.empty() ? "none" : names;
}

std::string to_string(access_rights rights) {
  switch (rights) {
    case access_rights::none:
      return "none";
    case access_rights::read:
      return "read";
    case access_rights::read_write:
      return "read_write";
  }
  return "unknown";
}

result<bytes> round_to_granularity(device owner, bytes size) {
  WEIR_TRY_VALUE(unit, unit_of(owner));
  return round_up(size, unit);
}

result<bytes> round_to_recommended(device owner, bytes size) {
  WEIR_TRY(unit_of(owner));
  return round_up(size, owner.capabilities().recommended_granularity);
}

namespace vmm {

access access_for(device accessor, access_rights rights) noexcept {
  auto flags = driver::CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (rights == access_rights::read) flags = driver::CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (rights == access_rights::read_write) flags = driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return {{driver::CU_MEM_LOCATION_TYPE_DEVICE, device_state::of(accessor).native}, flags};
}

result<device_address> reserve(const context_scope& scope, bytes size, bytes alignment,
                               device_address hint) {
  if (!scope) return scope.error();
  WEIR_TRY(check_size(scope.device(), size));
  if (alignment != bytes{} && !is_power_of_two(alignment.count())) {
    return error{
        {.code = errc::bad_alignment,
         .detail = "alignment must be a power of two, got " + std::to_string(alignment.count())}};
  }
  const bytes unit = std::max(alignment, scope.device().capabilities().granularity);
  if (hint % unit.count() != 0) {
    return error{{.code = errc::bad_alignment,
                  .detail = "the address hint must be a multiple of the alignment"}};
  }
  device_address base = 0;
  WEIR_TRY(check(call::mem_address_reserve,
                 scope.driver().mem_address_reserve(&base, size.count(), unit.count(), hint, 0),
                 size));
  return base;
}

result<void> free(const context_scope& scope, device_address base, bytes size) {
  if (!scope) return scope.error();
  WEIR_TRY(check_range(scope.device(), base, size));
  return check(call::mem_address_free, scope.driver().mem_address_free(base, size.count()), size);
}

result<physical> create(const context_scope& scope, bytes size, physical_properties properties) {
  if (!scope) return scope.error();
  WEIR_TRY(check_size(scope.device(), size));
  WEIR_TRY(check_properties(scope.device().capabilities(), properties));
  int types = driver::CU_MEM_HANDLE_TYPE_NONE;
  if (properties.posix_descriptor) types |= driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (properties.fabric) types |= driver::CU_MEM_HANDLE_TYPE_FABRIC;
  driver::CUmemAllocationProp request{};
  request.type = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  request.requestedHandleTypes = static_cast<driver::CUmemAllocationHandleType>(types);
  request.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, device_state::of(scope.device()).native};
  request.allocFlags.gpuDirectRDMACapable = properties.rdma ? 1 : 0;
  physical created{.size = size};
  WEIR_TRY(check(call::mem_create,
                 scope.driver().mem_create(&created.handle, size.count(), &request, 0), size));
  return created;
}

result<void> release(const context_scope& scope, const physical& memory) {
  if (!scope) return scope.error();
  return check(call::mem_release, scope.driver().mem_release(memory.handle), memory.size);
}

result<void> map(const context_scope& scope, device_address address, const physical& memory) {
  return map(scope, address, std::span{&memory, 1});
}

result<void> map(const context_scope& scope, device_address address,
                 std::span<const physical> memory) {
  if (!scope) return scope.error();
  if (memory.empty()) return errc::invalid_argument;
  bytes total{};
  for (const auto& each : memory) {
    WEIR_TRY(check_size(scope.device(), each.size));
    const auto sum = checked_add(total, each.size);
    if (!sum) return errc::size_overflow;
    total = *sum;
  }
  WEIR_TRY(check_range(scope.device(), address, total));

  bytes mapped{};
  for (const auto& each : memory) {
    const auto native =
        scope.driver().mem_map(address + mapped.count(), each.size.count(), 0, each.handle, 0);
    if (native != driver::CUDA_SUCCESS) {
      if (mapped != bytes{}) detail::report_failure(unmap(scope, address, mapped));
      return driver::make_error(call::mem_map, native, each.size);
    }
    mapped += each.size;
  }
  return {};
}

result<void> unmap(const context_scope& scope, device_address address, bytes size) {
  if (!scope) return scope.error();
  WEIR_TRY(check_range(scope.device(), address, size));
  return check(call::mem_unmap, scope.driver().mem_unmap(address, size.count()), size);
}

result<void> set_access(const context_scope& scope, device_address address, bytes size,
                        std::span<const access> rights) {
  if (!scope) return scope.error();
  WEIR_TRY(check_range(scope.device(), address, size));
  if (rights.empty()) return errc::invalid_argument;
  return check(call::mem_set_access,
               scope.driver().mem_set_access(address, size.count(), rights.data(), rights.size()),
               size);
}

result<descriptor> export_descriptor(const context_scope& scope, const physical& memory) {
  if (!scope) return scope.error();
  int number = -1;
  WEIR_TRY(check(call::mem_export_to_shareable_handle,
                 scope.driver().mem_export_to_shareable_handle(
                     &number, memory.handle, driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                 memory.size));
  return descriptor{number};
}

result<physical> import_descriptor(const context_scope& scope, int number, bytes size) {
  if (!scope) return scope.error();
  WEIR_TRY(check_size(scope.device(), size));
  if (number < 0) {
    return error{
        {.code = errc::invalid_argument, .detail = "descriptor " + std::to_string(number)}};
  }
  // The driver takes the number itself in place of a pointer.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* shareable = reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
  physical imported{.size = size};
  WEIR_TRY(check(call::mem_import_from_shareable_handle,
                 scope.driver().mem_import_from_shareable_handle(
                     &imported.handle, shareable, driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                 size));
  return imported;
}

}  // namespace vmm

result<device_address> allocate_plain(const context_scope& scope, bytes size) {
  if (!scope) return scope.error();
  if (size == bytes{}) return errc::invalid_argument;
  device_address address = 0;
  WEIR_TRY(check(call::mem_alloc, scope.driver().mem_alloc(&address, size.count()), size));
  return address;
}

result<void> free_plain(const context_scope& scope, device_address address) {
  if (!scope) return scope.error();
  if (address == 0) return {};
  return check(call::mem_free, scope.driver().mem_free(address));
}

}}  // namespace weir::v0

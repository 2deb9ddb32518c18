// Virtual memory without ownership: the driver's rules, checked before the driver sees a call.
#include "weir/device/virtual_memory.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "device/state.hpp"
#include "weir/base/checked.hpp"

namespace weir::inline v0 {

using detail::device_state;
using driver::call;
using driver::check;

namespace {

result<bytes> unit_of(device where) {
  const bytes unit = where.capabilities().granularity;
  if (unit == bytes{}) {
    return error{.code = errc::not_supported, .detail = "the device has no virtual memory"};
  }
  return unit;
}

result<void> check_size(device where, bytes size) {
  WEIR_TRY_VALUE(unit, unit_of(where));
  if (size != bytes{} && size % unit == bytes{}) return {};
  return error{.code = errc::invalid_argument,
               .requested = size,
               .detail = "not a multiple of the granularity, " + to_string(unit)};
}

result<void> check_range(device where, device_address address, bytes size) {
  WEIR_TRY(check_size(where, size));
  if (address == 0) return error{.code = errc::invalid_argument, .detail = "a null address"};
  const bytes unit = where.capabilities().granularity;
  if (address % unit.count() != 0) {
    return error{.code = errc::bad_alignment,
                 .detail = "the address is no multiple of the granularity, " + to_string(unit)};
  }
  if (!checked_add(std::uint64_t{address}, size.count())) {
    return error{.code = errc::size_overflow, .requested = size};
  }
  return {};
}

result<bytes> round_up(bytes size, bytes unit) {
  if (size == bytes{}) return errc::invalid_argument;
  const auto rounded = checked_round_up(size, unit);
  if (!rounded) return error{.code = errc::size_overflow, .requested = size};
  return *rounded;
}

result<void> check_properties(const device_capabilities& can, const physical_properties& wanted) {
  const auto lacks = [](const char* what) {
    return error{.code = errc::not_supported,
                 .detail = std::string{"the device's handles cannot have: "} + what};
  };
  if (wanted.posix_descriptor && !can.posix_descriptors) return lacks("posix_descriptor");
  if (wanted.fabric && !can.fabric_handles) return lacks("fabric");
  if (wanted.rdma && !can.rdma_with_virtual_memory) return lacks("rdma");
  return {};
}

}  // namespace

result<bytes> round_to_granularity(device where, bytes size) {
  WEIR_TRY_VALUE(unit, unit_of(where));
  return round_up(size, unit);
}

result<bytes> round_to_recommended(device where, bytes size) {
  WEIR_TRY(unit_of(where));
  return round_up(size, where.capabilities().recommended_granularity);
}

namespace vmm {

access access_for(device who, access_rights rights) noexcept {
  auto flags = driver::CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (rights == access_rights::read) flags = driver::CU_MEM_ACCESS_FLAGS_PROT_READ;
  if (rights == access_rights::read_write) flags = driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return {{driver::CU_MEM_LOCATION_TYPE_DEVICE, device_state::of(who).native}, flags};
}

result<device_address> reserve(const context_scope& bound, bytes size, bytes alignment,
                               device_address hint) {
  if (!bound) return bound.error();
  WEIR_TRY(check_size(bound.device(), size));
  if (alignment != bytes{} && !is_power_of_two(alignment.count())) {
    return error{.code = errc::bad_alignment,
                 .detail = std::to_string(alignment.count()) + " is no power of two"};
  }
  const bytes unit = std::max(alignment, bound.device().capabilities().granularity);
  if (hint % unit.count() != 0) {
    return error{.code = errc::bad_alignment, .detail = "the hint is not aligned"};
  }
  device_address base = 0;
  WEIR_TRY(check(call::mem_address_reserve,
                 bound.driver().mem_address_reserve(&base, size.count(), unit.count(), hint, 0),
                 size));
  return base;
}

result<void> free(const context_scope& bound, device_address base, bytes size) {
  if (!bound) return bound.error();
  WEIR_TRY(check_range(bound.device(), base, size));
  return check(call::mem_address_free, bound.driver().mem_address_free(base, size.count()), size);
}

result<physical> create(const context_scope& bound, bytes size, physical_properties properties) {
  if (!bound) return bound.error();
  WEIR_TRY(check_size(bound.device(), size));
  WEIR_TRY(check_properties(bound.device().capabilities(), properties));
  int types = driver::CU_MEM_HANDLE_TYPE_NONE;
  if (properties.posix_descriptor) types |= driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (properties.fabric) types |= driver::CU_MEM_HANDLE_TYPE_FABRIC;
  driver::CUmemAllocationProp wanted{};
  wanted.type = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = static_cast<driver::CUmemAllocationHandleType>(types);
  wanted.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, device_state::of(bound.device()).native};
  wanted.allocFlags.gpuDirectRDMACapable = properties.rdma ? 1 : 0;
  physical created{.size = size};
  WEIR_TRY(check(call::mem_create,
                 bound.driver().mem_create(&created.handle, size.count(), &wanted, 0), size));
  return created;
}

result<void> release(const context_scope& bound, const physical& memory) {
  if (!bound) return bound.error();
  return check(call::mem_release, bound.driver().mem_release(memory.handle), memory.size);
}

result<void> map(const context_scope& bound, device_address where, const physical& memory) {
  return map(bound, where, std::span{&memory, 1});
}

result<void> map(const context_scope& bound, device_address where,
                 std::span<const physical> memory) {
  if (!bound) return bound.error();
  if (memory.empty()) return errc::invalid_argument;
  bytes whole{};
  for (const auto& each : memory) {
    WEIR_TRY(check_size(bound.device(), each.size));
    const auto sum = checked_add(whole, each.size);
    if (!sum) return errc::size_overflow;
    whole = *sum;
  }
  WEIR_TRY(check_range(bound.device(), where, whole));

  bytes mapped{};
  for (const auto& each : memory) {
    const auto native =
        bound.driver().mem_map(where + mapped.count(), each.size.count(), 0, each.handle, 0);
    if (native != driver::CUDA_SUCCESS) {
      if (mapped != bytes{}) detail::report_failure(unmap(bound, where, mapped));
      return driver::make_error(call::mem_map, native, each.size);
    }
    mapped += each.size;
  }
  return {};
}

result<void> unmap(const context_scope& bound, device_address where, bytes size) {
  if (!bound) return bound.error();
  WEIR_TRY(check_range(bound.device(), where, size));
  return check(call::mem_unmap, bound.driver().mem_unmap(where, size.count()), size);
}

result<void> set_access(const context_scope& bound, device_address where, bytes size,
                        std::span<const access> rights) {
  if (!bound) return bound.error();
  WEIR_TRY(check_range(bound.device(), where, size));
  if (rights.empty()) return errc::invalid_argument;
  return check(call::mem_set_access,
               bound.driver().mem_set_access(where, size.count(), rights.data(), rights.size()),
               size);
}

result<descriptor> export_descriptor(const context_scope& bound, const physical& memory) {
  if (!bound) return bound.error();
  int number = -1;
  WEIR_TRY(check(call::mem_export_to_shareable_handle,
                 bound.driver().mem_export_to_shareable_handle(
                     &number, memory.handle, driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                 memory.size));
  return descriptor{number};
}

result<physical> import_descriptor(const context_scope& bound, int number, bytes size) {
  if (!bound) return bound.error();
  WEIR_TRY(check_size(bound.device(), size));
  if (number < 0) {
    return error{.code = errc::invalid_argument, .detail = "descriptor " + std::to_string(number)};
  }
  // The driver takes the number itself in place of a pointer.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* shareable = reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
  physical imported{.size = size};
  WEIR_TRY(check(call::mem_import_from_shareable_handle,
                 bound.driver().mem_import_from_shareable_handle(
                     &imported.handle, shareable, driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                 size));
  return imported;
}

}  // namespace vmm

result<device_address> allocate_plain(const context_scope& bound, bytes size) {
  if (!bound) return bound.error();
  if (size == bytes{}) return errc::invalid_argument;
  device_address address = 0;
  WEIR_TRY(check(call::mem_alloc, bound.driver().mem_alloc(&address, size.count()), size));
  return address;
}

result<void> free_plain(const context_scope& bound, device_address address) {
  if (!bound) return bound.error();
  if (address == 0) return {};
  return check(call::mem_free, bound.driver().mem_free(address));
}

}  // namespace weir::inline v0

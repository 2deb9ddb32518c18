// SPDX-License-Identifier: Apache-2.0
// Driver calls: pinned host memory, allocated or registered.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "sim/state.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// Whether [from, end) is mapped by the process and can be read (and written): a device cannot be
/// given what the host does not have.
bool host_has(std::uint64_t from, std::uint64_t end, bool write) {
  std::ifstream maps{"/proc/self/maps"};
  if (!maps) return true;  // no way to tell
  std::string line;
  while (from < end && std::getline(maps, line)) {
    unsigned long long low = 0;
    unsigned long long high = 0;
    char read_right = 0;
    char write_right = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %c%c", &low, &high, &read_right, &write_right) != 4) {
      continue;
    }
    if (high <= from) continue;
    if (low > from || read_right != 'r' || (write && write_right != 'w')) return false;
    from = high;
  }
  return from >= end;
}

/// Host memory is every device's: all of them may be using it.
CUresult wait_for_all(state& machine) {
  for (int device = 0; machine.valid_device(device); ++device) {
    const CUresult failure = machine.flow.synchronize_device(device, machine.lock());
    if (failure != CUDA_SUCCESS) return failure;
    machine.after_synchronize(device);
  }
  return CUDA_SUCCESS;
}

/// Waits and then takes a region of `kind` that starts at `address` away.
CUresult take_away(state& machine, std::uint64_t address, memory_kind kind, const char* call) {
  const auto find_area = [&]() -> region* {
    region* const area = machine.space.find(address);
    return area != nullptr && area->base == address && area->kind == kind ? area : nullptr;
  };
  const region* const area = find_area();
  if (area == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t id = area->id;
  if (const CUresult failure = wait_for_all(machine); failure != CUDA_SUCCESS) return failure;
  region* const current = find_area();
  if (current == nullptr || current->id != id) return CUDA_ERROR_INVALID_VALUE;
  machine.charge(1, current->size);
  machine.space.release(*current, call);
  return CUDA_SUCCESS;
}

/// Whether so much more would pass what the system lets programs pin.
bool passes_limit(const state& machine, std::uint64_t size) {
  if (machine.pinnable == ~std::uint64_t{0}) return false;
  const std::uint64_t pinned = machine.space.pinned_bytes();
  return size > machine.pinnable - std::min(machine.pinnable, pinned);
}

bool is_pinned(const region* area) {
  return area != nullptr &&
         (area->kind == memory_kind::pinned || area->kind == memory_kind::registered);
}

}  // namespace

CUresult state::mem_host_alloc(void** pointer, std::size_t bytes, unsigned flags) {
  constexpr unsigned known =
      host_alloc_portable | host_alloc_device_map | host_alloc_write_combined;
  if (pointer == nullptr || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  if (bytes == 0) {
    *pointer = nullptr;
    return CUDA_SUCCESS;
  }
  if (passes_limit(*this, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  // With unified addresses all pinned memory is mapped, asked for or not.
  const region* const area = space.allocate({.size = bytes,
                                             .kind = memory_kind::pinned,
                                             .device = -1,
                                             .flags = flags | host_alloc_device_map,
                                             .owner = device},
                                            "mem_host_alloc");
  if (area == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  charge(1, bytes);
  *pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(area->base));
  return CUDA_SUCCESS;
}

CUresult state::mem_free_host(void* pointer) {
  if (pointer == nullptr) return CUDA_SUCCESS;
  return take_away(*this, to_address(pointer), memory_kind::pinned, "mem_free_host");
}

CUresult state::mem_host_get_device_pointer(CUdeviceptr* address, void* pointer, unsigned flags) {
  if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_pinned(space.find(to_address(pointer)))) {
    *address = 0;
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = to_address(pointer);
  return CUDA_SUCCESS;
}

CUresult state::mem_host_get_flags(unsigned* flags, void* pointer) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const region* const area = space.find(to_address(pointer));
  if (!is_pinned(area) && (area == nullptr || area->kind != memory_kind::managed)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = area->kind == memory_kind::managed ? host_alloc_device_map : area->flags;
  return CUDA_SUCCESS;
}

CUresult state::mem_host_register(void* pointer, std::size_t bytes, unsigned flags) {
  constexpr unsigned known = host_register_portable | host_register_device_map |
                             host_register_io_memory | host_register_read_only;
  const std::uint64_t from = to_address(pointer);
  const auto end = checked_add(from, std::uint64_t{bytes});
  if (pointer == nullptr || bytes == 0 || (flags & ~known) != 0 || !end) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  bool registered = false;
  bool foreign = false;
  space.each_in(from, bytes, [&](const region& area) {
    (area.kind == memory_kind::registered ? registered : foreign) = true;
  });
  if (foreign) return CUDA_ERROR_INVALID_VALUE;
  if (registered) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (!host_has(from, *end, (flags & host_register_read_only) == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (passes_limit(*this, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  charge(1, bytes);
  space.insert({.base = from,
                .size = bytes,
                .kind = memory_kind::registered,
                .device = -1,
                .pages = physical::adopt(-1, bytes),
                .flags = flags | host_register_device_map,
                .owner = device});
  return CUDA_SUCCESS;
}

CUresult state::mem_host_unregister(void* pointer) {
  if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const region* const area = space.find(to_address(pointer));
  if (area == nullptr) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  return take_away(*this, to_address(pointer), memory_kind::registered, "mem_host_unregister");
}

}}}  // namespace weir::v0::sim

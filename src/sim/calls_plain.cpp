// SPDX-License-Identifier: Apache-2.0
// Driver calls: plain device memory.
#include "sim/graphs.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace sim {

CUresult state::mem_get_info(std::size_t* free, std::size_t* total) {
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  const std::uint64_t capacity = devices[static_cast<std::size_t>(device)].spec.capacity.count();
  if (free != nullptr) *free = space.free(device);
  if (total != nullptr) *total = capacity;
  return CUDA_SUCCESS;
}

CUresult state::mem_alloc(CUdeviceptr* address, std::size_t bytes) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult failure = health(device); failure != CUDA_SUCCESS) return failure;
  const region* const area = space.allocate(
      {.size = bytes, .kind = memory_kind::plain, .device = device, .owner = device}, "mem_alloc");
  if (area == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  charge(1, bytes);
  *address = area->base;
  return CUDA_SUCCESS;
}

CUresult state::mem_alloc_pitch(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                std::size_t height, unsigned element) {
  constexpr std::uint64_t row_alignment = 512;
  if (address == nullptr || pitch == nullptr || width == 0 || height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  const auto row = checked_round_up(width, row_alignment);
  const auto total = row ? checked_multiply(*row, std::uint64_t{height}) : std::nullopt;
  if (!total) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult answer = mem_alloc(address, *total);
  if (answer == CUDA_SUCCESS) *pitch = *row;
  return answer;
}

CUresult state::mem_free(CUdeviceptr address) {
  if (address == 0) return CUDA_SUCCESS;
  const auto find_freeable = [&]() -> region* {
    region* const area = space.find(address);
    const bool is_freeable =
        area != nullptr && area->base == address &&
        (area->kind == memory_kind::plain || area->kind == memory_kind::managed);
    return is_freeable ? area : nullptr;
  };
  if (const region* const area = find_freeable()) {
    const int device = area->device;
    const std::uint64_t id = area->id;
    if (const CUresult failure = flow.synchronize_device(device, lock()); failure != CUDA_SUCCESS) {
      return failure;
    }
    after_synchronize(device);
    // Another thread may have freed it while this one waited.
    region* const current = find_freeable();
    if (current == nullptr || current->id != id) return CUDA_ERROR_INVALID_VALUE;
    charge(1, current->size);
    space.release(*current, "mem_free");
    return CUDA_SUCCESS;
  }
  // Stream-ordered memory may be freed here too, and then nothing is waited for.
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (pools->allocation(address, &base, &bytes)) {
    return base == address ? pools->free_now(address) : CUDA_ERROR_INVALID_VALUE;
  }
  return graphs->free_graph_allocation(address, nullptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult state::mem_get_address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  CUdeviceptr from = 0;
  std::size_t size = 0;
  CUresult answer = CUDA_SUCCESS;
  if (!pools->allocation(address, &from, &size)) {
    const region* const area = space.find(address);
    // A mapping that nobody may access yet is not found, nor is a pool's memory between
    // allocations.
    const bool known = area != nullptr && area->kind != memory_kind::pool &&
                       (area->kind != memory_kind::mapped ||
                        std::any_of(area->rights.begin(), area->rights.end(), [](auto granted) {
                          return granted != CU_MEM_ACCESS_FLAGS_PROT_NONE;
                        }));
    if (known) {
      from = area->base;
      size = area->size;
    } else {
      answer = CUDA_ERROR_NOT_FOUND;
    }
  }
  if (base != nullptr) *base = from;
  if (bytes != nullptr) *bytes = size;
  return answer;
}

}}}  // namespace weir::v0::sim

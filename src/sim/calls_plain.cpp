// Driver calls: plain device memory.
#include "sim/graphs.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"
#include "weir/base/checked.hpp"

namespace weir::inline v0::sim {

CUresult state::mem_get_info(std::size_t* free, std::size_t* total) {
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult bad = health(device); bad != CUDA_SUCCESS) return bad;
  const std::uint64_t capacity = devices[static_cast<std::size_t>(device)].spec.capacity.count();
  if (free != nullptr) *free = space.free(device);
  if (total != nullptr) *total = capacity;
  return CUDA_SUCCESS;
}

CUresult state::mem_alloc(CUdeviceptr* address, std::size_t bytes) {
  if (address == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = current_device();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult bad = health(device); bad != CUDA_SUCCESS) return bad;
  const region* const made = space.allocate(
      {.size = bytes, .kind = memory_kind::plain, .device = device, .owner = device}, "mem_alloc");
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  charge(1, bytes);
  *address = made->base;
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
  const auto freeable = [&]() -> region* {
    region* const in = space.find(address);
    const bool ours = in != nullptr && in->base == address &&
                      (in->kind == memory_kind::plain || in->kind == memory_kind::managed);
    return ours ? in : nullptr;
  };
  if (const region* const in = freeable()) {
    const int device = in->device;
    const std::uint64_t id = in->id;
    if (const CUresult bad = flow.synchronize_device(device, lock()); bad != CUDA_SUCCESS) {
      return bad;
    }
    after_synchronize(device);
    // Another thread may have freed it while this one waited.
    region* const still = freeable();
    if (still == nullptr || still->id != id) return CUDA_ERROR_INVALID_VALUE;
    charge(1, still->size);
    space.release(*still, "mem_free");
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
    const region* const in = space.find(address);
    // A mapping that nobody may access yet is not found, nor is a pool's memory between
    // allocations.
    const bool known = in != nullptr && in->kind != memory_kind::pool &&
                       (in->kind != memory_kind::mapped ||
                        std::any_of(in->rights.begin(), in->rights.end(), [](auto granted) {
                          return granted != CU_MEM_ACCESS_FLAGS_PROT_NONE;
                        }));
    if (known) {
      from = in->base;
      size = in->size;
    } else {
      answer = CUDA_ERROR_NOT_FOUND;
    }
  }
  if (base != nullptr) *base = from;
  if (bytes != nullptr) *bytes = size;
  return answer;
}

}  // namespace weir::inline v0::sim

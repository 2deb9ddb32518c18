// SPDX-License-Identifier: Apache-2.0
// Hooks for queries about memory: weir's memory looks like the driver's own.
#include <algorithm>
#include <cstring>

#include "hooks.hpp"
#include "process.hpp"
#include "remarks.hpp"

namespace weir_preload {

namespace {

/// The block of weir's that the address lies in.
std::optional<served_block> served(CUdeviceptr address) noexcept {
  process* const here = address == 0 ? nullptr : process::get();
  auto block = here == nullptr ? std::nullopt : here->blocks().containing(address);
  if (block && block->kind == served_as::driver) return std::nullopt;
  return block;
}

/// Puts the attribute of a block, where the driver would tell of the arena under it.
bool put_attribute(const served_block& block, CUpointer_attribute attribute, void* data) noexcept {
  // Addresses, handles and sizes are all as wide.
  static_assert(sizeof(CUcontext) == sizeof(std::uint64_t));
  const auto put = [data](std::uint64_t value) {
    std::memcpy(data, &value, sizeof value);
    return true;
  };
  // Of an arena all blocks have the same; ours count from far above the driver's.
  constexpr std::uint64_t first_id = std::uint64_t{1} << 62;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      // Stream-ordered memory belongs to its pool, not to a context.
      return put(block.kind == served_as::ordered
                     ? 0
                     : reinterpret_cast<std::uint64_t>(block.heap->context()));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(block.address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(block.bytes);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(first_id + block.serial);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(block.kind == served_as::ordered
                     ? reinterpret_cast<std::uint64_t>(block.heap->default_pool())
                     : 0);
    default:
      return false;
  }
}

}  // namespace

namespace abi {

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const CUresult answer = pass<hook::cuMemGetInfo_v2>(free, total);
  process* const here = answer == CUDA_SUCCESS ? process::get() : nullptr;
  if (here == nullptr) return answer;
  try {
    const auto device = here->current_device();
    if (!device) return answer;
    const auto heap = here->existing_heap(*device);
    // What weir caches is free for the program; to others it is not. So is what was freed behind
    // work that is done by now.
    if (heap != nullptr) heap->collect_done();
    const weir::memory_stats stats =
        heap == nullptr ? weir::memory_stats{} : heap->memory().stats();
    const std::uint64_t cached = stats.cached.count();
    const auto limit = here->limit_of(*device);
    const std::uint64_t used = stats.reserved.current.count() - cached + here->passed_on(*device);
    if (free != nullptr) *free += cached;
    if (!limit) return answer;
    if (free != nullptr) *free = std::min(*free, *limit - std::min(*limit, used));
    if (total != nullptr) *total = std::min(*total, *limit);
  } catch (...) {
    // The driver's numbers stand.
  }
  return answer;
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  const CUresult answer = pass<hook::cuDeviceTotalMem_v2>(bytes, device);
  process* const here = answer == CUDA_SUCCESS && bytes != nullptr ? process::get() : nullptr;
  if (here == nullptr) return answer;
  try {
    if (const auto limit = here->limit_of(device)) *bytes = std::min(*bytes, *limit);
  } catch (...) {
    // The driver's number stands.
  }
  return answer;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  const auto block = served(address);
  if (!block) return pass<hook::cuMemGetAddressRange_v2>(base, bytes, address);
  if (base != nullptr) *base = block->address;
  if (bytes != nullptr) *bytes = block->bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto block = data == nullptr ? std::nullopt : served(address);
  if (block && put_attribute(*block, attribute, data)) return CUDA_SUCCESS;
  return pass<hook::cuPointerGetAttribute>(data, attribute, address);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  const CUresult answer = pass<hook::cuPointerGetAttributes>(count, attributes, data, address);
  if (answer != CUDA_SUCCESS) return answer;
  if (const auto block = served(address))
    for (unsigned i = 0; i < count; ++i) put_attribute(*block, attributes[i], data[i]);
  return answer;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  // As of memory from cuMemAlloc: the handle under a block holds other blocks as well.
  if (served(reinterpret_cast<CUdeviceptr>(address))) return CUDA_ERROR_INVALID_VALUE;
  return pass<hook::cuMemRetainAllocationHandle>(handle, address);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  // Of a classic segment the driver has a handle, but it stands for all blocks in it.
  if (!served(address)) return pass<hook::cuIpcGetMemHandle>(handle, address);
  say_once(remark::ipc);
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace abi
}  // namespace weir_preload

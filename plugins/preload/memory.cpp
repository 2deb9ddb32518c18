// SPDX-License-Identifier: Apache-2.0
// Hooks for cuMemAlloc, cuMemAllocPitch, cuMemFree and their versions.
#include <new>
#include <utility>

#include "hooks.hpp"
#include "process.hpp"
#include "remarks.hpp"

namespace weir_preload {

namespace {

/// weir's answer to a request for plain memory; none: the driver is to give it.
std::optional<CUresult> serve_plain(CUdeviceptr* address, std::size_t bytes) noexcept try {
  if (address == nullptr || bytes == 0 || !serves_plain()) return std::nullopt;
  process* const here = process::get();
  if (here == nullptr) return std::nullopt;
  const auto heap = here->heap_of_current();
  if (heap == nullptr) return std::nullopt;
  return hand_out(*here, heap, heap->allocate_plain(bytes), bytes, served_as::plain, address);
} catch (...) {
  return std::nullopt;
}

CUresult free_served(const served_block& block) {
  void* const pointer = reinterpret_cast<void*>(block.address);
  // The driver, too, does not wait where stream-ordered memory is freed so.
  if (block.kind == served_as::plain) return block.heap->free_plain(pointer);
  const CUresult answer = block.heap->free_ordered(pointer, nullptr);
  if (answer == CUDA_SUCCESS) block.heap->count_ordered(-static_cast<std::int64_t>(block.bytes));
  return answer;
}

}  // namespace

namespace abi {

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  if (const auto answer = serve_plain(address, bytes)) return *answer;
  return pass_counted(address, bytes, nullptr, nullptr,
                      [&] { return pass<hook::cuMemAlloc_v2>(address, bytes); });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                            std::size_t height, unsigned element) {
  // Rows begin where every kind of access to them is aligned, as the driver's do.
  constexpr std::size_t row_alignment = 512;
  const bool is_sound = pitch != nullptr && width != 0 && height != 0 && width <= SIZE_MAX / 2 &&
                        (element == 4 || element == 8 || element == 16);
  const std::size_t row =
      is_sound ? (width + row_alignment - 1) / row_alignment * row_alignment : 0;
  const bool fits = is_sound && height <= SIZE_MAX / row;
  if (fits) {
    if (const auto answer = serve_plain(address, row * height)) {
      if (*answer == CUDA_SUCCESS) *pitch = row;
      return *answer;
    }
  }
  const auto request = [&] {
    return pass<hook::cuMemAllocPitch_v2>(address, pitch, width, height, element);
  };
  return fits ? pass_counted(address, row * height, nullptr, nullptr, request) : request();
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
  // It is not the device's alone, so it does not count towards the limit; it is in the table for
  // the recording's sake.
  const CUresult answer = pass<hook::cuMemAllocManaged>(address, bytes, flags);
  process* const here = answer == CUDA_SUCCESS ? process::get() : nullptr;
  if (here == nullptr || !settings::get().records_only) return answer;
  try {
    const auto device = here->current_device();
    if (!device) return answer;
    served_block block{.address = *address,
                       .bytes = bytes,
                       .device = *device,
                       .context = here->current_context(),
                       .stream = 1};
    block.is_managed = true;
    here->blocks().insert(block);
    here->traces().allocated(block, here->driver());
  } catch (...) {
    // Not in the trace.
  }
  return answer;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  const CUresult answer = pass<hook::cuMemCreate>(handle, bytes, properties, flags);
  process* const here = process::get();
  if (here == nullptr || properties == nullptr ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return answer;
  try {
    if (here->limit_of(properties->location.id)) say_once(remark::own_mapping);
    if (answer != CUDA_ERROR_OUT_OF_MEMORY) return answer;
    const auto heap = here->existing_heap(properties->location.id);
    if (heap == nullptr || heap->release_cached() == 0) return answer;
  } catch (...) {
    return answer;
  }
  return pass<hook::cuMemCreate>(handle, bytes, properties, flags);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  process* const here = address == 0 ? nullptr : process::get();
  auto block = here == nullptr ? std::nullopt : here->blocks().take(address);
  if (!block && here != nullptr && here->is_segment_of_weir(address))
    return CUDA_ERROR_INVALID_VALUE;
  if (!block) return pass<hook::cuMemFree_v2>(address);
  if (block->kind == served_as::driver) {
    here->traces().freed(*block, here->driver());
    const CUresult answer = pass<hook::cuMemFree_v2>(address);
    return settle_freed(*here, *std::move(block), answer);
  }
  CUresult answer = CUDA_ERROR_OUT_OF_MEMORY;  // of the host
  try {
    answer = free_served(*block);
  } catch (...) {
    // It is live.
  }
  if (answer != CUDA_SUCCESS) here->blocks().put_back(*std::move(block));
  return answer;
}

}  // namespace abi
}  // namespace weir_preload

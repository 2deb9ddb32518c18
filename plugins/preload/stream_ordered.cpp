// SPDX-License-Identifier: Apache-2.0
// Hooks for cuMemAllocAsync, cuMemFreeAsync and the device's default pool.
//
// Variants whose name ends in _ptsz are apart: there a null stream is the thread's own.
#include <cstring>
#include <new>
#include <utility>

#include "hooks.hpp"
#include "process.hpp"
#include "remarks.hpp"

namespace weir_preload {

namespace {

/// The stream by its own name.
CUstream legacy(CUstream stream) noexcept { return stream != nullptr ? stream : legacy_stream(); }
CUstream of_thread(CUstream stream) noexcept {
  return stream != nullptr ? stream : per_thread_stream();
}

/// Whether the stream is being captured, or cannot be asked: then the driver is to answer.
bool is_captured(const process& here, CUstream stream) noexcept {
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (here.calls().stream_is_capturing == nullptr ||
      here.calls().stream_is_capturing(stream, &status) != CUDA_SUCCESS)
    return true;
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) say_once(remark::capture);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Whether requests without a pool are for the device's default one.
bool has_default_pool(const process& here, const device_heap& heap) noexcept {
  CUmemoryPool current = nullptr;
  return heap.default_pool() != nullptr &&
         here.calls().device_get_mem_pool(&current, heap.device()) == CUDA_SUCCESS &&
         current == heap.default_pool();
}

/// weir's answer to a request; none: the driver is to give it. `pool` is null where none was named.
std::optional<CUresult> serve_ordered(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                      CUstream stream) noexcept try {
  if (address == nullptr || bytes == 0 || !serves_ordered()) return std::nullopt;
  process* const here = process::get();
  if (here == nullptr || is_captured(*here, stream)) return std::nullopt;
  const auto heap = here->heap_of(stream);
  if (heap == nullptr) return std::nullopt;
  if (pool != nullptr ? pool != heap->default_pool() : !has_default_pool(*here, *heap)) {
    say_once(remark::own_pool);
    return std::nullopt;
  }
  const auto answer = hand_out(*here, heap, heap->allocate_ordered(bytes, stream), bytes,
                               served_as::ordered, address);
  if (answer == CUDA_SUCCESS) heap->count_ordered(static_cast<std::int64_t>(bytes));
  return answer;
} catch (...) {
  return std::nullopt;
}

/// Memory that becomes a node of a graph is the graph's: it is not counted.
template <class Request>
CUresult pass_ordered(CUdeviceptr* address, std::size_t bytes, CUstream stream, CUmemoryPool pool,
                      const Request& request) noexcept {
  const process* const here = process::get();
  if (here == nullptr || is_captured(*here, stream)) return request();
  return pass_counted(address, bytes, stream, pool, request);
}

template <hook Row>
CUresult free_async(CUdeviceptr address, CUstream named, CUstream stream) noexcept {
  process* const here = address == 0 ? nullptr : process::get();
  // A capture frees memory of its graph, which is none of ours.
  if (here == nullptr || is_captured(*here, stream)) return pass<Row>(address, named);
  auto block = here->blocks().take(address);
  if (!block && here->is_segment_of_weir(address)) return CUDA_ERROR_INVALID_VALUE;
  if (!block) return pass<Row>(address, named);
  if (block->kind == served_as::driver) {
    here->traces().freed(*block, here->driver());
    return settle_freed(*here, *std::move(block), pass<Row>(address, named));
  }
  CUresult answer = CUDA_ERROR_OUT_OF_MEMORY;  // of the host
  try {
    answer = block->heap->free_ordered(reinterpret_cast<void*>(address), stream);
  } catch (...) {
    // It is live.
  }
  if (answer != CUDA_SUCCESS) {
    here->blocks().put_back(*std::move(block));
  } else if (block->kind == served_as::ordered) {
    block->heap->count_ordered(-static_cast<std::int64_t>(block->bytes));
  }
  return answer;
}

/// The heap that stands for the pool; null: the pool is the driver's.
std::shared_ptr<device_heap> heap_of_pool(CUmemoryPool pool) noexcept {
  process* const here = serves_ordered() ? process::get() : nullptr;
  return here == nullptr ? nullptr : here->heap_with_pool(pool);
}

}  // namespace

namespace abi {

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  if (const auto answer = serve_ordered(address, bytes, nullptr, legacy(stream))) return *answer;
  return pass_ordered(address, bytes, legacy(stream), nullptr,
                      [&] { return pass<hook::cuMemAllocAsync>(address, bytes, stream); });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  if (const auto answer = serve_ordered(address, bytes, nullptr, of_thread(stream))) return *answer;
  return pass_ordered(address, bytes, of_thread(stream), nullptr,
                      [&] { return pass<hook::cuMemAllocAsync_ptsz>(address, bytes, stream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  if (pool != nullptr)
    if (const auto answer = serve_ordered(address, bytes, pool, legacy(stream))) return *answer;
  return pass_ordered(address, bytes, legacy(stream), pool, [&] {
    return pass<hook::cuMemAllocFromPoolAsync>(address, bytes, pool, stream);
  });
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  if (pool != nullptr)
    if (const auto answer = serve_ordered(address, bytes, pool, of_thread(stream))) return *answer;
  return pass_ordered(address, bytes, of_thread(stream), pool, [&] {
    return pass<hook::cuMemAllocFromPoolAsync_ptsz>(address, bytes, pool, stream);
  });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async<hook::cuMemFreeAsync>(address, stream, legacy(stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async<hook::cuMemFreeAsync_ptsz>(address, stream, of_thread(stream));
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult answer = pass<hook::cuMemPoolCreate>(pool, properties);
  process* const here = answer == CUDA_SUCCESS ? process::get() : nullptr;
  if (here == nullptr || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return answer;
  try {
    here->known_pools().add(*pool, properties->location.id);
  } catch (...) {
    // Its memory counts for the device of the stream.
  }
  return answer;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const auto heap = heap_of_pool(pool);
  if (heap == nullptr || value == nullptr)
    return pass<hook::cuMemPoolGetAttribute>(pool, attribute, value);
  std::uint64_t number = 0;
  std::uint64_t of_driver = 0;  // what it served from the pool itself
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      number = heap->memory().stats().reserved.current.count();
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      number = heap->memory().stats().reserved.peak.count();
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      number = heap->ordered_bytes();
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      number = heap->ordered_peak();
      break;
    default:
      return pass<hook::cuMemPoolGetAttribute>(pool, attribute, value);
  }
  const CUresult answer = pass<hook::cuMemPoolGetAttribute>(pool, attribute, &of_driver);
  if (answer != CUDA_SUCCESS) return answer;
  number += of_driver;
  std::memcpy(value, &number, sizeof number);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult answer = pass<hook::cuMemPoolSetAttribute>(pool, attribute, value);
  if (answer != CUDA_SUCCESS) return answer;
  const auto heap = heap_of_pool(pool);
  if (heap == nullptr) return answer;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) heap->reset_peak();
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) heap->memory().reset_peaks();
  return answer;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t keep) {
  const auto heap = heap_of_pool(pool);
  if (heap != nullptr) {
    try {
      heap->collect_done();
      static_cast<void>(heap->memory().trim(weir::bytes{keep}));
    } catch (...) {
      // It stays cached.
    }
  }
  return pass<hook::cuMemPoolTrimTo>(pool, keep);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count) {
  const CUresult answer = pass<hook::cuMemPoolSetAccess>(pool, access, count);
  process* const here = answer == CUDA_SUCCESS && serves_ordered() ? process::get() : nullptr;
  if (here == nullptr) return answer;
  try {
    // Also where the heap is not made yet.
    const auto device = here->device_with_pool(pool);
    for (std::size_t i = 0; device && i < count; ++i)
      if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
          access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
        here->add_peer(*device, access[i].location.id);
  } catch (...) {
    // As if it had not been asked for.
  }
  return answer;
}

}  // namespace abi
}  // namespace weir_preload

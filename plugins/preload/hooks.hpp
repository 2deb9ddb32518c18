// SPDX-License-Identifier: Apache-2.0
// The replaced functions, under the driver's names: the preloaded library exports them.
#pragma once

#include "weir/driver/types.hpp"

namespace weir_preload::abi {

using namespace weir::driver;

#define WEIR_HOOKED extern "C" __attribute__((visibility("default"))) CUresult

// resolve.cpp
WEIR_HOOKED cuGetProcAddress(const char* symbol, void** function, int version, std::uint64_t flags);
WEIR_HOOKED cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                std::uint64_t flags, CUdriverProcAddressQueryResult* status);

// memory.cpp
WEIR_HOOKED cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes);
WEIR_HOOKED cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                               std::size_t height, unsigned element);
WEIR_HOOKED cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags);
WEIR_HOOKED cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                        const CUmemAllocationProp* properties, unsigned long long flags);
WEIR_HOOKED cuMemFree_v2(CUdeviceptr address);

// stream_ordered.cpp
WEIR_HOOKED cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream);
WEIR_HOOKED cuMemAllocAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUstream stream);
WEIR_HOOKED cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                    CUstream stream);
WEIR_HOOKED cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                         CUstream stream);
WEIR_HOOKED cuMemFreeAsync(CUdeviceptr address, CUstream stream);
WEIR_HOOKED cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
WEIR_HOOKED cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties);
WEIR_HOOKED cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value);
WEIR_HOOKED cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value);
WEIR_HOOKED cuMemPoolTrimTo(CUmemoryPool pool, std::size_t keep);
WEIR_HOOKED cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count);

// queries.cpp
WEIR_HOOKED cuMemGetInfo_v2(std::size_t* free, std::size_t* total);
WEIR_HOOKED cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device);
WEIR_HOOKED cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address);
WEIR_HOOKED cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address);
WEIR_HOOKED cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                   CUdeviceptr address);
WEIR_HOOKED cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address);
WEIR_HOOKED cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address);

// lifecycle.cpp
WEIR_HOOKED cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
WEIR_HOOKED cuDevicePrimaryCtxRelease(CUdevice device);
WEIR_HOOKED cuDevicePrimaryCtxRelease_v2(CUdevice device);
WEIR_HOOKED cuDevicePrimaryCtxReset(CUdevice device);
WEIR_HOOKED cuDevicePrimaryCtxReset_v2(CUdevice device);
WEIR_HOOKED cuCtxDestroy(CUcontext context);
WEIR_HOOKED cuCtxDestroy_v2(CUcontext context);
WEIR_HOOKED cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
WEIR_HOOKED cuStreamDestroy(CUstream stream);
WEIR_HOOKED cuStreamDestroy_v2(CUstream stream);
WEIR_HOOKED cuStreamBeginCapture(CUstream stream);
WEIR_HOOKED cuStreamBeginCapture_ptsz(CUstream stream);
WEIR_HOOKED cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
WEIR_HOOKED cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);
WEIR_HOOKED cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                        const CUgraphNode* dependencies, const void* edges,
                                        std::size_t count, CUstreamCaptureMode mode);
WEIR_HOOKED cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                             const CUgraphNode* dependencies, const void* edges,
                                             std::size_t count, CUstreamCaptureMode mode);
WEIR_HOOKED cuStreamEndCapture(CUstream stream, CUgraph* graph);
WEIR_HOOKED cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph);

}  // namespace weir_preload::abi

/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions as a program that knows nothing of weir has them: no toolkit is needed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUgraph_st* CUgraph;
typedef struct CUmemPoolHandle_st* CUmemoryPool;

typedef struct {
  int type, handle_types, location_type, location_id;
  void* security;
  size_t most;
  unsigned char reserved[56];
} CUmemPoolProps;

typedef struct {
  char bytes[64];
} CUipcMemHandle;

/* CALL(symbol, version, exported, parameters) */
#define DRIVER_CALLS                                                                              \
  CALL(cuInit, 2000, cuInit, (unsigned))                                                          \
  CALL(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, (size_t*, int))                               \
  CALL(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, (CUcontext*, int))               \
  CALL(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, (int))                     \
  CALL(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2, (int))                         \
  CALL(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState, (int, unsigned*, int*))      \
  CALL(cuCtxSetCurrent, 4000, cuCtxSetCurrent, (CUcontext))                                       \
  CALL(cuCtxSynchronize, 2000, cuCtxSynchronize, (void))                                          \
  CALL(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess, (CUcontext, unsigned))                 \
  CALL(cuStreamCreate, 2000, cuStreamCreate, (CUstream*, unsigned))                               \
  CALL(cuStreamDestroy, 4000, cuStreamDestroy_v2, (CUstream))                                     \
  CALL(cuStreamSynchronize, 2000, cuStreamSynchronize, (CUstream))                                \
  CALL(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, (CUstream, int))                     \
  CALL(cuStreamEndCapture, 10000, cuStreamEndCapture, (CUstream, CUgraph*))                       \
  CALL(cuLaunchHostFunc, 10000, cuLaunchHostFunc, (CUstream, void (*)(void*), void*))             \
  CALL(cuGraphDestroy, 10000, cuGraphDestroy, (CUgraph))                                          \
  CALL(cuMemGetInfo, 3020, cuMemGetInfo_v2, (size_t*, size_t*))                                   \
  CALL(cuMemAlloc, 3020, cuMemAlloc_v2, (CUdeviceptr*, size_t))                                   \
  CALL(cuMemAllocPitch, 3020, cuMemAllocPitch_v2,                                                 \
       (CUdeviceptr*, size_t*, size_t, size_t, unsigned))                                         \
  CALL(cuMemAllocManaged, 6000, cuMemAllocManaged, (CUdeviceptr*, size_t, unsigned))              \
  CALL(cuMemFree, 3020, cuMemFree_v2, (CUdeviceptr))                                              \
  CALL(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2, (CUdeviceptr*, size_t*, CUdeviceptr)) \
  CALL(cuPointerGetAttribute, 4000, cuPointerGetAttribute, (void*, int, CUdeviceptr))             \
  CALL(cuPointerGetAttributes, 7000, cuPointerGetAttributes,                                      \
       (unsigned, int*, void**, CUdeviceptr))                                                     \
  CALL(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle, (CUdeviceptr*, void*))    \
  CALL(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle, (CUipcMemHandle*, CUdeviceptr))                \
  CALL(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, (CUdeviceptr, const void*, size_t))                   \
  CALL(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, (void*, CUdeviceptr, size_t))                         \
  CALL(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t))                   \
  CALL(cuMemsetD8Async, 3020, cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))    \
  CALL(cuMemAllocAsync, 11020, cuMemAllocAsync, (CUdeviceptr*, size_t, CUstream))                 \
  CALL(cuMemFreeAsync, 11020, cuMemFreeAsync, (CUdeviceptr, CUstream))                            \
  CALL(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync,                                   \
       (CUdeviceptr*, size_t, CUmemoryPool, CUstream))                                            \
  CALL(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool, (CUmemoryPool*, int))         \
  CALL(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool, (int, CUmemoryPool))                        \
  CALL(cuMemPoolCreate, 11020, cuMemPoolCreate, (CUmemoryPool*, const CUmemPoolProps*))           \
  CALL(cuMemPoolDestroy, 11020, cuMemPoolDestroy, (CUmemoryPool))                                 \
  CALL(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute, (CUmemoryPool, int, void*))           \
  CALL(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo, (CUmemoryPool, size_t))

/* Pointers of their own names: those of the functions are the linker's. */
#define CALL(symbol, version, exported, parameters) extern int(*p_##symbol) parameters;
DRIVER_CALLS
#undef CALL

/* Finds them: "linked", "dlsym", "proc1", "proc2" or "runtime". 0: that is not possible. */
int find_driver(const char* way);

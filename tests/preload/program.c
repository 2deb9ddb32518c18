/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA program that knows nothing of weir: program WAY SCENARIO [ARGUMENT].
 *
 * What it prints does not depend on addresses, so that two runs can be compared. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define MIB (1UL << 20)

static const char *way, *argument, *self;

static void begin(int device) {
  CUcontext context = NULL;
  if (p_cuInit(0) != 0 || p_cuDevicePrimaryCtxRetain(&context, device) != 0 ||
      p_cuCtxSetCurrent(context) != 0) {
    printf("no context\n");
    exit(3);
  }
}

static CUdeviceptr allocate(size_t size) {
  CUdeviceptr p = 0;
  const int code = p_cuMemAlloc(&p, size);
  if (code != 0) printf("cuMemAlloc %zu: %d\n", size, code);
  return p;
}

/* Whether a block holds what is written to it. */
static int holds(CUdeviceptr p, size_t size, unsigned char value) {
  unsigned char *host = malloc(size), *back = malloc(size);
  memset(host, value, size);
  memset(back, 0, size);
  const int ok = p_cuMemcpyHtoD(p, host, size) == 0 && p_cuMemcpyDtoH(back, p, size) == 0 &&
                 memcmp(host, back, size) == 0;
  free(host);
  free(back);
  return ok;
}

static int basic(void) {
  CUdeviceptr p[3], base = 0, start = 0, managed = 0, handle = 0;
  const size_t sizes[3] = {1000, 65536, 3 * MIB};
  size_t range = 0, length = 0, pitch = 0;
  int kind = 0, ordinal = -7, code;
  int asked[3] = {2, 11, 12}; /* memory type, start and size of the range */
  void* answers[3] = {&kind, &start, &length};
  CUcontext owner = NULL, primary = NULL;
  begin(0);
  for (int i = 0; i < 3; ++i) p[i] = allocate(sizes[i]);
  for (int i = 0; i < 3; ++i) {
    printf("block %d holds %d aligned %d\n", i, holds(p[i], sizes[i], (unsigned char)(i + 1)),
           p[i] % 256 == 0);
    code = p_cuMemGetAddressRange(&base, &range, p[i] + 100);
    printf("range %d from %lld size %zu\n", code, (long long)(base - p[i]), range);
    code = p_cuPointerGetAttributes(3, asked, answers, p[i] + 10);
    printf("attributes %d type %d start %lld size %zu\n", code, kind, (long long)(start - p[i]),
           length);
  }
  p_cuDevicePrimaryCtxRetain(&primary, 0);
  code = p_cuPointerGetAttribute(&owner, 1, p[1]);
  printf("context %d same %d\n", code, owner == primary);
  p_cuDevicePrimaryCtxRelease(0);
  code = p_cuPointerGetAttribute(&ordinal, 9, p[1]);
  printf("ordinal %d is %d\n", code, ordinal);
  printf("handle of a block: %d\n", p_cuMemRetainAllocationHandle(&handle, (void*)p[2]));
  printf("free inside: %d\n", p_cuMemFree(p[1] + 256));
  printf("free: %d\n", p_cuMemFree(p[1]));
  printf("free twice: %d\n", p_cuMemFree(p[1]));
  printf("free null: %d\n", p_cuMemFree(0));
  printf("alloc of nothing: %d\n", p_cuMemAlloc(&base, 0));
  printf("alloc for nobody: %d\n", p_cuMemAlloc(NULL, 100));
  printf("too much: %d\n", p_cuMemAlloc(&base, (size_t)1 << 46));
  code = p_cuMemAllocPitch(&base, &pitch, 1000, 10, 4);
  printf("pitch: %d %zu\n", code, pitch);
  printf("bad pitch: %d\n", p_cuMemAllocPitch(&start, &range, 1000, 10, 3));
  printf("last row holds %d\n", holds(base + 9 * pitch, 1000, 9));
  printf("free pitched: %d\n", p_cuMemFree(base));
  printf("managed: %d\n", p_cuMemAllocManaged(&managed, 4096, 1));
  printf("free managed: %d\n", p_cuMemFree(managed));
  printf("free: %d %d\n", p_cuMemFree(p[0]), p_cuMemFree(p[2]));
  return 0;
}

/* Exactly ARGUMENT allocations of 1 KiB to 1 MiB, each freed, at most 8 at a time. */
static int many(void) {
  CUdeviceptr p[8] = {0};
  const int count = atoi(argument);
  int failures = 0;
  begin(0);
  for (int i = 0; i < count; ++i) {
    if (p[i % 8] != 0) failures += p_cuMemFree(p[i % 8]) != 0;
    failures += p_cuMemAlloc(&p[i % 8], (size_t)(1 + i * 37 % 1024) << 10) != 0;
  }
  for (int i = 0; i < 8; ++i) failures += p_cuMemFree(p[i]) != 0;
  printf("%d allocations, %d failures\n", count, failures);
  return 0;
}

/* Takes blocks of 64 MiB until there are no more, or 64. */
static int fill(void) {
  CUdeviceptr p[64];
  size_t available = 0, total = 0, size = 0;
  int count = 0, code = 0;
  begin(0);
  p_cuMemGetInfo(&available, &total);
  p_cuDeviceTotalMem(&size, 0);
  printf("total %zu MiB, %zu MiB\n", total / MIB, size / MIB);
  while (count < 64 && (code = p_cuMemAlloc(&p[count], 64 * MIB)) == 0) ++count;
  printf("%d blocks, then %d\n", count, code);
  p_cuMemGetInfo(&available, &total);
  printf("free at most 64 MiB: %d\n", available < 64 * MIB);
  for (int i = 0; i < count; ++i) code |= p_cuMemFree(p[i]);
  p_cuMemGetInfo(&available, &total);
  printf("free afterwards: %d\n", available >= (size_t)count * 64 * MIB);
  return 0;
}

static int ordered(void) {
  CUstream streams[2];
  CUdeviceptr p[2], plain, again;
  CUmemoryPool pool = NULL;
  CUcontext owner = NULL;
  unsigned char byte = 0;
  unsigned long long used = 0;
  begin(0);
  for (int i = 0; i < 2; ++i) p_cuStreamCreate(&streams[i], 1);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 2; ++i) {
      if (p_cuMemAllocAsync(&p[i], MIB, streams[i]) != 0) printf("no memory\n");
      p_cuMemsetD8Async(p[i], (unsigned char)(round + i), MIB, streams[i]);
    }
    for (int i = 0; i < 2; ++i) {
      p_cuStreamSynchronize(streams[i]);
      p_cuMemcpyDtoH(&byte, p[i] + MIB - 1, 1);
      if (byte != round + i) printf("round %d: %d\n", round, byte);
      p_cuMemsetD8Async(p[i], 0xff, MIB, streams[i]);
      if (p_cuMemFreeAsync(p[i], streams[i]) != 0) printf("not freed\n");
    }
  }
  p_cuDeviceGetDefaultMemPool(&pool, 0);
  printf("alloc %d\n", p_cuMemAllocAsync(&p[0], 3 * MIB, streams[0]));
  p_cuMemPoolGetAttribute(pool, 7, &used);
  printf("used %llu\n", used);
  printf("context %d", p_cuPointerGetAttribute(&owner, 1, p[0]));
  printf(" null %d\n", owner == NULL);
  p_cuStreamSynchronize(streams[0]);
  printf("free by cuMemFree: %d\n", p_cuMemFree(p[0])); /* the driver goes on counting it */
  p_cuMemPoolGetAttribute(pool, 8, &used);
  printf("most %llu\n", used);
  printf("from the default pool: %d\n", p_cuMemAllocFromPoolAsync(&p[0], 4096, pool, streams[0]));
  printf("on a default stream: %d\n", p_cuMemAllocAsync(&p[1], 4096, NULL));
  p_cuCtxSynchronize();
  printf("free on another: %d %d\n", p_cuMemFreeAsync(p[0], streams[1]),
         p_cuMemFreeAsync(p[1], NULL));
  plain = allocate(MIB);
  p_cuMemsetD8Async(plain, 1, MIB, streams[1]);
  printf("plain memory freed on a stream: %d\n", p_cuMemFreeAsync(plain, streams[1]));
  printf("freed twice: %d\n", p_cuMemFreeAsync(plain, streams[1]));
  printf("nothing: %d\n", p_cuMemAllocAsync(&p[0], 0, NULL));
  p_cuMemAllocAsync(&p[0], 2 * MIB, streams[0]);
  p_cuMemsetD8Async(p[0], 1, 2 * MIB, streams[0]);
  p_cuCtxSynchronize();
  for (int i = 0; i < 2; ++i) printf("destroy %d\n", p_cuStreamDestroy(streams[i]));
  again = allocate(8 * MIB);
  printf("free after its stream: %d\n", p_cuMemFree(p[0]));
  printf("holds %d\n", holds(again, 8 * MIB, 5));
  printf("trim %d\n", p_cuMemPoolTrimTo(pool, 0));
  p_cuMemFree(again);
  return 0;
}

/* Work on one stream must not meet memory that was freed and handed out to another. */
static int hazard(void) {
  CUstream a, b;
  CUdeviceptr p, q, r;
  begin(0);
  p_cuStreamCreate(&a, 1);
  p_cuStreamCreate(&b, 1);
  for (int round = 0; round < 30; ++round) {
    p = allocate(MIB);
    p_cuMemsetD8Async(p, 1, MIB, a);
    p_cuMemFree(p);
    q = allocate(MIB);
    p_cuMemsetD8Async(q, 2, MIB, b);
    p_cuMemAllocAsync(&r, MIB, a);
    p_cuMemsetD8Async(r, 3, MIB, a);
    p_cuMemFreeAsync(r, a);
    p_cuMemFree(q);
    p_cuMemAllocAsync(&r, MIB, b);
    p_cuMemsetD8Async(r, 4, MIB, b);
    p_cuMemFreeAsync(r, b);
    p = allocate(MIB);
    p_cuMemsetD8Async(p, 5, MIB, a);
    p_cuMemFree(p);
  }
  p_cuCtxSynchronize();
  printf("done\n");
  return 0;
}

static int capture(void) {
  CUstream stream;
  CUdeviceptr node = 0, p = 0, q = 0;
  CUgraph graph = NULL;
  begin(0);
  p_cuStreamCreate(&stream, 1);
  p = allocate(MIB);
  printf("begin %d\n", p_cuStreamBeginCapture(stream, 2)); /* relaxed */
  printf("node %d\n", p_cuMemAllocAsync(&node, MIB, stream));
  p_cuMemsetD8Async(node, 1, MIB, stream);
  printf("plain %d\n", p_cuMemAlloc(&q, MIB));
  printf("free plain %d\n", p_cuMemFree(p));
  printf("free node %d\n", p_cuMemFreeAsync(node, stream));
  printf("end %d\n", p_cuStreamEndCapture(stream, &graph));
  printf("graph %d\n", graph != NULL);
  printf("destroy %d\n", p_cuGraphDestroy(graph));
  p = allocate(MIB);
  printf("free %d %d\n", p_cuMemFree(p), p_cuMemFree(q));
  return 0;
}

/* One thread frees memory of device 0, whose work waits for another thread. That one first begins a
 * capture on device 1. */
static atomic_int is_freeing, may_go_on;

static void wait_to_go_on(void* unused) {
  (void)unused;
  while (!atomic_load(&may_go_on)) usleep(1000);
}

static void* free_behind_work(void* unused) {
  CUdeviceptr p;
  CUstream stream;
  (void)unused;
  begin(0);
  p = allocate(MIB);
  p_cuStreamCreate(&stream, 1);
  printf("launch %d\n", p_cuLaunchHostFunc(stream, wait_to_go_on, NULL));
  atomic_store(&is_freeing, 1);
  printf("free %d\n", p_cuMemFree(p));
  return NULL;
}

static int gate(void) {
  CUgraph graph = NULL;
  CUstream stream;
  pthread_t freeing;
  int codes[2];
  alarm(20);
  begin(1);
  p_cuStreamCreate(&stream, 1);
  pthread_create(&freeing, NULL, free_behind_work, NULL);
  while (!atomic_load(&is_freeing)) usleep(1000);
  usleep(50000); /* Only a free that has begun to wait can show the mistake. */
  codes[0] = p_cuStreamBeginCapture(stream, 0);
  codes[1] = p_cuStreamEndCapture(stream, &graph);
  atomic_store(&may_go_on, 1);
  pthread_join(freeing, NULL);
  printf("begin %d end %d graph %d\n", codes[0], codes[1], graph != NULL);
  return 0;
}

/* A capture that ends with its context. */
static int unended(void) {
  CUstream stream;
  CUdeviceptr p = 0;
  int count = 0;
  begin(0);
  p_cuMemFree(allocate(MIB));
  p_cuStreamCreate(&stream, 1);
  printf("begin %d\n", p_cuStreamBeginCapture(stream, 2));
  printf("reset %d\n", p_cuDevicePrimaryCtxReset(0));
  begin(0);
  while (count < 40 && p_cuMemAlloc(&p, 256 * MIB) == 0 && p_cuMemFree(p) == 0) ++count;
  printf("%d rounds\n", count);
  return 0;
}

/* The same where a thread ends that captures its own default stream. */
static void* capture_own_stream(void* unused) {
  int (*begin_capture)(CUstream, int) = NULL;
  (void)unused;
  begin(0);
  *(void**)&begin_capture = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuStreamBeginCapture_v2_ptsz");
  printf("begin %d\n", begin_capture(NULL, 2));
  return NULL;
}

static int unended_thread(void) {
  CUdeviceptr p = 0;
  pthread_t capturing;
  int count = 0;
  begin(0);
  p_cuMemFree(allocate(MIB));
  pthread_create(&capturing, NULL, capture_own_stream, NULL);
  pthread_join(capturing, NULL);
  while (count < 40 && p_cuMemAlloc(&p, 256 * MIB) == 0 && p_cuMemFree(p) == 0) ++count;
  printf("%d rounds\n", count);
  return 0;
}

static int pools(void) {
  CUmemPoolProps properties;
  CUmemoryPool pool = NULL;
  CUdeviceptr p = 0, q = 0;
  CUstream stream;
  unsigned long long used = 0;
  memset(&properties, 0, sizeof properties);
  properties.type = 1;
  properties.location_type = 1;
  begin(0);
  p_cuStreamCreate(&stream, 1);
  printf("create %d\n", p_cuMemPoolCreate(&pool, &properties));
  printf("alloc %d\n", p_cuMemAllocFromPoolAsync(&p, 5 * MIB, pool, stream));
  p_cuMemPoolGetAttribute(pool, 7, &used);
  printf("used %llu\n", used);
  printf("make current %d\n", p_cuDeviceSetMemPool(0, pool));
  printf("alloc %d\n", p_cuMemAllocAsync(&q, MIB, stream));
  p_cuMemPoolGetAttribute(pool, 7, &used);
  printf("used %llu\n", used);
  printf("free %d %d\n", p_cuMemFreeAsync(p, stream), p_cuMemFreeAsync(q, stream));
  p_cuStreamSynchronize(stream);
  p_cuMemPoolGetAttribute(pool, 7, &used);
  printf("used %llu\n", used);
  printf("destroy %d\n", p_cuMemPoolDestroy(pool));
  return 0;
}

static CUmemoryPool pool_of(int device) {
  CUmemPoolProps properties;
  CUmemoryPool pool = NULL;
  memset(&properties, 0, sizeof properties);
  properties.type = 1;
  properties.location_type = 1;
  properties.location_id = device;
  printf("create %d\n", p_cuMemPoolCreate(&pool, &properties));
  return pool;
}

/* Takes blocks of 64 MiB of a pool until there are no more, or `most`. */
static int fill_from(CUmemoryPool pool, CUstream stream, int most) {
  CUdeviceptr p;
  int count = 0;
  while (count < most && p_cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, stream) == 0) ++count;
  return count;
}

/* Pools of device 1 while device 0 is current. */
static int crosses(void) {
  CUdeviceptr p;
  CUstream streams[2];
  CUmemoryPool pool = NULL;
  unsigned long long used = 0, most = 0;
  for (int device = 1; device >= 0; --device) {
    begin(device);
    allocate(MIB);
    p_cuStreamCreate(&streams[device], 1);
  }
  p_cuDeviceGetDefaultMemPool(&pool, 1);
  printf("default pool %d\n", p_cuMemAllocFromPoolAsync(&p, 64 * MIB, pool, streams[0]));
  p_cuMemPoolGetAttribute(pool, 7, &used);
  p_cuMemPoolGetAttribute(pool, 8, &most);
  printf("used %llu MiB, most %llu MiB\n", used / MIB, most / MIB);
  printf("free %d\n", p_cuMemFreeAsync(p, streams[0]));
  p_cuStreamSynchronize(streams[0]);
  p_cuMemPoolGetAttribute(pool, 7, &used);
  printf("used %llu MiB\n", used / MIB);
  pool = pool_of(1);
  printf("%d blocks on its stream\n", fill_from(pool, streams[1], 14));
  printf("other device %d\n", p_cuMemAlloc(&p, 500 * MIB));
  printf("%d more\n", fill_from(pool, streams[1], 10));
  p_cuDeviceSetMemPool(1, pool_of(1));
  printf("current pool %d\n", p_cuMemAllocAsync(&p, 64 * MIB, streams[1]));
  printf("other device %d\n", p_cuMemAlloc(&p, 400 * MIB));
  return 0;
}

/* Plain memory first, until there are 12 blocks of 64 MiB, then as many of streams. */
static int both(void) {
  CUdeviceptr p;
  int plain = 0, streams = 0;
  begin(0);
  while (plain < 12 && p_cuMemAlloc(&p, 64 * MIB) == 0) ++plain;
  while (streams < 12 && p_cuMemAllocAsync(&p, 64 * MIB, NULL) == 0) ++streams;
  printf("%d plain, %d of streams\n", plain, streams);
  return 0;
}

/* Frees behind work, and what is free then: once the work is done, and, with an argument, at the
 * end of a program that does not wait for it. */
static int behind(void) {
  CUdeviceptr p[10];
  CUstream stream;
  size_t before = 0, after = 0, total = 0;
  int failures = 0;
  begin(0);
  p_cuStreamCreate(&stream, 1);
  p_cuMemFree(allocate(MIB));
  p_cuMemGetInfo(&before, &total);
  for (int i = 0; i < 10; ++i) {
    p[i] = allocate(64 * MIB);
    failures += p_cuMemsetD8Async(p[i], 1, 64 * MIB, stream) != 0;
  }
  for (int i = 0; i < 10; ++i) failures += p_cuMemFree(p[i]) != 0;
  if (atoi(argument) == 0) {
    failures += p_cuCtxSynchronize() != 0;
    p_cuMemGetInfo(&after, &total);
    printf("%zu MiB are missing\n", before > after ? (before - after) / MIB : 0);
  }
  printf("%d failures\n", failures);
  return 0;
}

/* What the driver refuses during captures: by the mode of the capture, of other streams. */
static int captures(void) {
  CUstream captured, other;
  begin(0);
  p_cuStreamCreate(&captured, 1);
  p_cuStreamCreate(&other, 1);
  for (int mode = 0; mode < 3; ++mode) {
    for (int what = 0; what < 4; ++what) {
      CUgraph graph = NULL;
      CUdeviceptr plain = allocate(4096), of_stream = 0, p = 0;
      int code = p_cuMemAllocAsync(&of_stream, 4096, other);
      p_cuCtxSynchronize();
      p_cuStreamBeginCapture(captured, mode);
      if (what == 0) code = p_cuMemAlloc(&p, 4096);
      if (what == 1) code = p_cuMemFree(plain);
      if (what == 2) code = p_cuMemAllocAsync(&p, 4096, other);
      if (what == 3) code = p_cuMemFreeAsync(of_stream, other);
      printf("%d %d: %d, end %d\n", mode, what, code, p_cuStreamEndCapture(captured, &graph));
      if (graph != NULL) p_cuGraphDestroy(graph);
    }
  }
  return 0;
}

/* One release of the primary context too many. */
static int over(void) {
  CUdeviceptr p;
  begin(0);
  allocate(5 * MIB);
  printf("release %d\n", p_cuDevicePrimaryCtxRelease(0));
  printf("release again %d\n", p_cuDevicePrimaryCtxRelease(0));
  begin(0);
  p = allocate(5 * MIB);
  printf("holds %d\n", holds(p, 5 * MIB, 3));
  printf("free %d\n", p_cuMemFree(p));
  return 0;
}

static int reset(void) {
  CUdeviceptr p;
  unsigned flags;
  int active = 0;
  begin(0);
  p = allocate(MIB);
  printf("holds %d\n", holds(p, MIB, 3));
  printf("reset %d\n", p_cuDevicePrimaryCtxReset(0));
  begin(0);
  p = allocate(MIB);
  printf("holds %d\n", holds(p, MIB, 4));
  printf("free %d\n", p_cuMemFree(p));
  return 0;
}

/* Memory that goes with its context, again and again. */
static int resets(void) {
  CUdeviceptr p;
  for (int round = 0; round < 4; ++round) {
    begin(0);
    p = allocate(400 * MIB);
    printf("holds %d\n", holds(p, MIB, 3));
    if (round % 2 == 0) {
      printf("reset %d\n", p_cuDevicePrimaryCtxReset(0));
    } else {
      printf("release %d\n", p_cuDevicePrimaryCtxRelease(0));
    }
  }
  return 0;
}

static int releases(void) {
  CUdeviceptr p;
  unsigned flags;
  int active = 0;
  begin(0);
  begin(0);
  p = allocate(MIB);
  printf("free %d\n", p_cuMemFree(p));
  p_cuDevicePrimaryCtxRelease(0);
  p_cuDevicePrimaryCtxGetState(0, &flags, &active);
  printf("release, active %d\n", active);
  printf("released %d\n", p_cuDevicePrimaryCtxRelease(0));
  p_cuDevicePrimaryCtxGetState(0, &flags, &active);
  printf("release, active %d\n", active);
  printf("too late: %d\n", p_cuMemAlloc(&p, MIB));
  begin(0);
  p = allocate(MIB);
  printf("holds %d\n", holds(p, MIB, 5));
  printf("free %d\n", p_cuMemFree(p));
  return 0;
}

static int peers(void) {
  CUcontext other = NULL;
  CUdeviceptr p, q;
  unsigned char byte = 0;
  begin(1);
  p = allocate(MIB);
  holds(p, MIB, 7);
  p_cuDevicePrimaryCtxRetain(&other, 1);
  begin(0);
  printf("enable %d\n", p_cuCtxEnablePeerAccess(other, 0));
  q = allocate(MIB);
  printf("copy %d\n", p_cuMemcpyDtoD(q, p, MIB));
  p_cuMemcpyDtoH(&byte, q + 5, 1);
  printf("byte %d\n", byte);
  printf("free %d %d\n", p_cuMemFree(p), p_cuMemFree(q));
  return 0;
}

static int ipc(void) {
  CUipcMemHandle handle;
  CUdeviceptr p;
  begin(0);
  p = allocate(MIB);
  printf("handle %d\n", p_cuIpcGetMemHandle(&handle, p));
  p_cuIpcGetMemHandle(&handle, p);
  p_cuMemFree(p);
  return 0;
}

/* Frees what is freed already, by all ways, and uses what comes after it. */
static int twice(void) {
  CUdeviceptr p = 0;
  begin(0);
  for (int way = 0; way < 8; ++way) {
    const int is_ordered = way & 1, first = way & 2, second = way & 4;
    int codes[3];
    codes[0] = is_ordered ? p_cuMemAllocAsync(&p, 3 * MIB, NULL) : p_cuMemAlloc(&p, 3 * MIB);
    p_cuCtxSynchronize();
    codes[1] = first ? p_cuMemFreeAsync(p, NULL) : p_cuMemFree(p);
    codes[2] = second ? p_cuMemFreeAsync(p, NULL) : p_cuMemFree(p);
    printf("%d: %d %d %d\n", way, codes[0], codes[1], codes[2]);
    p = allocate(3 * MIB);
    printf("holds %d\n", holds(p, 3 * MIB, (unsigned char)way));
    p_cuMemFree(p);
  }
  return 0;
}

static void* work(void* number) {
  const unsigned char value = (unsigned char)(size_t)number;
  CUstream stream;
  size_t failures = 0;
  begin(0);
  p_cuStreamCreate(&stream, 1);
  for (int i = 0; i < 60; ++i) {
    CUdeviceptr p = 0, q = 0;
    const size_t size = (size_t)(i % 7 + 1) * 20000;
    failures += p_cuMemAlloc(&p, size) != 0;
    failures += p_cuMemAllocAsync(&q, size, stream) != 0;
    p_cuMemsetD8Async(q, value, size, stream);
    failures += !holds(p, size, value);
    p_cuStreamSynchronize(stream);
    failures += p_cuMemFreeAsync(q, stream) != 0;
    failures += p_cuMemFree(p) != 0;
  }
  p_cuStreamDestroy(stream);
  return (void*)failures;
}

static int threads(void) {
  pthread_t all[4];
  size_t failures = 0;
  for (size_t i = 0; i < 4; ++i) pthread_create(&all[i], NULL, work, (void*)(i + 1));
  for (int i = 0; i < 4; ++i) {
    void* result;
    pthread_join(all[i], &result);
    failures += (size_t)result;
  }
  printf("%zu failures\n", failures);
  return 0;
}

static int forks(void) {
  CUdeviceptr p, q = 0;
  int status = 0;
  begin(0);
  p = allocate(MIB);
  fflush(stdout);
  if (fork() == 0) {
    printf("child: %d %d\n", p_cuMemAlloc(&q, MIB), p_cuMemFree(p));
    fflush(stdout);
    execl(self, self, way, "basic", (char*)NULL);
    _exit(9);
  }
  wait(&status);
  printf("status %d\n", status);
  printf("holds %d\n", holds(p, MIB, 3));
  printf("free %d\n", p_cuMemFree(p));
  return 0;
}

/* A child that ends as programs end. */
static int child(void) {
  int status = 0;
  CUdeviceptr p;
  begin(0);
  p = allocate(MIB);
  fflush(stdout);
  if (fork() == 0) {
    const int code = p_cuMemFree(p);
    exit(code == 3 ? 6 : 7); /* not initialised */
  }
  wait(&status);
  printf("child %d\n", WEXITSTATUS(status));
  printf("free %d\n", p_cuMemFree(p));
  return 0;
}

/* Two runtimes, each with its own look-ups, as in every program with cuBLAS. */
static int runtimes(void) {
  CUdeviceptr p;
  begin(0);
  p = allocate(MIB);
  if (!find_driver("runtime")) return 4;
  printf("the second frees what the first has: %d\n", p_cuMemFree(p));
  p = allocate(MIB);
  if (!find_driver("proc1")) return 4;
  printf("the third: %d\n", p_cuMemFree(p));
  return 0;
}

/* Closes descriptors that it does not know, as daemons do, and opens a file of its own. Those of
 * the simulated driver are its memory, so only descriptors of recordings are closed. "unlink" as
 * ARGUMENT: removes the recordings instead of opening a file. */
static int closes(void) {
  char bytes[64] = {0}, link[64], path[4096];
  const int unlinks = strcmp(argument, "unlink") == 0;
  int file = -1, count = 0;
  begin(0);
  allocate(MIB);
  for (int i = 3; i < 256; ++i) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", i);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 5 || strncmp(path + length - 5, ".part", 5) != 0) continue;
    path[length] = 0;
    close(i);
    if (unlinks) unlink(path);
    ++count;
  }
  printf("closed %d\n", count);
  if (!unlinks) {
    file = open(argument, O_RDWR | O_CREAT | O_TRUNC, 0600);
    printf("written %d\n", (int)write(file, "own", 3));
  }
  for (int i = 0; i < 500; ++i) p_cuMemFree(allocate(4096));
  if (!unlinks) printf("read %d %s\n", (int)pread(file, bytes, 63, 0), bytes);
  return 0;
}

/* Has a file of its own where the standard error output was, and does what is told of. */
static int own_error(void) {
  int code, file;
  close(2);
  file = open(argument, O_RDWR | O_CREAT | O_TRUNC, 0600);
  printf("file %d written %d\n", file, (int)write(file, "own", 3));
  code = pools();
  printf("size %d\n", (int)lseek(file, 0, SEEK_END));
  return code;
}

/* Looks the driver up and leaves its use to processes of its own, as launchers do. */
static int workers(void) {
  for (int i = 0; i < 2; ++i) {
    int status = 0;
    fflush(stdout);
    if (fork() == 0) {
      CUdeviceptr p;
      begin(0);
      p = allocate(MIB);
      printf("holds %d\n", holds(p, MIB, 3));
      printf("free %d\n", p_cuMemFree(p));
      exit(0);
    }
    wait(&status);
    printf("status %d\n", status);
  }
  return 0;
}

/* Executes itself once. */
static int again(void) {
  begin(0);
  p_cuMemFree(allocate(MIB));
  fflush(stdout);
  if (strcmp(argument, "last") != 0) execl(self, self, way, "again", "last", (char*)NULL);
  return 0;
}

/* Holds 3 MiB until it is told to go on. */
static int hold(void) {
  CUdeviceptr p;
  char line[8];
  begin(0);
  p = allocate(3 * MIB);
  printf("ready\n");
  fflush(stdout);
  if (fgets(line, sizeof line, stdin) == NULL) return 6;
  return p_cuMemFree(p);
}

static int leave(void) {
  begin(0);
  allocate(MIB);
  printf("allocated\n");
  fflush(stdout);
  if (strcmp(argument, "abort") == 0) abort();
  if (strcmp(argument, "segv") == 0) raise(SIGSEGV);
  if (strcmp(argument, "kill") == 0) raise(SIGKILL);
  exit(atoi(argument));
}

static const struct {
  const char* name;
  int (*run)(void);
} scenarios[] = {{"basic", basic},
                 {"many", many},
                 {"fill", fill},
                 {"ordered", ordered},
                 {"hazard", hazard},
                 {"capture", capture},
                 {"pools", pools},
                 {"crosses", crosses},
                 {"both", both},
                 {"over", over},
                 {"captures", captures},
                 {"reset", reset},
                 {"releases", releases},
                 {"peers", peers},
                 {"ipc", ipc},
                 {"twice", twice},
                 {"threads", threads},
                 {"forks", forks},
                 {"child", child},
                 {"runtimes", runtimes},
                 {"leave", leave},
                 {"hold", hold},
                 {"gate", gate},
                 {"closes", closes},
                 {"again", again},
                 {"unended", unended},
                 {"resets", resets},
                 {"workers", workers},
                 {"behind", behind},
                 {"errors", own_error},
                 {"unended_thread", unended_thread}};

int main(int count, char** words) {
  if (count < 3) return 2;
  self = words[0];
  way = words[1];
  argument = count > 3 ? words[3] : "0";
  if (!find_driver(way)) {
    printf("no driver\n");
    return 5;
  }
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; ++i)
    if (strcmp(words[2], scenarios[i].name) == 0) return scenarios[i].run();
  return 2;
}

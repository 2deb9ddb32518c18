/* SPDX-License-Identifier: Apache-2.0 */
/* A random CUDA program: random SEED STEPS. Its answers, which hold no addresses, must be the same
 * with and without weir. During a capture nothing asynchronous is allocated or freed: that would be
 * the graph's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define BLOCKS 40
#define STREAMS 4

enum kind { PLAIN, ORDERED, PITCHED };

static struct {
  CUdeviceptr at;
  size_t size;
  enum kind kind;
} blocks[BLOCKS];
static CUstream streams[STREAMS];
static int captured = -1;
static CUcontext context;
static CUmemoryPool pool;

static unsigned pick(unsigned count) {
  static unsigned long long state;
  if (count == 0) state = strtoull(getenv("RANDOM_SEED"), NULL, 10) * 77777 + 1;
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return count == 0 ? 0 : (unsigned)(state >> 33) % count;
}

static void keep(int i, int code, size_t size, enum kind kind) {
  if (code != 0) blocks[i].at = 0;
  blocks[i].size = size;
  blocks[i].kind = kind;
}

static void allocate(int i, unsigned how, size_t size, CUstream stream) {
  size_t pitch = 77;
  int code = 0;
  if (blocks[i].at != 0 || (captured >= 0 && (how == 1 || how == 2))) return;
  if (how == 0) code = p_cuMemAlloc(&blocks[i].at, size);
  if (how == 1) code = p_cuMemAllocAsync(&blocks[i].at, size, stream);
  if (how == 2) code = p_cuMemAllocFromPoolAsync(&blocks[i].at, size, pool, stream);
  if (how == 3) {
    const unsigned elements[] = {4, 8, 16, 3};
    const size_t width = pick(3000), height = pick(50);
    code = p_cuMemAllocPitch(&blocks[i].at, &pitch, width, height, elements[pick(4)]);
  }
  printf("allocate %u: %d %d", how, code, pitch % 512 == 0);
  keep(i, code, how == 3 ? 0 : size, how == 0 ? PLAIN : how == 3 ? PITCHED : ORDERED);
}

static void release(int i, unsigned how, CUstream stream) {
  int code = 0;
  if (blocks[i].at == 0) return;
  if (how == 0) code = p_cuMemFree(blocks[i].at);
  if (how == 1 && (blocks[i].kind != ORDERED || captured >= 0)) return;
  if (how == 1) code = p_cuMemFreeAsync(blocks[i].at, stream);
  if (how == 2) code = p_cuMemFree(blocks[i].at + 256);
  if (how == 3 && captured >= 0) return;
  if (how == 3) code = p_cuMemFreeAsync(blocks[i].at + 256, stream);
  printf("free %u of kind %d: %d", how, blocks[i].kind, code);
  if (code == 0 && how < 2) blocks[i].at = 0;
}

static void ask_attribute(int i) {
  unsigned long long values[4] = {0};
  const int attribute = 1 + (int)pick(20);
  const size_t inside = pick(2) != 0 && blocks[i].size != 0 ? pick((unsigned)blocks[i].size) : 0;
  if (attribute == 5) return; /* tokens for peers, which mapped memory has none of */
  const int code = p_cuPointerGetAttribute(values, attribute, blocks[i].at + inside);
  printf("attribute %d: %d", attribute, code);
  if (code != 0) return;
  if (attribute == 1) printf(" context %d", values[0] == (unsigned long long)context);
  if (attribute == 2 || attribute == 8 || attribute == 9 || attribute == 12 || attribute == 13)
    printf(" %llx", values[0]);
  if (attribute == 11) printf(" start %d", values[0] == blocks[i].at);
  if (attribute == 17) printf(" pool %d", values[0] == (unsigned long long)pool);
}

static void ask(int i, unsigned how) {
  CUdeviceptr base = 1, handle;
  size_t size = 1, rest = 0;
  unsigned long long value[3] = {0};
  int asked[3] = {11, 2, 9};
  void* answers[3] = {value, value + 1, value + 2};
  if (how == 4) {
    printf("info %d", p_cuMemGetInfo(&size, &rest));
    printf(" %d", size <= rest);
    return;
  }
  if (how == 5) {
    printf("pool %d", p_cuMemPoolGetAttribute(pool, 5 + 2 * (int)pick(2), value));
    return;
  }
  if (blocks[i].at == 0 || blocks[i].kind == PITCHED) return;
  if (how == 0) {
    const int code = p_cuMemGetAddressRange(&base, &size, blocks[i].at + blocks[i].size / 2);
    printf("range %d %d %zu", code, base == blocks[i].at, size);
  }
  if (how == 1) ask_attribute(i);
  if (how == 2) {
    const int code = p_cuPointerGetAttributes(3, asked, answers, blocks[i].at);
    printf("attributes %d %d %llu %llu", code, value[0] == blocks[i].at, value[1] & 0xffffffff,
           value[2] & 0xffffffff);
  }
  if (how == 3) printf("retain %d", p_cuMemRetainAllocationHandle(&handle, (void*)blocks[i].at));
}

static void change_capture(int q) {
  CUgraph graph = NULL;
  if (captured < 0) {
    const int code = p_cuStreamBeginCapture(streams[q], 2);
    printf("begin %d", code);
    if (code == 0) captured = q;
    return;
  }
  printf("end %d", p_cuStreamEndCapture(streams[captured], &graph));
  if (graph != NULL) p_cuGraphDestroy(graph);
  captured = -1;
}

static void step(void) {
  const size_t sizes[] = {0, 1, 511, 512, 513, 4096, 100000, 2 << 20, 3000001, 40 << 20};
  const int i = (int)pick(BLOCKS), q = (int)pick(STREAMS);
  const size_t size = sizes[pick(10)];
  CUstream named[] = {streams[q], streams[q], NULL, (CUstream)1, (CUstream)2};
  CUstream stream = named[pick(5)];
  const unsigned kind = pick(26);
  if (kind < 8) allocate(i, kind < 3 ? 0 : kind < 6 ? 1 : kind - 4, size, stream);
  if (kind >= 8 && kind < 16) release(i, kind < 11 ? 0 : kind < 14 ? 1 : kind - 12, stream);
  if (kind == 16) printf("null %d, nonsense %d", p_cuMemFree(0), p_cuMemFree(0x1234500));
  if (kind >= 17 && kind < 23) ask(i, kind - 17);
  if (kind == 23) printf("trim %d", p_cuMemPoolTrimTo(pool, pick(2) != 0 ? 0 : 1 << 20));
  if (kind == 24 && captured != q) {
    p_cuStreamSynchronize(streams[q]);
    printf("destroy %d", p_cuStreamDestroy(streams[q]));
    printf(" create %d", p_cuStreamCreate(&streams[q], pick(2)));
  }
  if (kind == 25) change_capture(q);
}

int main(int count, char** words) {
  CUdeviceptr early = 0;
  if (count != 3) return 2;
  setenv("RANDOM_SEED", words[1], 1);
  pick(0);
  if (!find_driver(pick(2) != 0 ? "runtime" : "dlsym") || p_cuInit(0) != 0) return 5;
  printf("before a context %d\n", p_cuMemAlloc(&early, 100));
  p_cuDevicePrimaryCtxRetain(&context, 0);
  p_cuCtxSetCurrent(context);
  p_cuDeviceGetDefaultMemPool(&pool, 0);
  for (int i = 0; i < STREAMS; ++i) p_cuStreamCreate(&streams[i], pick(2));
  for (int i = 0; i < atoi(words[2]); ++i) {
    printf("%d ", i);
    step();
    printf("\n");
  }
  return 0;
}

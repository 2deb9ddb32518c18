/* SPDX-License-Identifier: Apache-2.0 */
/* An allocator for torch.cuda.MemPool whose memory can be taken away and put back at the same
 * addresses, as inference servers do between requests; and NCCL's, where the process has it. The
 * driver's structures are written out because the machine may lack its header. One thread at a
 * time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef unsigned long long address;

struct location {
  int type;
  int id;
};
struct properties {
  int type;
  int handle_types;
  struct location where;
  void* metadata;
  unsigned char flags[8];
};
struct access {
  struct location where;
  int flags;
};
enum { pinned = 1, on_device = 1, read_write = 3, most_segments = 256 };

struct segment {
  address base;
  size_t size;
  int device;
  address handle; /* 0: suspended */
  void* saved;
};
static struct segment segments[most_segments];
static long allocations, frees, refusals, troubles;

static void* driver_call(const char* name) {
  static void* driver;
  if (driver == NULL) driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver == NULL ? NULL : dlsym(driver, name);
}
/* Calls a function of the driver and counts it as trouble if that fails. */
#define CALL(name, types, ...)                    \
  check(((int(*) types)driver_call(name)) == NULL \
            ? -1                                  \
            : ((int(*) types)driver_call(name))(__VA_ARGS__))
static int check(int status) {
  if (status != 0) ++troubles;
  return status;
}

static int map(struct segment* of) {
  const struct properties made = {.type = pinned, .where = {on_device, of->device}};
  const struct access rights = {{on_device, of->device}, read_write};
  address handle = 0;
  if (CALL("cuMemCreate", (address*, size_t, const struct properties*, unsigned long long), &handle,
           of->size, &made, 0) != 0)
    return -1;
  if (CALL("cuMemMap", (address, size_t, size_t, address, unsigned long long), of->base, of->size,
           0, handle, 0) != 0)
    return -1;
  of->handle = handle;
  return CALL("cuMemSetAccess", (address, size_t, const struct access*, size_t), of->base, of->size,
              &rights, 1);
}

static void unmap(struct segment* of) {
  CALL("cuMemUnmap", (address, size_t), of->base, of->size);
  CALL("cuMemRelease", (address), of->handle);
  of->handle = 0;
}

void* suspendable_alloc(size_t size, int device, void* stream) {
  (void)stream;
  ++allocations;
  if (refusals > 0) {
    --refusals;
    return NULL;
  }
  for (int i = 0; i < most_segments; ++i) {
    struct segment* const fresh = &segments[i];
    if (fresh->base != 0) continue;
    fresh->size = (size + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    fresh->device = device;
    if (CALL("cuMemAddressReserve", (address*, size_t, size_t, address, unsigned long long),
             &fresh->base, fresh->size, 0, 0, 0) != 0) {
      fresh->base = 0;
      return NULL;
    }
    if (map(fresh) != 0) {
      CALL("cuMemAddressFree", (address, size_t), fresh->base, fresh->size);
      fresh->base = 0;
      return NULL;
    }
    return (void*)(uintptr_t)fresh->base;
  }
  return NULL;
}

void suspendable_free(void* pointer, size_t size, int device, void* stream) {
  (void)size, (void)device, (void)stream;
  for (int i = 0; i < most_segments; ++i) {
    struct segment* const of = &segments[i];
    if (of->base == 0 || of->base != (address)(uintptr_t)pointer) continue;
    ++frees;
    if (of->handle != 0) unmap(of);
    free(of->saved);
    CALL("cuMemAddressFree", (address, size_t), of->base, of->size);
    *of = (struct segment){0};
    return;
  }
  ++troubles;
}

/* Takes the memory of all segments away. With keep its contents are kept on the host. */
void suspendable_suspend(int keep) {
  for (int i = 0; i < most_segments; ++i) {
    struct segment* const of = &segments[i];
    if (of->base == 0 || of->handle == 0) continue;
    if (keep) {
      of->saved = malloc(of->size);
      CALL("cuMemcpyDtoH_v2", (void*, address, size_t), of->saved, of->base, of->size);
    }
    unmap(of);
  }
}

void suspendable_resume(void) {
  for (int i = 0; i < most_segments; ++i) {
    struct segment* const of = &segments[i];
    if (of->base == 0 || of->handle != 0) continue;
    if (map(of) != 0) continue;
    if (of->saved != NULL)
      CALL("cuMemcpyHtoD_v2", (address, const void*, size_t), of->base, of->saved, of->size);
    free(of->saved);
    of->saved = NULL;
  }
}

/* The next so many requests find no memory. */
void suspendable_refuse(long count) { refusals = count; }

long suspendable_allocations(void) { return allocations; }
long suspendable_frees(void) { return frees; }
long suspendable_troubles(void) { return troubles; }
/* The size of the segment that begins there, or 0. */
unsigned long long suspendable_size_at(unsigned long long base) {
  for (int i = 0; i < most_segments; ++i)
    if (segments[i].base == base && base != 0) return segments[i].size;
  return 0;
}
unsigned long long suspendable_held(void) {
  unsigned long long sum = 0;
  for (int i = 0; i < most_segments; ++i) sum += segments[i].size;
  return sum;
}

/* --- NCCL's ------------------------------------------------------------------------------------
 */

static void* nccl_call(const char* name) {
  static void* nccl;
  if (nccl == NULL) nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  return nccl == NULL ? NULL : dlsym(nccl, name);
}
int nccl_is_there(void) {
  return nccl_call("ncclMemAlloc") != NULL && nccl_call("ncclMemFree") != NULL;
}
static long nccl_allocations, nccl_frees;
void* nccl_alloc(size_t size, int device, void* stream) {
  (void)device, (void)stream;
  void* memory = NULL;
  ++nccl_allocations;
  return ((int (*)(void**, size_t))nccl_call("ncclMemAlloc"))(&memory, size) == 0 ? memory : NULL;
}
void nccl_free(void* pointer, size_t size, int device, void* stream) {
  (void)size, (void)device, (void)stream;
  ++nccl_frees;
  check(((int (*)(void*))nccl_call("ncclMemFree"))(pointer));
}
long nccl_allocation_count(void) { return nccl_allocations; }
long nccl_free_count(void) { return nccl_frees; }

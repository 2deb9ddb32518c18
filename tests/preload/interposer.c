/* SPDX-License-Identifier: Apache-2.0 */
/* Another preloaded library that stands in front of a driver call, as tools do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

static int calls;

__attribute__((visibility("default"))) int cuMemAlloc_v2(unsigned long long* address, size_t size) {
  static int (*next)(unsigned long long*, size_t);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
  ++calls;
  return next(address, size);
}

__attribute__((destructor)) static void finish(void) {
  fprintf(stderr, "interposer saw %d\n", calls);
}

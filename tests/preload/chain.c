/* SPDX-License-Identifier: Apache-2.0 */
/* A function that calls the next of its name; the last library of the chain has LAST. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int chained(void);

__attribute__((visibility("default"))) int chained(void) {
#ifdef LAST
  return LAST;
#else
  int (*next)(void) = NULL;
  for (int i = 0; i < 2; ++i) *(void**)&next = dlsym(RTLD_NEXT, "chained");
  return next == NULL ? -1 : 1 + next();
#endif
}

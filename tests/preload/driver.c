/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which programs find the driver. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

#define CALL(symbol, version, exported, parameters) int(*p_##symbol) parameters;
DRIVER_CALLS
#undef CALL

#ifdef LINKED
int linked_find(void); /* linked.c */
#endif

typedef int (*query_v1)(const char*, void**, int, uint64_t);
typedef int (*query_v2)(const char*, void**, int, uint64_t, int*);

static int by_dlsym(void* library) {
  int complete = 1;
#define CALL(symbol, version, exported, parameters) \
  *(void**)&p_##symbol = dlsym(library, #exported); \
  complete &= p_##symbol != NULL;
  DRIVER_CALLS
#undef CALL
  return complete;
}

/* The runtime of CUDA 11. */
static int by_query_v1(void* library) {
  int complete = 1;
  query_v1 query = NULL;
  *(void**)&query = dlsym(library, "cuGetProcAddress");
  if (query == NULL) return 0;
#define CALL(symbol, version, exported, parameters) \
  complete &= query(#symbol, (void**)&p_##symbol, version, 0) == 0 && p_##symbol != NULL;
  DRIVER_CALLS
#undef CALL
  return complete;
}

static int by_query_v2(query_v2 query) {
  int complete = 1;
#define CALL(symbol, version, exported, parameters) \
  complete &= query(#symbol, (void**)&p_##symbol, version, 0, NULL) == 0 && p_##symbol != NULL;
  DRIVER_CALLS
#undef CALL
  return complete;
}

/* As libcudart 13 does it: the empty name, then cuInit, then the resolver by way of itself. */
static int by_runtime(void* library) {
  query_v2 query = NULL, again = NULL;
  void* ignored = NULL;
  *(void**)&query = dlsym(library, "cuGetProcAddress_v2");
  if (query == NULL) return 0;
  query("", &ignored, 0, 0, NULL);
  if (query("cuInit", &ignored, 2000, 0, NULL) != 0) return 0;
  if (query("cuGetProcAddress", &ignored, 11030, 0, NULL) != 0) return 0;
  if (query("cuGetProcAddress", (void**)&again, 12000, 0, NULL) != 0) return 0;
  return by_query_v2(again);
}

int find_driver(const char* way) {
  void* library;
#ifdef LINKED
  if (strcmp(way, "linked") == 0) return linked_find();
#endif
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return 0;
  if (strcmp(way, "dlsym") == 0) return by_dlsym(library);
  if (strcmp(way, "proc1") == 0) return by_query_v1(library);
  if (strcmp(way, "runtime") == 0) return by_runtime(library);
  if (strcmp(way, "proc2") == 0) {
    query_v2 query = NULL;
    *(void**)&query = dlsym(library, "cuGetProcAddress_v2");
    return query != NULL && by_query_v2(query);
  }
  return 0;
}

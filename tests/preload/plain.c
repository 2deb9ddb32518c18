/* SPDX-License-Identifier: Apache-2.0 */
/* A program without CUDA: what dlsym does for it, with and without what weir preloads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int chained(void);

int main(void) {
  printf("chain %d\n", chained());
  printf("printf %d\n", dlsym(RTLD_DEFAULT, "printf") != NULL);
  printf("nothing %d\n", dlsym(RTLD_DEFAULT, "cudaMalloc") != NULL);
  printf("no driver call %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL);
  printf("error %d\n", dlerror() != NULL);
  printf("driver %d\n", dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != NULL);
  return 7;
}

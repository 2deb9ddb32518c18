/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program that uses the CUDA runtime: takes programmatic dependent launch off
 * every launch and, at the end, writes how many had it to the file that PDL_COUNTS names. With
 * PDL_KEEP it only counts. The structures are those of the runtime's header, written out because
 * the machine may lack it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { programmatic_stream_serialization = 6, most_attributes = 32 };

struct launch_attribute {
  int id;
  char padding[4];
  char value[64];
};

struct launch_config {
  unsigned grid[3];
  unsigned block[3];
  size_t dynamic_shared_memory;
  void* stream;
  struct launch_attribute* attributes;
  unsigned attribute_count;
};

typedef int launch_function(const struct launch_config*, const void*, void**);

static atomic_long launches;
static atomic_long programmatic;

static int launch(const char* name, const struct launch_config* config, const void* kernel,
                  void** arguments) {
  launch_function* const next = (launch_function*)dlsym(RTLD_NEXT, name);
  const char* const keep = getenv("PDL_KEEP");
  const int keeps = keep != NULL && *keep != '\0';
  struct launch_attribute left[most_attributes];
  struct launch_config changed = *config;
  unsigned count = 0;
  atomic_fetch_add(&launches, 1);
  if (config->attribute_count > most_attributes) return next(config, kernel, arguments);
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const int is_programmatic = config->attributes[i].id == programmatic_stream_serialization;
    if (is_programmatic) atomic_fetch_add(&programmatic, 1);
    if (!is_programmatic || keeps) left[count++] = config->attributes[i];
  }
  changed.attributes = left;
  changed.attribute_count = count;
  return next(&changed, kernel, arguments);
}

int cudaLaunchKernelExC(const struct launch_config* config, const void* kernel, void** arguments) {
  return launch("cudaLaunchKernelExC", config, kernel, arguments);
}

int cudaLaunchKernelExC_ptsz(const struct launch_config* config, const void* kernel,
                             void** arguments) {
  return launch("cudaLaunchKernelExC_ptsz", config, kernel, arguments);
}

__attribute__((destructor)) static void write_counts(void) {
  const char* const path = getenv("PDL_COUNTS");
  FILE* const file = path == NULL ? NULL : fopen(path, "w");
  if (file == NULL) return;
  fprintf(file, "{\"extended_launches\": %ld, \"programmatic\": %ld}\n", atomic_load(&launches),
          atomic_load(&programmatic));
  fclose(file);
}

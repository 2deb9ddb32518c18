/* SPDX-License-Identifier: Apache-2.0 */
/* A tool of NVTX that writes down what it is told of memory, a line a call.
 *
 * Its structures are written out from the documentation of the protocol and not taken from weir, so
 * that a mistake there shows here. NVTX_RECORDER_LACKS is the number of a function that it does not
 * have. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct segment {
  size_t id, count;
  intptr_t* slots;
};
struct module {
  uint16_t version, size, id, compatibility;
  size_t segment_count;
  struct segment* segments;
  void (*get_export)(void);
  const void* extension;
};
struct range {
  size_t size;
  const char* pointer;
};

static char lines[65536];
static size_t length;
static uintptr_t last_heap;
static const size_t refused = 12345; /* the size of a heap that is none to it */

/* What NVTX keeps for later must be zero, and so is the category of what has none. */
static void expect_zeros(const char* at, size_t size) {
  for (size_t i = 0; i < size; ++i)
    if (at[i] != 0)
      length += (size_t)snprintf(lines + length, sizeof lines - length, "not zero: %d\n", at[i]);
}

static void* register_heap(void* domain, const char* description) {
  uint16_t compatibility, size;
  uint32_t usage, type, message_type;
  struct range* range;
  const char* message;
  memcpy(&compatibility, description, 2);
  memcpy(&size, description + 2, 2);
  memcpy(&usage, description + 8, 4);
  memcpy(&type, description + 12, 4);
  memcpy(&range, description + 24, 8);
  memcpy(&message_type, description + 36, 4);
  memcpy(&message, description + 40, 8);
  expect_zeros(description + 4, 4);
  expect_zeros(description + 32, 4);
  length += (size_t)snprintf(lines + length, sizeof lines - length,
                             "heap %p %x %u usage %u type %u: %p, %zu, %u \"%s\"\n", domain,
                             compatibility, size, usage, type, (const void*)range->pointer,
                             range->size, message_type, message);
  return range->size == refused ? NULL : (void*)++last_heap;
}

static void unregister_heap(void* domain, void* heap) {
  length += (size_t)snprintf(lines + length, sizeof lines - length, "heap %p ends: %u\n", domain,
                             (unsigned)(uintptr_t)heap);
}

static void register_regions(void* domain, const char* batch) {
  uint32_t type;
  uintptr_t heap;
  size_t count, element;
  struct range* ranges;
  memcpy(&type, batch + 4, 4);
  memcpy(&heap, batch + 8, 8);
  memcpy(&count, batch + 16, 8);
  memcpy(&element, batch + 24, 8);
  memcpy(&ranges, batch + 32, 8);
  for (size_t i = 0; i < count; ++i)
    length += (size_t)snprintf(lines + length, sizeof lines - length,
                               "region %p of heap %u type %u element %zu: %p, %zu\n", domain,
                               (unsigned)heap, type, element, (const void*)ranges[i].pointer,
                               ranges[i].size);
}

static void unregister_regions(void* domain, const char* batch) {
  uint32_t type;
  size_t count;
  void** regions;
  memcpy(&type, batch + 4, 4);
  memcpy(&count, batch + 8, 8);
  memcpy(&regions, batch + 24, 8);
  for (size_t i = 0; i < count; ++i)
    length += (size_t)snprintf(lines + length, sizeof lines - length, "region %p ends, by %u: %p\n",
                               domain, type, regions[i]);
}

static void name_regions(void* domain, const char* batch) {
  const char* elements;
  uint32_t by, type;
  void* region;
  const char* name;
  memcpy(&elements, batch + 24, 8);
  memcpy(&by, elements, 4);
  memcpy(&type, elements + 4, 4);
  memcpy(&region, elements + 8, 8);
  memcpy(&name, elements + 16, 8);
  expect_zeros(batch + 4, 4);
  expect_zeros(batch + 32, 8);
  expect_zeros(elements + 24, 8);
  length += (size_t)snprintf(lines + length, sizeof lines - length,
                             "name %p by %u, %u: %p \"%s\"\n", domain, by, type, region, name);
}

int InitializeInjectionNvtxExtension(struct module* module);
int InitializeInjectionNvtxExtension(struct module* module) {
  if (module->version != 3 || module->size != sizeof *module || module->id != 1 ||
      module->compatibility != 0x0102 || module->segment_count != 1)
    return 0;
  intptr_t* const slots = module->segments[0].slots;
  slots[0] = (intptr_t)register_heap;
  slots[1] = (intptr_t)unregister_heap;
  slots[3] = (intptr_t)register_regions;
  slots[5] = (intptr_t)unregister_regions;
  slots[6] = (intptr_t)name_regions;
  const char* const lacks = getenv("NVTX_RECORDER_LACKS");
  if (lacks != NULL) slots[atoi(lacks)] = 0;
  return 1;
}

/* What was written down since the last call. */
const char* nvtx_recorder_take(void);
const char* nvtx_recorder_take(void) {
  static char taken[sizeof lines];
  memcpy(taken, lines, length);
  taken[length] = '\0';
  length = 0;
  return taken;
}

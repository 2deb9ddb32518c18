/* SPDX-License-Identifier: Apache-2.0 */
/* weir from C11: streams, memory, tags, both ways to run out of memory, and what a snapshot shows.
 *
 * Runs on a GPU where there is one and on a simulated machine where there is none. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "weir.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static int unexpected = 0;

/* Says what is true now, and counts what should be and is not. */
static void expect(int holds, const char* fact) {
  printf("   %s %s\n", holds ? "yes:" : "NO: ", fact);
  if (!holds) {
    ++unexpected;
    printf("        %s\n", weir_last_error_message());
  }
}

static void print_stats(const char* when, weir_allocator* memory) {
  weir_memory_stats stats = {.struct_size = sizeof stats};
  if (weir_allocator_get_stats(memory, &stats) != weir_ok) return;
  printf("   %-22s requested %6" PRIu64 " KiB, reserved %6" PRIu64 " KiB, %" PRIu64 " blocks\n",
         when, stats.requested.current / KIB, stats.reserved.current / KIB, stats.blocks.current);
}

/* Memory for one stream, used on another, too. */
static void allocate_and_free(weir_runtime* machine, weir_allocator* memory) {
  weir_stream* compute = NULL;
  weir_stream* copies = NULL;
  weir_event* filled = NULL;
  void* weights = NULL;
  void* again = NULL;
  unsigned char first = 0;
  uint32_t tag = 0;
  uint32_t before = 0;

  printf("memory, in the order of streams\n");
  expect(weir_stream_create(machine, 0, 0, 0, &compute) == weir_ok, "a stream for the work");
  expect(weir_stream_create(machine, 0, 0, 0, &copies) == weir_ok, "and one for copies");
  expect(weir_event_create(machine, 0, 0, &filled) == weir_ok, "and an event between them");

  weir_tag_named("weights", &tag);
  weir_tag_set_current(tag, &before); /* what this thread allocates now is weights */
  expect(weir_allocator_allocate(memory, 4 * MIB, compute, &weights) == weir_ok,
         "4 MiB of weights");
  weir_tag_set_current(before, NULL);

  weir_fill(weights, 42, 4 * MIB, compute); /* in a real program this is a kernel */
  weir_event_record(filled, compute);
  weir_stream_wait(copies, filled);
  weir_copy(&first, weights, 1, copies);
  expect(weir_allocator_record_stream(memory, weights, copies) == weir_ok,
         "the allocator knows that the second stream uses them");
  weir_stream_synchronize(copies);
  expect(first == 42, "the second stream saw what the first wrote");
  print_stats("while it is live", memory);
  expect(weir_allocator_deallocate(memory, weights, compute) == weir_ok, "freed");

  weir_allocator_allocate(memory, 64 * KIB, compute, &weights);
  weir_allocator_deallocate(memory, weights, compute);
  weir_allocator_allocate(memory, 64 * KIB, compute, &again);
  expect(again == weights,
         "a block just freed comes back at once, without a lock or a driver call");
  weir_allocator_deallocate(memory, again, compute);

  weir_event_close(filled);
  weir_stream_close(copies);
  weir_stream_close(compute);
}

/* What a program keeps as long as there is room. */
typedef struct cache {
  weir_allocator* memory;
  void* block;
  int calls;
} cache;

static int32_t drop_cache(void* context, uint64_t needed) {
  cache* const kept = context;
  printf("   (asked to make room for %" PRIu64 " MiB)\n", needed / MIB);
  ++kept->calls;
  if (kept->block == NULL) return 0;
  weir_allocator_free(kept->memory, kept->block);
  kept->block = NULL;
  return 1;
}

static int32_t on_failure(void* context, weir_allocator* memory, uint64_t size, weir_error why) {
  (void)memory;
  (void)size;
  ++*(int*)context;
  printf("   (the handler is called: %s)\n", weir_error_name(why));
  return 0; /* it could also free something and answer 1, or not return at all */
}

static void run_out_of_memory(weir_allocator* memory) {
  cache kept = {memory, NULL, 0};
  weir_callback* registration = NULL;
  void* p = NULL;
  char why[600];
  int handler_calls = 0;

  printf("out of memory\n");
  weir_allocator_set_limit(memory, 64 * MIB);
  weir_allocator_allocate(memory, 40 * MIB, NULL, &kept.block);
  expect(
      weir_allocator_allocate(memory, 40 * MIB, NULL, &p) == weir_error_out_of_memory && p == NULL,
      "an error, and a null pointer");
  weir_allocator_explain(memory, 40 * MIB, NULL, why, sizeof why, NULL);
  printf("%s\n", why);

  weir_allocator_on_out_of_memory(memory, drop_cache, &kept, &registration);
  expect(weir_allocator_allocate(memory, 40 * MIB, NULL, &p) == weir_ok && kept.calls == 1,
         "a callback made room");
  weir_callback_close(registration);

  weir_allocator_set_out_of_memory_handler(memory, on_failure, &handler_calls);
  expect(weir_allocator_allocate(memory, 40 * MIB, NULL, &kept.block) == weir_error_out_of_memory &&
             handler_calls == 1,
         "and a handler is called before the request fails");
  weir_allocator_set_out_of_memory_handler(memory, NULL, NULL);
  weir_allocator_set_limit(memory, WEIR_NO_LIMIT);
  weir_allocator_deallocate(memory, p, NULL);
}

static void take_snapshot(weir_allocator* memory) {
  weir_snapshot* snapshot = NULL;
  weir_pool_info pool = {.struct_size = sizeof pool};
  weir_block_info blocks[8];
  uint64_t count = 0;
  uint64_t i;
  int live = 0;
  void* p = NULL;

  printf("a snapshot\n");
  weir_allocator_allocate(memory, 3 * MIB, NULL, &p);
  expect(weir_snapshot_take(memory, &snapshot) == weir_ok, "taken");
  weir_snapshot_get_pool(snapshot, 0, &pool);
  memset(blocks, 0, sizeof blocks);
  blocks[0].struct_size = sizeof blocks[0];
  weir_snapshot_get_blocks(snapshot, 0, 0, blocks, 8, &count);
  for (i = 0; i < count; ++i) {
    printf("   %#" PRIx64 " %8" PRIu64 " KiB, state %d\n", blocks[i].address, blocks[i].size / KIB,
           (int)blocks[i].state);
    if (blocks[i].state == weir_block_live && blocks[i].requested == 3 * MIB) ++live;
  }
  expect(live == 1, "our block is in it");
  weir_allocator_deallocate(memory, p, NULL);
  weir_snapshot_close(snapshot);
}

int main(void) {
  weir_runtime* machine = NULL;
  weir_allocator* memory = NULL;
  weir_runtime_info about = {.struct_size = sizeof about};
  void* p = NULL;

  if (weir_runtime_open("", &machine) != weir_ok ||
      weir_allocator_create(machine, 0, "heap_policy=balanced", &memory) != weir_ok) {
    fprintf(stderr, "%s\n", weir_last_error_message());
    return 1;
  }
  weir_runtime_get_info(machine, &about);
  printf("weir %s on %s\n", weir_version_text(), about.driver);

  allocate_and_free(machine, memory);
  run_out_of_memory(memory);
  take_snapshot(memory);

  printf("errors\n");
  expect(weir_allocator_deallocate(memory, &machine, NULL) == weir_error_foreign_pointer,
         "a pointer that is not the allocator's");
  expect(weir_allocator_close(memory) == weir_ok, "closed");
  expect(weir_allocator_allocate(memory, 1, NULL, &p) == weir_error_closed,
         "a handle that was closed, for good");
  weir_runtime_close(machine);
  return unexpected == 0 ? 0 : 1;
}

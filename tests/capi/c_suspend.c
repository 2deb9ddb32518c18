/* SPDX-License-Identifier: Apache-2.0 */
/* Suspended memory as a C program uses it. */
#include <stddef.h>
#include <string.h>

#include "c_tests.h"

enum { mib = 1 << 20 };

typedef struct steps {
  uint64_t count;
  uint64_t done;
  uint64_t total;
} steps;

static void note(void* context, uint64_t done, uint64_t total) {
  steps* const seen = context;
  ++seen->count;
  seen->done = done;
  seen->total = total;
}

const char* weir_test_suspended_memory(void) {
  weir_runtime* runtime = NULL;
  weir_allocator* memory = NULL;
  weir_stream* stream = NULL;
  weir_pool* pool = NULL;
  weir_suspend_options options = WEIR_SUSPEND_OPTIONS_INIT;
  weir_resume_options back = WEIR_RESUME_OPTIONS_INIT;
  weir_suspendable_options declared = WEIR_SUSPENDABLE_OPTIONS_INIT;
  weir_suspend_outcome gone;
  weir_resume_outcome here;
  weir_suspend_stats stats;
  steps seen = {0, 0, 0};
  void* weights = NULL;
  void* pooled = NULL;
  void* none = NULL;
  unsigned char last = 0;
  uint64_t released = 0;
  uint32_t tag = 0;
  uint32_t before = 0;
  int32_t away = -1;

  memset(&gone, 0, sizeof(gone));
  gone.struct_size = sizeof(gone);
  memset(&here, 0, sizeof(here));
  here.struct_size = sizeof(here);
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_allocator_create(runtime, 0, NULL, &memory));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_tag_named("weights of C", &tag));
  REQUIRE(weir_allocator_suspend_tag(memory, tag, NULL, NULL) == weir_error_not_found);
  REQUIRE_OK(weir_allocator_declare_suspendable(memory, tag, &declared));
  REQUIRE_OK(weir_allocator_reserve_backup(memory, 8 * mib, weir_backup_pinned));

  REQUIRE_OK(weir_tag_set_current(tag, &before));
  REQUIRE_OK(weir_allocator_allocate(memory, 8 * mib, stream, &weights));
  REQUIRE_OK(weir_fill(weights, 7, 8 * mib, stream));

  options.chunk = 2 * mib;
  options.progress = note;
  options.context = &seen;
  REQUIRE_OK(weir_allocator_suspend_tag(memory, tag, &options, &gone));
  REQUIRE(gone.released == 8 * mib && gone.saved == 8 * mib && gone.not_suspended == 0);
  REQUIRE(seen.count == 4 && seen.done == 8 * mib && seen.total == 8 * mib);
  REQUIRE_OK(weir_allocator_is_tag_suspended(memory, tag, &away));
  REQUIRE(away == 1);
  REQUIRE_OK(weir_allocator_get_tag_suspend_stats(memory, tag, &stats));
  REQUIRE(stats.suspended == 8 * mib && stats.backup.current == 8 * mib);
  REQUIRE_OK(weir_allocator_get_suspend_stats(memory, &stats));
  REQUIRE(stats.suspended == 8 * mib && stats.backup.current == 32 * mib);
  REQUIRE(weir_allocator_allocate(memory, 512, stream, &none) == weir_error_suspended);
  REQUIRE(none == NULL && weir_error_suspended == 35);
  REQUIRE_OK(weir_tag_set_current(before, NULL));

  back.progress = note;
  back.context = &seen;
  REQUIRE_OK(weir_allocator_resume_tag(memory, tag, &back, &here));
  REQUIRE(here.reserved == 8 * mib && here.restored == 8 * mib);
  REQUIRE(seen.count == 8 && seen.done == 8 * mib);
  REQUIRE_OK(weir_copy(&last, (char*)weights + 8 * mib - 1, 1, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(last == 7);
  REQUIRE_OK(weir_allocator_resume_tag(memory, tag, NULL, &here));
  REQUIRE(here.reserved == 0 && here.restored == 0);

  /* A pool, and then everything. */
  REQUIRE_OK(weir_pool_create_suspendable(memory, "apart", 0, NULL, &pool));
  REQUIRE_OK(weir_pool_allocate(pool, 4 * mib, 0, stream, &pooled));
  options.contents = weir_contents_discard;
  REQUIRE_OK(weir_pool_suspend(pool, &options, &gone));
  REQUIRE(gone.released == 4 * mib && gone.saved == 0);
  REQUIRE_OK(weir_pool_is_suspended(pool, &away));
  REQUIRE(away == 1);
  REQUIRE_OK(weir_pool_get_suspend_stats(pool, &stats));
  REQUIRE(stats.suspended == 4 * mib && stats.backup.current == 0);
  REQUIRE_OK(weir_pool_resume(pool, NULL, &here));
  REQUIRE(here.reserved == 4 * mib && here.restored == 0);
  REQUIRE_OK(weir_allocator_suspend(memory, NULL, &gone));
  REQUIRE(gone.released == 12 * mib && gone.saved == 12 * mib && gone.not_suspended == 0);
  REQUIRE_OK(weir_allocator_resume(memory, NULL, NULL));
  REQUIRE_OK(weir_allocator_trim_backup(memory, &released));
  REQUIRE(released == 32 * mib);

  REQUIRE_OK(weir_allocator_free(memory, weights));
  REQUIRE_OK(weir_allocator_free(memory, pooled));
  REQUIRE_OK(weir_pool_close(pool));
  REQUIRE_OK(weir_allocator_close(memory));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Growable memory as a C program uses it. */
#include <stddef.h>
#include <string.h>

#include "c_tests.h"

enum { mib = 1 << 20 };

typedef struct lender {
  weir_growable* growable;
  weir_stream* stream;
  uint64_t needed;
} lender;

static int32_t lend(void* context, uint64_t needed) {
  lender* const from = context;
  const weir_byte_range all = {0, 64 * mib};
  from->needed = needed;
  return weir_growable_decommit(from->growable, &all, 1, from->stream) == weir_ok;
}

const char* weir_test_growable_memory(void) {
  weir_runtime* runtime = NULL;
  weir_allocator* memory = NULL;
  weir_stream* stream = NULL;
  weir_growable* growable = NULL;
  weir_growable_plan* plan = NULL;
  weir_growable_hold* hold = NULL;
  weir_callback* callback = NULL;
  weir_growable_options options = WEIR_GROWABLE_OPTIONS_INIT;
  weir_growable_stats stats;
  weir_memory_stats counted;
  const weir_byte_range first = {1 * mib, 4 * mib};
  const weir_byte_range two[] = {{16 * mib, 4 * mib}, {32 * mib, 4 * mib}};
  const weir_byte_range beyond = {60 * mib, 8 * mib};
  lender from;
  void* address = NULL;
  void* block = NULL;
  uint64_t returned = 0;
  int32_t committed = -1;
  unsigned char last = 0;

  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  memset(&counted, 0, sizeof(counted));
  counted.struct_size = sizeof(counted);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_allocator_create(runtime, 0, NULL, &memory));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  options.page = 3 * mib;
  REQUIRE(weir_growable_reserve(memory, 64 * mib, &options, &growable) ==
          weir_error_invalid_argument);
  options.page = 4 * mib;
  options.name = "kv";
  REQUIRE_OK(weir_growable_reserve(memory, 64 * mib, &options, &growable));
  REQUIRE_OK(weir_growable_get_address(growable, &address));
  REQUIRE(address != NULL);

  REQUIRE_OK(weir_growable_commit(growable, &first, 1, stream));
  REQUIRE_OK(weir_growable_is_committed(growable, 0, 8 * mib, &committed));
  REQUIRE(committed == 1);
  REQUIRE_OK(weir_growable_is_committed(growable, 0, 9 * mib, &committed));
  REQUIRE(committed == 0);
  REQUIRE_OK(weir_fill(address, 7, 8 * mib, stream));
  REQUIRE_OK(weir_copy(&last, (char*)address + 8 * mib - 1, 1, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(last == 7);
  REQUIRE(weir_growable_commit(growable, &beyond, 1, stream) == weir_error_invalid_argument);
  REQUIRE(weir_growable_commit(growable, NULL, 1, stream) == weir_error_invalid_argument);

  REQUIRE_OK(weir_growable_prepare(growable, two, 2, &first, 1, stream, &plan));
  REQUIRE(weir_growable_close(growable) == weir_error_not_ready);
  REQUIRE_OK(weir_growable_plan_abort(plan));
  REQUIRE(weir_growable_plan_abort(plan) == weir_error_closed);
  REQUIRE_OK(weir_growable_prepare(growable, two, 2, NULL, 0, stream, &plan));
  REQUIRE_OK(weir_growable_plan_commit(plan));
  REQUIRE_OK(weir_growable_get_stats(growable, &stats));
  REQUIRE(stats.reserved == 64 * mib && stats.size == 64 * mib && stats.page == 4 * mib);
  REQUIRE(stats.committed.current == 16 * mib && stats.commits == 4 && stats.decommits == 0);

  REQUIRE_OK(weir_growable_commit_ahead(growable, 4 * mib, stream));
  REQUIRE_OK(weir_growable_get_stats(growable, &stats));
  REQUIRE(stats.ahead == 4 * mib);
  REQUIRE_OK(weir_growable_trim(growable, &returned));
  REQUIRE(returned == 4 * mib);
  REQUIRE_OK(weir_growable_resize(growable, 32 * mib, stream));
  REQUIRE_OK(weir_growable_get_stats(growable, &stats));
  REQUIRE(stats.size == 32 * mib && stats.committed.current == 12 * mib);
  REQUIRE_OK(weir_growable_resize(growable, 64 * mib, stream));

  REQUIRE_OK(weir_growable_hold_pages(growable, &hold));
  REQUIRE_OK(weir_growable_decommit(growable, two, 1, stream));
  REQUIRE_OK(weir_growable_get_stats(growable, &stats));
  REQUIRE(stats.held == 4 * mib && stats.committed.current == 8 * mib);
  REQUIRE_OK(weir_growable_hold_close(hold));
  REQUIRE_OK(weir_growable_get_stats(growable, &stats));
  REQUIRE(stats.held == 0);
  REQUIRE(weir_growable_tie_to_graph(growable, NULL) == weir_error_invalid_argument);

  REQUIRE_OK(weir_growable_suspend(growable, 1, &returned));
  REQUIRE(returned == 8 * mib);
  REQUIRE(weir_growable_trim(growable, NULL) == weir_error_suspended);
  REQUIRE_OK(weir_growable_get_stats(growable, &stats));
  REQUIRE(stats.suspended == 8 * mib && stats.committed.current == 0);
  REQUIRE_OK(weir_growable_resume(growable, stream));
  REQUIRE_OK(weir_copy(&last, address, 1, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(last == 7);

  from.growable = growable;
  from.stream = stream;
  from.needed = 0;
  REQUIRE_OK(weir_allocator_empty_cache(memory, NULL));
  REQUIRE_OK(weir_allocator_set_limit(memory, 16 * mib));
  REQUIRE_OK(weir_allocator_on_out_of_memory(memory, lend, &from, &callback));
  REQUIRE_OK(weir_allocator_allocate(memory, 12 * mib, stream, &block));
  REQUIRE(from.needed == 12 * mib);
  REQUIRE_OK(weir_allocator_get_stats(memory, &counted));
  REQUIRE(counted.allocated.current == 12 * mib);
  REQUIRE_OK(weir_allocator_deallocate(memory, block, stream));
  REQUIRE_OK(weir_callback_close(callback));

  REQUIRE_OK(weir_growable_close(growable));
  REQUIRE(weir_growable_close(growable) == weir_error_closed);
  REQUIRE_OK(weir_growable_close(NULL));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_allocator_close(memory));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

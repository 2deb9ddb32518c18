/* SPDX-License-Identifier: Apache-2.0 */
/* The caching allocator as a C program uses it. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_tests.h"

enum { mib = 1 << 20 };

/* A machine, an allocator and two streams. */
typedef struct fixture {
  weir_runtime* runtime;
  weir_allocator* memory;
  weir_stream* stream;
  weir_stream* other;
} fixture;

static const char* set_up(fixture* on) {
  memset(on, 0, sizeof(*on));
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &on->runtime));
  REQUIRE_OK(weir_allocator_create(on->runtime, 0, "heap_policy=balanced", &on->memory));
  REQUIRE_OK(weir_stream_create(on->runtime, 0, 0, 0, &on->stream));
  REQUIRE_OK(weir_stream_create(on->runtime, 0, 0, 0, &on->other));
  return NULL;
}

static const char* tear_down(fixture* on) {
  const uint64_t reported = weir_reported_errors();
  REQUIRE_OK(weir_runtime_close(on->runtime));
  REQUIRE_OK(weir_allocator_close(on->memory));
  REQUIRE(weir_allocator_close(on->memory) == weir_error_closed);
  REQUIRE_OK(weir_stream_close(on->stream));
  REQUIRE_OK(weir_stream_close(on->other));
  REQUIRE(weir_reported_errors() == reported); /* nothing was left behind */
  return NULL;
}

#define REQUIRE_DONE(call)               \
  do {                                   \
    const char* const failed_ = (call);  \
    if (failed_ != NULL) return failed_; \
  } while (0)

const char* weir_test_memory(void) {
  fixture on;
  void* p = NULL;
  void* q = NULL;
  void* native = NULL;
  uint64_t size = 0;
  int32_t device = -1;

  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_allocator_get_device(on.memory, &device));
  REQUIRE(device == 0);
  REQUIRE_OK(weir_stream_get_native(on.stream, &native));

  REQUIRE_OK(weir_allocator_allocate(on.memory, 1000, on.stream, &p));
  REQUIRE(p != NULL && (uintptr_t)p % 512 == 0);
  REQUIRE_OK(weir_allocator_size_of(on.memory, p, &size));
  REQUIRE(size == 1000);
  REQUIRE_OK(weir_fill(p, 7, 1000, on.stream));
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  /* The thread's cache: the same block, without a lock or a driver call. */
  REQUIRE_OK(weir_allocator_allocate(on.memory, 1000, on.stream, &q));
  REQUIRE(q == p);
  REQUIRE_OK(weir_allocator_record_stream(on.memory, q, on.other));
  {
    uint64_t recorded[2] = {0, 0};
    uint64_t other_number = 0;
    REQUIRE_OK(weir_stream_get_id(on.other, &other_number));
    REQUIRE_OK(weir_allocator_get_block_streams(on.memory, q, recorded, 2, &size));
    REQUIRE(size == 1 && recorded[0] == other_number && recorded[1] == 0);
    REQUIRE(weir_allocator_get_block_streams(on.memory, (char*)q + 1, NULL, 0, &size) ==
            weir_error_foreign_pointer);
  }
  REQUIRE_OK(weir_allocator_deallocate_sized(on.memory, q, 1000, on.stream));

  /* Only what is cached, what sizes are rounded to, and counters that begin anew. */
  REQUIRE_OK(weir_stream_synchronize(on.stream));
  REQUIRE_OK(weir_allocator_empty_cache(on.memory, NULL));
  REQUIRE(weir_allocator_allocate_cached(on.memory, 5000, on.stream, &q) == weir_error_not_found);
  REQUIRE(q == NULL);
  REQUIRE_OK(weir_allocator_allocate(on.memory, 5000, on.stream, &p));
  REQUIRE_OK(weir_allocator_free(on.memory, p));
  REQUIRE_OK(weir_allocator_allocate_cached(on.memory, 5000, on.stream, &q));
  REQUIRE(q == p);
  REQUIRE_OK(weir_allocator_free(on.memory, q));
  REQUIRE_OK(weir_allocator_rounded_size(5000, &size));
  REQUIRE(size == 5120);
  REQUIRE(weir_allocator_rounded_size(UINT64_MAX, &size) == weir_error_size_overflow);
  REQUIRE_OK(weir_segment_size(3 * mib, &size));
  REQUIRE(size == 20 * mib);
  {
    weir_memory_stats stats;
    memset(&stats, 0, sizeof(stats));
    stats.struct_size = sizeof(stats);
    REQUIRE_OK(weir_allocator_get_stats(on.memory, &stats));
    REQUIRE(stats.allocations >= 3);
    REQUIRE_OK(weir_allocator_reset_counters(on.memory));
    REQUIRE_OK(weir_allocator_get_stats(on.memory, &stats));
    REQUIRE(stats.allocations == 0 && stats.frees == 0 && stats.hits == 0);
  }

  REQUIRE_OK(weir_allocator_allocate(on.memory, 3 * mib, NULL, &p)); /* the legacy stream */
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, NULL));
  REQUIRE_OK(weir_allocator_allocate_aligned(on.memory, 100, 65536, on.stream, &p));
  REQUIRE((uintptr_t)p % 65536 == 0);
  REQUIRE_OK(weir_allocator_free(on.memory, p));
  REQUIRE_OK(weir_allocator_allocate_native(on.memory, 5000, native, &p));
  REQUIRE_OK(weir_allocator_record_stream_native(on.memory, p, NULL));
  REQUIRE_OK(weir_allocator_deallocate_native(on.memory, p, native));

  p = &on;
  REQUIRE_OK(weir_allocator_allocate(on.memory, 0, on.stream, &p)); /* zero bytes are null */
  REQUIRE(p == NULL);
  REQUIRE_OK(weir_allocator_deallocate(on.memory, NULL, on.stream));
  REQUIRE_OK(weir_allocator_free(on.memory, NULL));
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

const char* weir_test_memory_bad_input(void) {
  fixture on;
  weir_stream* elsewhere = NULL;
  weir_allocator* none = NULL;
  void* p = NULL;
  void* untouched = &on;
  uint64_t size = 0;

  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_stream_create(on.runtime, 1, 0, 0, &elsewhere));
  REQUIRE(weir_allocator_create(on.runtime, 0, "heap_policy=lavish", &none) ==
          weir_error_bad_option);
  REQUIRE(weir_allocator_create(on.runtime, 9, NULL, &none) == weir_error_no_device);
  REQUIRE(weir_allocator_create(on.runtime, 0, NULL, NULL) == weir_error_invalid_argument);
  REQUIRE(none == NULL);

  REQUIRE(weir_allocator_allocate(on.memory, 100, on.stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_allocator_allocate(on.memory, UINT64_MAX, on.stream, &untouched) ==
          weir_error_size_overflow);
  REQUIRE(untouched == NULL); /* an allocation that fails is null */
  REQUIRE(weir_allocator_allocate_aligned(on.memory, 100, 3, on.stream, &p) ==
          weir_error_bad_alignment);
  REQUIRE(weir_allocator_allocate(on.memory, 100, elsewhere, &p) == weir_error_bad_stream);

  REQUIRE_OK(weir_allocator_allocate(on.memory, 100, on.stream, &p));
  REQUIRE(weir_allocator_deallocate(on.memory, &on, on.stream) == weir_error_foreign_pointer);
  REQUIRE(weir_allocator_deallocate(on.memory, (char*)p + 1, on.stream) ==
          weir_error_foreign_pointer);
  REQUIRE(weir_allocator_deallocate(on.memory, p, elsewhere) == weir_error_bad_stream);
  REQUIRE(weir_allocator_size_of(on.memory, p, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_allocator_size_of(on.memory, &on, &size) == weir_error_foreign_pointer);
  REQUIRE(weir_allocator_record_stream(on.memory, &on, on.other) == weir_error_foreign_pointer);
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE(weir_allocator_deallocate(on.memory, p, on.stream) == weir_error_double_free);
  REQUIRE(weir_allocator_free(on.memory, p) == weir_error_double_free);
  REQUIRE_OK(weir_allocator_allocate(on.memory, 100, on.stream, &p));
  REQUIRE(weir_allocator_deallocate_sized(on.memory, p, 99, on.stream) ==
          weir_error_invalid_argument);
  REQUIRE(weir_allocator_free(on.memory, p) == weir_error_double_free); /* it was freed */

  /* A stream that was closed, and an allocator that was. */
  REQUIRE_OK(weir_stream_close(elsewhere));
  REQUIRE(weir_allocator_allocate(on.memory, 100, elsewhere, &p) == weir_error_closed);
  REQUIRE(weir_allocator_deallocate(on.memory, NULL, elsewhere) == weir_error_closed);
  none = on.memory;
  REQUIRE_DONE(tear_down(&on));
  p = &on;
  REQUIRE(weir_allocator_allocate(none, 100, NULL, &p) == weir_error_closed);
  REQUIRE(p == NULL);
  REQUIRE(weir_allocator_deallocate(none, &on, NULL) == weir_error_closed);
  return NULL;
}

const char* weir_test_blocks_and_counters(void) {
  fixture on;
  weir_memory_stats stats;
  weir_block_info block;
  weir_tag_stats tags[4];
  void* p = NULL;
  void* q = NULL;
  uint64_t count = 0;
  uint64_t length = 0;
  uint64_t id = 0;
  uint32_t tag = 0;
  char text[2048];

  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  memset(&block, 0, sizeof(block));
  block.struct_size = sizeof(block);
  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_tag_named("c blocks", &tag));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 1000, on.stream, &p));
  REQUIRE_OK(weir_tag_set_current(tag, NULL));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 3 * mib, on.stream, &q));
  REQUIRE_OK(weir_tag_set_current(0, NULL));
  REQUIRE_OK(weir_stream_get_id(on.stream, &id));

  REQUIRE_OK(weir_allocator_get_stats(on.memory, &stats));
  REQUIRE(stats.requested.current == 3 * mib + 1000 && stats.blocks.current == 2);
  REQUIRE(stats.allocated.current == 3 * mib + 1024 && stats.allocations == 2);
  REQUIRE(stats.hits + stats.heap_hits + stats.misses == 2 && stats.misses >= 1);
  REQUIRE(stats.active_blocks.current == 2);
  REQUIRE(stats.active_requested.current == 3 * mib + 1000);
  REQUIRE(stats.reserved.current >= stats.active.current);
  REQUIRE_OK(weir_allocator_get_tag_stats(on.memory, tag, &stats));
  REQUIRE(stats.requested.current == 3 * mib && stats.blocks.current == 1);
  REQUIRE(weir_allocator_get_tag_stats(on.memory, 60000, &stats) == weir_error_not_found);

  REQUIRE_OK(weir_allocator_get_stats_by_tag(on.memory, NULL, 0, &count));
  REQUIRE(count == 2);
  memset(tags, 0xee, sizeof(tags));
  tags[0].struct_size = sizeof(tags[0]);
  REQUIRE_OK(weir_allocator_get_stats_by_tag(on.memory, tags, 4, &count));
  REQUIRE(count == 2 && tags[0].tag == tag && tags[1].tag == 0);
  REQUIRE(tags[0].stats.requested.current == 3 * mib && tags[1].stats.requested.current == 1000);
  REQUIRE(tags[2].struct_size == 0xeeeeeeeeu); /* no more than there is */
  tags[0].struct_size = 4;
  REQUIRE(weir_allocator_get_stats_by_tag(on.memory, tags, 4, &count) == weir_error_bad_version);
  REQUIRE(weir_allocator_get_stats_by_tag(on.memory, NULL, 1, &count) ==
          weir_error_invalid_argument);
  REQUIRE(weir_allocator_get_stats_by_tag(on.memory, tags, 0, NULL) == weir_error_invalid_argument);

  /* By any address inside. */
  REQUIRE_OK(weir_allocator_find_block(on.memory, (char*)q + 2 * mib + 5, &block));
  REQUIRE(block.address == (uintptr_t)q && block.size == 3 * mib && block.requested == 3 * mib);
  REQUIRE(block.state == weir_block_live && block.stream == id && block.tag == tag);
  REQUIRE(block.pool == 0);
  REQUIRE_OK(weir_allocator_find_block(on.memory, p, &block));
  REQUIRE(block.requested == 1000 && block.size == 1024);
  REQUIRE(weir_allocator_find_block(on.memory, &on, &block) == weir_error_foreign_pointer);
  REQUIRE(weir_allocator_find_block(on.memory, p, NULL) == weir_error_invalid_argument);
  block.struct_size = 12;
  REQUIRE(weir_allocator_find_block(on.memory, p, &block) == weir_error_bad_version);

  REQUIRE_OK(weir_allocator_explain(on.memory, 1u << 30, on.stream, text, sizeof(text), &length));
  REQUIRE(length > 20 && strstr(text, "1 GiB") != NULL);
  REQUIRE_OK(weir_allocator_explain(on.memory, 1u << 30, NULL, NULL, 0, &length));
  REQUIRE_OK(weir_allocator_describe_address(on.memory, (char*)p + 3, text, sizeof(text), &length));
  REQUIRE(strstr(text, " is 3 bytes into a live block: 0x") != NULL);
  REQUIRE(weir_allocator_describe_address(on.memory, &on, NULL, 0, &length) ==
          weir_error_foreign_pointer);
  REQUIRE(weir_allocator_explain(on.memory, 1, NULL, NULL, 1, &length) ==
          weir_error_invalid_argument);

  REQUIRE_OK(weir_allocator_deallocate(on.memory, q, on.stream));
  REQUIRE_OK(weir_allocator_reset_peaks(on.memory));
  REQUIRE_OK(weir_allocator_get_stats(on.memory, &stats));
  REQUIRE(stats.requested.peak == 1000);
  REQUIRE(weir_allocator_get_stats(on.memory, NULL) == weir_error_invalid_argument);
  stats.struct_size = sizeof(stats) - 1;
  REQUIRE(weir_allocator_get_stats(on.memory, &stats) == weir_error_bad_version);
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

const char* weir_test_limits_and_release(void) {
  fixture on;
  void* p = NULL;
  uint64_t released = 0;
  uint64_t most = 0;
  uint32_t tag = 0;

  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 64 * mib, on.stream, &p));
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_OK(weir_stream_synchronize(on.stream));
  REQUIRE_OK(weir_allocator_empty_cache(on.memory, &released));
  REQUIRE(released >= 64 * mib);
  REQUIRE_OK(weir_allocator_empty_cache(on.memory, NULL));
  REQUIRE_OK(weir_allocator_trim(on.memory, 0, &released));
  REQUIRE(released == 0);

  REQUIRE_OK(weir_allocator_set_limit(on.memory, 32 * mib));
  REQUIRE_OK(weir_allocator_get_limit(on.memory, &most));
  REQUIRE(most == 32 * mib);
  REQUIRE(weir_allocator_allocate(on.memory, 64 * mib, on.stream, &p) == weir_error_out_of_memory);
  REQUIRE_OK(weir_allocator_set_limit(on.memory, WEIR_NO_LIMIT));
  REQUIRE_OK(weir_allocator_set_limit_fraction(on.memory, 0.5));
  REQUIRE_OK(weir_allocator_get_limit(on.memory, &most));
  REQUIRE(most == 512u * mib);
  REQUIRE(weir_allocator_set_limit_fraction(on.memory, 1.5) == weir_error_invalid_argument);
  REQUIRE(weir_allocator_get_limit(on.memory, NULL) == weir_error_invalid_argument);

  REQUIRE_OK(weir_tag_named("c limited", &tag));
  REQUIRE_OK(weir_allocator_set_tag_limit(on.memory, tag, 2 * mib));
  REQUIRE_OK(weir_tag_set_current(tag, NULL));
  REQUIRE(weir_allocator_allocate(on.memory, 4 * mib, on.stream, &p) == weir_error_out_of_memory);
  REQUIRE_OK(weir_tag_set_current(0, NULL));
  REQUIRE(weir_allocator_set_tag_limit(on.memory, 60000, 1) == weir_error_not_found);
  REQUIRE_OK(weir_allocator_release_stream(on.memory, on.other));
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

const char* weir_test_pools(void) {
  fixture on;
  weir_pool* pool = NULL;
  weir_pool* second = NULL;
  weir_memory_stats stats;
  weir_block_info block;
  void* p = NULL;
  void* q = NULL;
  uint64_t released = 0;
  uint32_t id = 0;

  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  memset(&block, 0, sizeof(block));
  block.struct_size = sizeof(block);
  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_pool_create(on.memory, "apart", weir_pool_for_graphs, &pool));
  REQUIRE_OK(weir_pool_create(on.memory, "second", 0, &second));
  REQUIRE_OK(weir_pool_get_id(pool, &id));
  REQUIRE(id != 0);
  REQUIRE_OK(weir_pool_allocate(pool, mib, 0, on.stream, &p));
  REQUIRE_OK(weir_allocator_find_block(on.memory, p, &block));
  REQUIRE(block.pool == id);
  REQUIRE_OK(weir_pool_get_stats(pool, &stats));
  REQUIRE(stats.requested.current == mib);

  /* By scope. */
  REQUIRE(weir_pool_leave() == weir_error_invalid_argument);
  REQUIRE_OK(weir_pool_enter(pool));
  REQUIRE_OK(weir_allocator_allocate(on.memory, mib, on.stream, &q));
  REQUIRE_OK(weir_allocator_find_block(on.memory, q, &block));
  REQUIRE(block.pool == id);
  REQUIRE_OK(weir_pool_enter(second));
  REQUIRE_OK(weir_allocator_free(on.memory, q));
  REQUIRE_OK(weir_pool_leave());
  REQUIRE_OK(weir_pool_leave());
  REQUIRE(weir_pool_leave() == weir_error_invalid_argument);

  /* Where it was. */
  REQUIRE_OK(weir_pool_allocate_at(pool, q, mib, on.stream));
  REQUIRE(weir_pool_allocate_at(pool, q, mib, on.stream) == weir_error_not_ready);
  REQUIRE(weir_pool_allocate_at(pool, (void*)512, mib, on.stream) == weir_error_foreign_pointer);
  REQUIRE_OK(weir_allocator_free(on.memory, q));
  REQUIRE_OK(weir_allocator_free(on.memory, p));
  REQUIRE_OK(weir_pool_empty_cache(pool, &released));
  REQUIRE(released >= 2 * mib);

  REQUIRE(weir_pool_create(on.memory, "x", 1u << 20, &pool) == weir_error_invalid_argument);
  REQUIRE(weir_pool_create(on.memory, NULL, 0, &pool) == weir_error_invalid_argument);
  REQUIRE(weir_pool_create(on.memory, "x", 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_pool_allocate(pool, 1, 5, on.stream, &p) == weir_error_bad_alignment);
  REQUIRE(weir_pool_allocate(pool, 1, 0, on.stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_pool_get_id(pool, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_pool_get_stats(pool, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_pool_close(pool));
  REQUIRE(weir_pool_close(pool) == weir_error_closed);
  REQUIRE(weir_pool_allocate(pool, 1, 0, on.stream, &p) == weir_error_closed);
  REQUIRE_DONE(tear_down(&on));
  REQUIRE(weir_pool_allocate(second, 1, 0, NULL, &p) == weir_error_closed);
  REQUIRE_OK(weir_pool_close(second));
  return NULL;
}

const char* weir_test_captures(void) {
  fixture on;
  weir_capture* capture = NULL;
  weir_capture* none = NULL;
  weir_capture_guard* notice = NULL;
  weir_pool* pool = NULL;
  weir_block_info block;
  void* p = NULL;
  uint32_t id = 0;

  memset(&block, 0, sizeof(block));
  block.struct_size = sizeof(block);
  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_capture_begin(on.memory, on.stream, &capture));
  REQUIRE_OK(weir_capture_get_pool(capture, &pool));
  REQUIRE_OK(weir_pool_get_id(pool, &id));
  REQUIRE(id != 0);
  REQUIRE_OK(weir_pool_allocate(pool, 1000, 0, on.stream, &p));
  REQUIRE_OK(weir_allocator_find_block(on.memory, p, &block));
  REQUIRE(block.pool == id);
  REQUIRE_OK(weir_capture_end(capture));
  REQUIRE_OK(weir_capture_end(capture));
  REQUIRE_OK(weir_allocator_free(on.memory, p));
  REQUIRE(weir_capture_tie_to_graph(capture, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_capture_get_pool(capture, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_capture_begin(on.memory, on.stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_capture_begin(NULL, on.stream, &none) == weir_error_invalid_argument);
  REQUIRE_OK(weir_pool_close(pool));
  REQUIRE_OK(weir_capture_close(capture));
  REQUIRE(weir_capture_end(capture) == weir_error_closed);

  REQUIRE_OK(weir_capture_guard_open(on.memory, &notice));
  REQUIRE(weir_capture_guard_open(on.memory, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_capture_guard_close(notice));
  REQUIRE(weir_capture_guard_close(notice) == weir_error_closed);
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

const char* weir_test_snapshots(void) {
  fixture on;
  weir_snapshot* snapshot = NULL;
  weir_snapshot* of_pool = NULL;
  weir_pool* pool = NULL;
  weir_snapshot_info info;
  weir_pool_info about;
  weir_physical_info* physical = NULL;
  struct {
    weir_block_info known;
    uint64_t from_the_future;
  } blocks[16];
  void* p = NULL;
  void* q = NULL;
  uint64_t count = 0;
  uint64_t live = 0;
  uint64_t i;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  memset(&about, 0, sizeof(about));
  about.struct_size = sizeof(about);
  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_pool_create(on.memory, "seen", 0, &pool));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 3 * mib, on.stream, &p));
  REQUIRE_OK(weir_pool_allocate(pool, 5 * mib, 0, on.stream, &q));
  REQUIRE_OK(weir_snapshot_take(on.memory, &snapshot));
  REQUIRE_OK(weir_snapshot_take_pool(pool, &of_pool));

  REQUIRE_OK(weir_snapshot_get_info(snapshot, &info));
  REQUIRE(info.device == 0 && info.pool_count == 2);
  REQUIRE(info.stats.struct_size == sizeof(info.stats));
  REQUIRE(info.stats.requested.current == 8 * mib);
  REQUIRE_OK(weir_snapshot_get_pool(snapshot, 1, &about));
  REQUIRE(strcmp(about.name, "seen") == 0 && about.stats.requested.current == 5 * mib);
  REQUIRE(about.block_count >= 1 && about.block_count <= 16 && about.physical_count >= 1);

  /* The array of a newer caller: as far apart as it says, and what is unknown is zero. */
  memset(blocks, 0xff, sizeof(blocks));
  blocks[0].known.struct_size = sizeof(blocks[0]);
  REQUIRE_OK(weir_snapshot_get_blocks(snapshot, 1, 0, &blocks[0].known, 16, &count));
  REQUIRE(count == about.block_count);
  for (i = 0; i < count; ++i) {
    REQUIRE(blocks[i].known.struct_size == sizeof(weir_block_info));
    REQUIRE(blocks[i].from_the_future == 0 && blocks[i].known.pool == about.id);
    if (blocks[i].known.state == weir_block_live) {
      ++live;
      REQUIRE(blocks[i].known.address == (uintptr_t)q && blocks[i].known.requested == 5 * mib);
    }
  }
  REQUIRE(live == 1);
  blocks[0].known.struct_size = sizeof(blocks[0]);
  REQUIRE_OK(
      weir_snapshot_get_blocks(snapshot, 1, about.block_count, &blocks[0].known, 16, &count));
  REQUIRE(count == 0);
  REQUIRE(weir_snapshot_get_blocks(snapshot, 2, 0, &blocks[0].known, 16, &count) ==
          weir_error_not_found);
  REQUIRE(weir_snapshot_get_blocks(snapshot, 0, 0, NULL, 1, &count) == weir_error_invalid_argument);
  REQUIRE(weir_snapshot_get_blocks(snapshot, 0, 0, NULL, 0, NULL) == weir_error_invalid_argument);

  physical = calloc((size_t)about.physical_count, sizeof(*physical));
  REQUIRE(physical != NULL);
  physical[0].struct_size = sizeof(physical[0]);
  REQUIRE_OK(weir_snapshot_get_physical(snapshot, 1, 0, physical, about.physical_count, &count));
  live = 0;
  for (i = 0; i < count; ++i) live += physical[i].size;
  free(physical);
  REQUIRE(live == about.stats.reserved.current);

  REQUIRE_OK(weir_snapshot_get_info(of_pool, &info));
  REQUIRE(info.pool_count == 1 && info.stats.requested.current == 5 * mib);
  REQUIRE(weir_snapshot_get_pool(snapshot, 2, &about) == weir_error_not_found);
  REQUIRE(weir_snapshot_get_pool(snapshot, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_snapshot_take(on.memory, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_snapshot_take_pool(pool, NULL) == weir_error_invalid_argument);
  info.struct_size = 16;
  REQUIRE(weir_snapshot_get_info(snapshot, &info) == weir_error_bad_version);

  REQUIRE_OK(weir_allocator_free(on.memory, p));
  REQUIRE_OK(weir_allocator_free(on.memory, q));
  REQUIRE_OK(weir_pool_close(pool));
  REQUIRE_DONE(tear_down(&on));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_snapshot_get_info(snapshot, &info)); /* it does not change */
  REQUIRE_OK(weir_snapshot_close(snapshot));
  REQUIRE_OK(weir_snapshot_close(of_pool));
  REQUIRE(weir_snapshot_get_info(snapshot, &info) == weir_error_closed);
  return NULL;
}

const char* weir_test_recording(void) {
  fixture on;
  weir_recorder* recorder = NULL;
  weir_recorder* second = NULL;
  weir_recorder_options options;
  weir_recorder_stats stats;
  void* p = NULL;
  FILE* file = NULL;
  char path[512];
  char other[512];
  uint64_t written = 0;

  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.program = "c test";
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  snprintf(path, sizeof(path), "%s/1.weirtrace", weir_test_folder());
  snprintf(other, sizeof(other), "%s/2.weirtrace", weir_test_folder());
  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_recorder_start(on.memory, path, &options, &recorder));
  REQUIRE_OK(weir_recorder_marker(recorder, "here"));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 1000, on.stream, &p));
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_OK(weir_recorder_flush(recorder));
  REQUIRE_OK(weir_recorder_get_stats(recorder, &stats));
  REQUIRE(stats.written >= 3 && stats.dropped == 0 && stats.file_size > 0 && stats.reserved == 0);

  /* Two record at once; stopping one leaves the other alone. */
  REQUIRE_OK(weir_recorder_start(on.memory, other, NULL, &second));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 1000, on.stream, &p));
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_OK(weir_recorder_flush(recorder));
  written = stats.written;
  REQUIRE_OK(weir_recorder_get_stats(recorder, &stats));
  REQUIRE(stats.written >= written + 2);
  REQUIRE_OK(weir_recorder_close(recorder));
  REQUIRE(weir_recorder_close(recorder) == weir_error_closed);
  REQUIRE(weir_recorder_marker(recorder, "late") == weir_error_closed);
  REQUIRE_OK(weir_allocator_allocate(on.memory, 1000, on.stream, &p));
  REQUIRE_OK(weir_recorder_flush(second));
  REQUIRE_OK(weir_recorder_get_stats(second, &stats));
  REQUIRE(stats.written >= 3);
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  file = fopen(path, "rb");
  REQUIRE(file != NULL);
  fclose(file);

  options.flags = 1u << 9;
  REQUIRE(weir_recorder_start(on.memory, path, &options, &recorder) == weir_error_invalid_argument);
  options.flags = 0;
  options.struct_size = 3;
  REQUIRE(weir_recorder_start(on.memory, path, &options, &recorder) == weir_error_bad_version);
  REQUIRE(weir_recorder_start(on.memory, NULL, NULL, &recorder) == weir_error_invalid_argument);
  REQUIRE(weir_recorder_start(on.memory, path, NULL, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_recorder_start(on.memory, "/no/such/folder/x.weirtrace", NULL, &recorder) ==
          weir_error_system);
  REQUIRE(weir_recorder_marker(second, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_recorder_get_stats(second, NULL) == weir_error_invalid_argument);
  REQUIRE_DONE(tear_down(&on)); /* the allocator's handle may go first */
  REQUIRE_OK(weir_recorder_close(second));
  return NULL;
}

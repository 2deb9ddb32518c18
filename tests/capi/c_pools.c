/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's pools and pools of blocks as a C program uses them. */
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "c_tests.h"

enum { mib = 1 << 20 };

const char* weir_test_stream_pools(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_stream_pool* pool = NULL;
  weir_stream_pool* standard = NULL;
  weir_stream_pool* imported = NULL;
  weir_stream_pool_config config = WEIR_STREAM_POOL_CONFIG_INIT;
  weir_stream_pool_stats stats;
  void* p = NULL;
  void* same = NULL;
  void* native = NULL;
  uint8_t bytes[64];
  uint64_t value = 0;
  int32_t descriptor = -1;
  int32_t rights = -1;

  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  config.initial = 32 * mib;
  config.max = 128 * mib;
  config.flags = weir_stream_pool_posix_descriptor | weir_stream_pool_no_opportunistic;
  REQUIRE_OK(weir_stream_pool_create(runtime, 0, &config, &pool));
  REQUIRE_OK(weir_stream_pool_get_native(pool, &native));
  REQUIRE(native != NULL);
  REQUIRE_OK(weir_stream_pool_get_attribute(pool, weir_stream_pool_reuse_opportunistic, &value));
  REQUIRE(value == 0);
  REQUIRE_OK(weir_stream_pool_set_attribute(pool, weir_stream_pool_reuse_opportunistic, 1));
  REQUIRE_OK(weir_stream_pool_get_attribute(pool, weir_stream_pool_reuse_opportunistic, &value));
  REQUIRE(value == 1);

  REQUIRE_OK(weir_stream_pool_allocate(pool, 10 * mib, 0, stream, &p));
  REQUIRE(p != NULL);
  REQUIRE_OK(weir_fill(p, 1, 10 * mib, stream));
  REQUIRE_OK(weir_stream_pool_get_stats(pool, &stats));
  REQUIRE(stats.used.current == 10 * mib && stats.allocations.current == 1);
  REQUIRE(stats.allocated == 10 * mib && stats.reserved.current >= 32 * mib);

  /* To another process: here the same one plays both. */
  REQUIRE_OK(weir_stream_pool_export(pool, &descriptor));
  REQUIRE(descriptor >= 0);
  REQUIRE_OK(weir_stream_pool_export_pointer(pool, p, bytes));
  REQUIRE_OK(weir_stream_pool_import(runtime, 0, descriptor, &imported));
  REQUIRE_OK(weir_stream_pool_import_pointer(imported, bytes, stream, &same, &value));
  REQUIRE(same != NULL);
  REQUIRE(weir_stream_pool_allocate(imported, 1, 0, stream, &native) == weir_error_not_supported);
  REQUIRE_OK(weir_stream_pool_deallocate_sized(imported, same, value, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_stream_pool_close(imported, NULL));
  close(descriptor);

  REQUIRE_OK(weir_stream_pool_get_peer(pool, 1, &rights));
  REQUIRE(rights == 0);
  REQUIRE_OK(weir_stream_pool_set_peer(pool, 1, 1));
  REQUIRE_OK(weir_stream_pool_get_peer(pool, 1, &rights));
  REQUIRE(rights == weir_read_write);
  REQUIRE_OK(weir_stream_pool_set_peer(pool, 1, 0));
  REQUIRE_OK(weir_stream_pool_get_peer(pool, 1, &rights));
  REQUIRE(rights == 0);
  REQUIRE_OK(weir_stream_pool_get_device(pool, &rights));
  REQUIRE(rights == 0);
  REQUIRE_OK(weir_stream_pool_record_stream(pool, p, NULL));
  REQUIRE(weir_stream_pool_record_stream(pool, &rights, NULL) == weir_error_foreign_pointer);
  REQUIRE_OK(weir_stream_pool_deallocate(pool, p, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_stream_pool_reset_peaks(pool));
  REQUIRE_OK(weir_stream_pool_get_stats(pool, &stats));
  REQUIRE(stats.used.peak == 0 && stats.allocations.peak == 0 && stats.allocated == 0);
  REQUIRE_OK(weir_stream_pool_get_attribute(pool, weir_stream_pool_reserved_peak, &value));
  REQUIRE(value == stats.reserved.current);
  REQUIRE_OK(weir_stream_pool_trim(pool, 0, &value));
  REQUIRE(value >= 32 * mib);

  REQUIRE_OK(weir_stream_pool_open_default(runtime, 0, &standard));
  REQUIRE_OK(weir_stream_pool_allocate(standard, 100, 0, NULL, &p));
  REQUIRE_OK(weir_stream_pool_deallocate_sized(standard, p, 100, NULL));
  REQUIRE_OK(weir_stream_pool_close(standard, &value));
  REQUIRE(value == 0);
  REQUIRE(weir_stream_pool_close(standard, NULL) == weir_error_closed);

  REQUIRE_OK(weir_stream_pool_close(pool, &value));
  REQUIRE(value == 0);
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

const char* weir_test_stream_pools_bad_input(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_stream_pool* pool = NULL;
  weir_stream_pool* none = NULL;
  weir_stream_pool_config config = WEIR_STREAM_POOL_CONFIG_INIT;
  struct {
    weir_stream_pool_config known;
    uint64_t from_the_future;
  } newer;
  weir_stream_pool_stats stats;
  uint8_t bytes[64] = {0};
  uint64_t value = 0;
  int32_t descriptor = -1;
  void* p = NULL;

  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_stream_pool_create(runtime, 0, NULL, &pool));
  config.max = mib;
  config.initial = 2 * mib;
  REQUIRE(weir_stream_pool_create(runtime, 0, &config, &none) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_config_validate(&config) == weir_error_invalid_argument);
  config.initial = mib;
  REQUIRE_OK(weir_stream_pool_config_validate(&config));
  config.initial = 2 * mib;
  config.flags = 1u << 31;
  REQUIRE(weir_stream_pool_create(runtime, 0, &config, &none) == weir_error_invalid_argument);
  config.struct_size = 8;
  REQUIRE(weir_stream_pool_create(runtime, 0, &config, &none) == weir_error_bad_version);
  REQUIRE(weir_stream_pool_create(runtime, 0, NULL, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_create(runtime, 7, NULL, &none) == weir_error_no_device);

  /* What a newer program says in a member that this library does not know must not be lost. */
  memset(&newer, 0, sizeof(newer));
  newer.known.struct_size = sizeof(newer);
  newer.known.threshold = WEIR_NO_LIMIT;
  REQUIRE_OK(weir_stream_pool_create(runtime, 0, &newer.known, &none));
  REQUIRE_OK(weir_stream_pool_close(none, NULL));
  newer.from_the_future = 1;
  REQUIRE(weir_stream_pool_create(runtime, 0, &newer.known, &none) == weir_error_bad_version);

  REQUIRE(weir_stream_pool_open_default(runtime, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_import(runtime, 0, -1, &none) != weir_ok);
  REQUIRE(weir_stream_pool_import(runtime, 0, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_allocate(pool, 2048ull * mib, 0, stream, &p) ==
          weir_error_out_of_memory);
  REQUIRE(p == NULL);
  REQUIRE(weir_stream_pool_allocate(pool, 1, 3, stream, &p) == weir_error_bad_alignment);
  REQUIRE(weir_stream_pool_allocate(pool, 1, 0, stream, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_stream_pool_allocate(pool, 0, 0, stream, &p));
  REQUIRE(p == NULL);
  REQUIRE(weir_stream_pool_deallocate(pool, &value, stream) == weir_error_foreign_pointer);
  REQUIRE(weir_stream_pool_deallocate_sized(pool, &value, 1, stream) == weir_error_foreign_pointer);
  REQUIRE_OK(weir_stream_pool_deallocate(pool, NULL, stream));
  REQUIRE_OK(weir_stream_pool_allocate(pool, 100, 0, stream, &p));
  REQUIRE_OK(weir_stream_pool_deallocate(pool, p, stream));
  REQUIRE(weir_stream_pool_deallocate(pool, p, stream) == weir_error_double_free);
  REQUIRE(weir_stream_pool_deallocate_sized(pool, p, 100, stream) == weir_error_double_free);
  REQUIRE_OK(weir_stream_pool_allocate(pool, 100, 0, stream, &p));
  REQUIRE(weir_stream_pool_deallocate_sized(pool, p, 99, stream) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_get_attribute(pool, 0, &value) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_get_attribute(pool, 9, &value) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_get_attribute(pool, 1, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_set_attribute(pool, weir_stream_pool_reserved, 1) ==
          weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_get_native(pool, NULL) == weir_error_invalid_argument);
  stats.struct_size = 1;
  REQUIRE(weir_stream_pool_get_stats(pool, &stats) == weir_error_bad_version);
  REQUIRE(weir_stream_pool_set_peer(pool, 5, 1) == weir_error_no_device);
  REQUIRE(weir_stream_pool_get_peer(pool, 5, &descriptor) == weir_error_no_device);
  REQUIRE(weir_stream_pool_get_peer(pool, 1, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_export(pool, &descriptor) == weir_error_not_supported);
  REQUIRE(weir_stream_pool_export(pool, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_export_pointer(pool, p, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_import_pointer(pool, bytes, stream, &p, &value) ==
          weir_error_not_supported);
  REQUIRE(weir_stream_pool_import_pointer(pool, NULL, stream, &p, &value) ==
          weir_error_invalid_argument);

  /* What is still live is reported. */
  REQUIRE_OK(weir_stream_pool_allocate(pool, 100, 0, stream, &p));
  REQUIRE_OK(weir_stream_pool_close(pool, &value));
  REQUIRE(value == 100);
  REQUIRE(weir_stream_pool_deallocate(pool, p, stream) == weir_error_closed);
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

static const char* test_block_pool(weir_runtime* runtime, weir_block_pool* pool) {
  weir_stream* stream = NULL;
  weir_stream* other = NULL;
  weir_block_pool_stats stats;
  void* p = NULL;
  void* q = NULL;
  uint64_t released = 0;

  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &other));
  REQUIRE_OK(weir_block_pool_allocate(pool, 4 * mib, 0, stream, &p));
  REQUIRE_OK(weir_block_pool_free(pool, p));
  REQUIRE_OK(weir_block_pool_empty_cache(pool, &released));
  REQUIRE(released == 4 * mib);
  REQUIRE_OK(weir_block_pool_allocate(pool, mib, 0, stream, &p));
  REQUIRE_OK(weir_block_pool_record_stream(pool, p, other));
  REQUIRE_OK(weir_block_pool_deallocate(pool, p, stream));
  REQUIRE(weir_block_pool_deallocate(pool, p, stream) == weir_error_double_free);
  REQUIRE(weir_block_pool_free(pool, &p) == weir_error_foreign_pointer);
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_stream_synchronize(other));
  REQUIRE_OK(weir_block_pool_allocate(pool, mib, 0, stream, &q));
  REQUIRE_OK(weir_block_pool_free(pool, q));
  REQUIRE_OK(weir_block_pool_allocate(pool, 0, 0, stream, &q));
  REQUIRE(q == NULL);
  REQUIRE_OK(weir_block_pool_release_stream(pool, other));
  REQUIRE_OK(weir_block_pool_get_stats(pool, &stats));
  REQUIRE(stats.allocations == 3 && stats.frees == 3 && stats.hits == 1 && stats.misses == 2);
  REQUIRE(stats.requested.current == 0 && stats.requested.peak == 4 * mib);
  REQUIRE(stats.allocated.current == 0 && stats.allocated.peak == 4 * mib);
  REQUIRE(stats.reserved.current == mib && stats.reserved.peak == 4 * mib);
  REQUIRE(stats.blocks.current == 0 && stats.blocks.peak == 1 && stats.cached == mib);
  REQUIRE_OK(weir_block_pool_reset_peaks(pool));
  REQUIRE_OK(weir_block_pool_get_stats(pool, &stats));
  REQUIRE(stats.requested.peak == 0 && stats.allocated.peak == 0 && stats.blocks.peak == 0);
  REQUIRE(stats.reserved.peak == mib && stats.allocations == 3);
  REQUIRE_OK(weir_block_pool_reset_counters(pool));
  REQUIRE_OK(weir_block_pool_get_stats(pool, &stats));
  REQUIRE(stats.allocations == 0 && stats.frees == 0 && stats.hits == 0 && stats.misses == 0);
  REQUIRE(stats.cached == mib && stats.reserved.current == mib);
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_block_pool_trim(pool, WEIR_NO_LIMIT, &released));
  REQUIRE(released == 0);
  REQUIRE_OK(weir_block_pool_trim(pool, 0, NULL));
  REQUIRE_OK(weir_block_pool_allocate(pool, mib, 0, stream, &p));
  REQUIRE_OK(weir_block_pool_free(pool, p));
  REQUIRE_OK(weir_block_pool_empty_cache(pool, &released));
  REQUIRE(released == mib);
  REQUIRE_OK(weir_block_pool_get_stats(pool, &stats));
  REQUIRE(stats.cached == 0 && stats.reserved.current == 0);
  REQUIRE_OK(weir_block_pool_set_threshold(pool, 0));

  REQUIRE(weir_block_pool_allocate(pool, 1, 3, stream, &p) == weir_error_bad_alignment);
  REQUIRE(weir_block_pool_allocate(pool, UINT64_MAX, 0, stream, &p) == weir_error_size_overflow);
  REQUIRE(weir_block_pool_allocate(pool, 1, 0, stream, NULL) == weir_error_invalid_argument);
  stats.struct_size = 0;
  REQUIRE(weir_block_pool_get_stats(pool, &stats) == weir_error_bad_version);
  REQUIRE_OK(weir_block_pool_close(pool));
  REQUIRE(weir_block_pool_close(pool) == weir_error_closed);
  REQUIRE(weir_block_pool_allocate(pool, 1, 0, stream, &p) == weir_error_closed);
  REQUIRE_OK(weir_stream_close(other));
  REQUIRE_OK(weir_stream_close(stream));
  return NULL;
}

/* A source that hands out parts of one block of the driver's, and counts. */
typedef struct slab {
  char* memory;
  uint64_t used;
  int refusals;
  int live;
} slab;

static weir_error take_part(void* context, uint64_t size, void* native_stream, void** memory) {
  slab* const from = context;
  (void)native_stream;
  if (from->refusals > 0) {
    --from->refusals;
    return weir_error_not_permitted;
  }
  *memory = from->memory + from->used;
  from->used += (size + 511) / 512 * 512;
  ++from->live;
  return weir_ok;
}

static weir_error give_part(void* context, void* memory, uint64_t size) {
  slab* const from = context;
  (void)memory;
  (void)size;
  --from->live;
  return weir_ok;
}

static const char* test_sources(weir_runtime* runtime) {
  weir_allocator* allocator = NULL;
  weir_block_pool* bins = NULL;
  weir_pool* segments = NULL;
  weir_buffer* whole = NULL;
  weir_buffer* owner = NULL;
  weir_buffer_info info;
  weir_block_pool_options options = WEIR_BLOCK_POOL_OPTIONS_INIT;
  weir_memory_source source;
  slab part = {NULL, 0, 0, 0};
  uint64_t size = 0;
  int32_t device = -1;
  void* p = NULL;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  memset(&source, 0, sizeof(source));
  source.struct_size = sizeof(source);
  source.context = &part;
  REQUIRE(weir_bin_pool_create_from_source(runtime, 0, NULL, &source, &bins) ==
          weir_error_invalid_argument);
  REQUIRE(weir_bin_pool_create_from_source(runtime, 0, NULL, NULL, &bins) ==
          weir_error_invalid_argument);
  source.allocate = take_part;
  source.deallocate = give_part;
  REQUIRE_OK(weir_buffer_create_plain(runtime, 0, 64 * mib, &whole));
  REQUIRE_OK(weir_buffer_get_info(whole, &info));
  part.memory = info.data;

  options.threshold = mib;
  options.flags = weir_block_pool_declared_uses;
  REQUIRE_OK(weir_bin_pool_create_from_source(runtime, 0, &options, &source, &bins));
  REQUIRE_OK(weir_block_pool_get_device(bins, &device));
  REQUIRE(device == 0);
  REQUIRE_OK(weir_block_pool_get_threshold(bins, &size));
  REQUIRE(size == mib);
  REQUIRE_OK(weir_block_pool_rounded_size(100000, &size));
  REQUIRE(size == 106496);
  REQUIRE_OK(weir_block_pool_allocate(bins, 1000, 0, NULL, &p));
  REQUIRE(p == part.memory && part.live == 1);
  REQUIRE_OK(weir_block_pool_free(bins, p));
  REQUIRE_OK(weir_buffer_create_pooled(bins, 1000, weir_buffer_zeroed, NULL, &owner));
  REQUIRE_OK(weir_buffer_get_info(owner, &info));
  REQUIRE(info.data == p && info.size == 1000);
  REQUIRE_OK(weir_buffer_record_stream(owner, NULL));
  REQUIRE_OK(weir_buffer_close(owner));
  part.refusals = 1;
  REQUIRE(weir_block_pool_allocate(bins, 5000, 0, NULL, &p) == weir_error_not_permitted);
  REQUIRE_OK(weir_block_pool_close(bins));
  REQUIRE(part.live == 0);
  options.flags = 1u << 31;
  REQUIRE(weir_bin_pool_create(runtime, 0, &options, &bins) == weir_error_invalid_argument);

  REQUIRE_OK(weir_allocator_create(runtime, 0, NULL, &allocator));
  REQUIRE_OK(weir_pool_create_from_source(allocator, "slab", &source, 0, &segments));
  REQUIRE_OK(weir_pool_allocate(segments, 1000, 0, NULL, &p));
  REQUIRE((char*)p >= part.memory && (char*)p < part.memory + 64 * mib && part.live == 1);
  REQUIRE_OK(weir_allocator_free(allocator, p));
  REQUIRE_OK(weir_pool_close(segments));
  REQUIRE_OK(weir_allocator_empty_cache(allocator, NULL));
  REQUIRE_OK(weir_allocator_close(allocator));
  REQUIRE(part.live == 0);
  REQUIRE_OK(weir_buffer_close(whole));
  return NULL;
}

const char* weir_test_block_pools(void) {
  weir_runtime* runtime = NULL;
  weir_block_pool* bins = NULL;
  weir_block_pool* pinned = NULL;
  const char* failed = NULL;
  void* p = NULL;

  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_bin_pool_create(runtime, 0, NULL, &bins));
  failed = test_block_pool(runtime, bins);
  if (failed != NULL) return failed;
  REQUIRE_OK(weir_pinned_pool_create(runtime, 0, NULL, &pinned));
  REQUIRE_OK(weir_block_pool_allocate(pinned, 100, 0, NULL, &p));
  memset(p, 1, 100); /* the host may write it */
  REQUIRE_OK(weir_block_pool_free(pinned, p));
  REQUIRE_OK(weir_block_pool_close(pinned));
  REQUIRE_OK(weir_pinned_pool_create(runtime, 0, NULL, &pinned));
  failed = test_block_pool(runtime, pinned);
  if (failed != NULL) return failed;
  failed = test_sources(runtime);
  if (failed != NULL) return failed;
  REQUIRE(weir_bin_pool_create(runtime, 0, NULL, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_pinned_pool_create(runtime, 2, NULL, &pinned) == weir_error_no_device);
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

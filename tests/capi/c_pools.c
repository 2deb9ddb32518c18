/* The driver's pools, pools of blocks, and buffers as a C program uses them. */
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
  weir_stream_pool_usage usage;
  void* p = NULL;
  void* same = NULL;
  void* native = NULL;
  uint8_t bytes[64];
  uint64_t value = 0;
  int32_t descriptor = -1;

  memset(&usage, 0, sizeof(usage));
  usage.struct_size = sizeof(usage);
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
  REQUIRE_OK(weir_stream_pool_get_usage(pool, &usage));
  REQUIRE(usage.used.current == 10 * mib && usage.allocations.current == 1);
  REQUIRE(usage.allocated == 10 * mib && usage.reserved.current >= 32 * mib);

  /* To another process: here the same one plays both. */
  REQUIRE_OK(weir_stream_pool_export(pool, &descriptor));
  REQUIRE(descriptor >= 0);
  REQUIRE_OK(weir_stream_pool_export_pointer(pool, p, bytes));
  REQUIRE_OK(weir_stream_pool_import(runtime, 0, descriptor, &imported));
  REQUIRE_OK(weir_stream_pool_import_pointer(imported, bytes, stream, &same, &value));
  REQUIRE(same != NULL);
  REQUIRE(weir_stream_pool_allocate(imported, 1, 0, stream, &native) == weir_error_not_supported);
  REQUIRE_OK(weir_stream_pool_deallocate(imported, same, value, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_stream_pool_close(imported, NULL));
  close(descriptor);

  REQUIRE_OK(weir_stream_pool_set_peer(pool, 1, 1));
  REQUIRE_OK(weir_stream_pool_set_peer(pool, 1, 0));
  REQUIRE_OK(weir_stream_pool_deallocate(pool, p, 10 * mib, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_stream_pool_reset_peaks(pool));
  REQUIRE_OK(weir_stream_pool_get_usage(pool, &usage));
  REQUIRE(usage.used.peak == 0);
  REQUIRE_OK(weir_stream_pool_trim(pool, 0, &value));
  REQUIRE(value >= 32 * mib);

  REQUIRE_OK(weir_stream_pool_open_default(runtime, 0, &standard));
  REQUIRE_OK(weir_stream_pool_allocate(standard, 100, 0, NULL, &p));
  REQUIRE_OK(weir_stream_pool_deallocate(standard, p, 100, NULL));
  REQUIRE_OK(weir_stream_pool_close(standard, &value));
  REQUIRE(value == 0);
  REQUIRE(weir_stream_pool_close(standard, NULL) == weir_error_already_freed);

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
  weir_stream_pool_usage usage;
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
  REQUIRE(weir_stream_pool_deallocate(pool, &value, 1, stream) == weir_error_foreign_pointer);
  REQUIRE_OK(weir_stream_pool_allocate(pool, 100, 0, stream, &p));
  REQUIRE_OK(weir_stream_pool_deallocate(pool, p, 100, stream));
  REQUIRE(weir_stream_pool_deallocate(pool, p, 100, stream) == weir_error_double_free);
  REQUIRE(weir_stream_pool_get_attribute(pool, 0, &value) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_get_attribute(pool, 9, &value) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_get_attribute(pool, 1, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_set_attribute(pool, weir_stream_pool_reserved, 1) ==
          weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_get_native(pool, NULL) == weir_error_invalid_argument);
  usage.struct_size = 1;
  REQUIRE(weir_stream_pool_get_usage(pool, &usage) == weir_error_bad_version);
  REQUIRE(weir_stream_pool_set_peer(pool, 5, 1) == weir_error_no_device);
  REQUIRE(weir_stream_pool_export(pool, &descriptor) == weir_error_not_supported);
  REQUIRE(weir_stream_pool_export(pool, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_export_pointer(pool, p, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_pool_import_pointer(pool, bytes, stream, &p, &value) ==
          weir_error_not_supported);
  REQUIRE(weir_stream_pool_import_pointer(pool, NULL, stream, &p, &value) ==
          weir_error_invalid_argument);

  /* What is left is told. */
  REQUIRE_OK(weir_stream_pool_allocate(pool, 100, 0, stream, &p));
  REQUIRE_OK(weir_stream_pool_close(pool, &value));
  REQUIRE(value == 100);
  REQUIRE(weir_stream_pool_deallocate(pool, p, 100, stream) == weir_error_already_freed);
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
  REQUIRE(stats.allocations == 2 && stats.frees == 2 && stats.blocks.current == 0);
  REQUIRE(stats.requested.peak == mib && stats.cached >= mib);
  REQUIRE_OK(weir_block_pool_reset_peaks(pool));
  REQUIRE_OK(weir_block_pool_get_stats(pool, &stats));
  REQUIRE(stats.requested.peak == 0);
  REQUIRE_OK(weir_block_pool_trim(pool, 0, &released));
  REQUIRE(released >= mib);
  REQUIRE_OK(weir_block_pool_set_threshold(pool, 0));

  REQUIRE(weir_block_pool_allocate(pool, 1, 3, stream, &p) == weir_error_bad_alignment);
  REQUIRE(weir_block_pool_allocate(pool, UINT64_MAX, 0, stream, &p) == weir_error_size_overflow);
  REQUIRE(weir_block_pool_allocate(pool, 1, 0, stream, NULL) == weir_error_invalid_argument);
  stats.struct_size = 0;
  REQUIRE(weir_block_pool_get_stats(pool, &stats) == weir_error_bad_version);
  REQUIRE_OK(weir_block_pool_close(pool));
  REQUIRE(weir_block_pool_close(pool) == weir_error_already_freed);
  REQUIRE(weir_block_pool_allocate(pool, 1, 0, stream, &p) == weir_error_already_freed);
  REQUIRE_OK(weir_stream_close(other));
  REQUIRE_OK(weir_stream_close(stream));
  return NULL;
}

const char* weir_test_block_pools(void) {
  weir_runtime* runtime = NULL;
  weir_block_pool* bins = NULL;
  weir_block_pool* pinned = NULL;
  const char* failed = NULL;
  void* p = NULL;

  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_bin_pool_create(runtime, 0, WEIR_NO_LIMIT, &bins));
  failed = test_block_pool(runtime, bins);
  if (failed != NULL) return failed;
  REQUIRE_OK(weir_pinned_pool_create(runtime, 0, WEIR_NO_LIMIT, &pinned));
  REQUIRE_OK(weir_block_pool_allocate(pinned, 100, 0, NULL, &p));
  memset(p, 1, 100); /* the host may write it */
  REQUIRE_OK(weir_block_pool_free(pinned, p));
  REQUIRE_OK(weir_block_pool_close(pinned));
  REQUIRE_OK(weir_pinned_pool_create(runtime, 0, WEIR_NO_LIMIT, &pinned));
  failed = test_block_pool(runtime, pinned);
  if (failed != NULL) return failed;
  REQUIRE(weir_bin_pool_create(runtime, 0, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_pinned_pool_create(runtime, 2, 0, &pinned) == weir_error_no_device);
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

const char* weir_test_buffers(void) {
  weir_runtime* runtime = NULL;
  weir_allocator* memory = NULL;
  weir_stream* stream = NULL;
  weir_stream* other = NULL;
  weir_buffer* buffer = NULL;
  weir_buffer* plain = NULL;
  weir_buffer_info info;
  unsigned char host[64];
  uint64_t reported = weir_reported_errors();

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_allocator_create(runtime, 0, NULL, &memory));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &other));
  REQUIRE_OK(weir_buffer_create(memory, 64, stream, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.kind == weir_buffer_device && info.size == 64);
  REQUIRE(info.device_address == (uintptr_t)info.data && info.data != NULL);
  REQUIRE_OK(weir_fill(info.data, 42, 64, stream));
  REQUIRE_OK(weir_buffer_resize(buffer, 2 * mib)); /* the bytes come along */
  REQUIRE_OK(weir_buffer_hand_over(buffer, other));
  REQUIRE_OK(weir_buffer_join(buffer, stream));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.size == 2 * mib);
  memset(host, 0, sizeof(host));
  REQUIRE_OK(weir_copy(host, info.data, 64, other));
  REQUIRE_OK(weir_stream_synchronize(other));
  REQUIRE(host[0] == 42 && host[63] == 42);
  REQUIRE(weir_buffer_use_on(buffer, stream) == weir_error_not_supported);
  REQUIRE(weir_buffer_begin_host(buffer) == weir_error_not_supported);

  REQUIRE_OK(weir_buffer_create_plain(runtime, 0, mib, &plain));
  REQUIRE_OK(weir_buffer_get_info(plain, &info));
  REQUIRE(info.kind == weir_buffer_device && info.size == mib);
  REQUIRE_OK(weir_buffer_close(plain));
  REQUIRE(weir_buffer_close(plain) == weir_error_already_freed);

  REQUIRE(weir_buffer_create(memory, 1ull << 40, stream, &plain) == weir_error_out_of_memory);
  REQUIRE(weir_buffer_create(memory, 1, stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_plain(runtime, 0, 1, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_get_info(buffer, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_copy(NULL, host, 1, stream) == weir_error_invalid_argument);
  REQUIRE(weir_fill(NULL, 0, 1, stream) == weir_error_invalid_argument);

  /* Everything it is made of may be closed before it. */
  REQUIRE_OK(weir_stream_close(other));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE_OK(weir_allocator_close(memory));
  REQUIRE(weir_reported_errors() == reported);
  return NULL;
}

const char* weir_test_managed_buffers(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_buffer* buffer = NULL;
  weir_buffer_info info;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_buffer_create_managed(runtime, 0, 4096, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.kind == weir_buffer_managed && info.size == 4096);
  REQUIRE_OK(weir_buffer_begin_host(buffer));
  REQUIRE(((unsigned char*)info.data)[17] == 0); /* zeros to begin with */
  ((unsigned char*)info.data)[17] = 5;
  REQUIRE_OK(weir_buffer_begin_host(buffer));
  REQUIRE(weir_buffer_use_on(buffer, stream) == weir_error_not_ready);
  REQUIRE_OK(weir_buffer_end_host(buffer));
  REQUIRE_OK(weir_buffer_end_host(buffer));
  REQUIRE(weir_buffer_end_host(buffer) == weir_error_invalid_argument);
  REQUIRE_OK(weir_buffer_use_on(buffer, stream));
  REQUIRE_OK(weir_buffer_prefetch(buffer, 0, stream));
  REQUIRE_OK(weir_fill(info.data, 9, 4096, stream));
  REQUIRE_OK(weir_buffer_prefetch(buffer, -1, stream));
  REQUIRE_OK(weir_buffer_begin_host(buffer)); /* waits for the stream */
  REQUIRE(((unsigned char*)info.data)[17] == 9);
  REQUIRE_OK(weir_buffer_end_host(buffer));
  REQUIRE(weir_buffer_prefetch(buffer, 6, stream) == weir_error_no_device);
  REQUIRE(weir_buffer_resize(buffer, 1) == weir_error_not_supported);
  REQUIRE(weir_buffer_join(buffer, stream) == weir_error_not_supported);
  REQUIRE(weir_buffer_hand_over(buffer, stream) == weir_error_not_supported);
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE(weir_buffer_create_managed(runtime, 0, 0, &buffer) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_managed(runtime, 0, 1, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

const char* weir_test_pinned_buffers(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_buffer* buffer = NULL;
  weir_buffer_info info;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_buffer_create_pinned(runtime, 0, 4096, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.kind == weir_buffer_pinned && info.size == 4096 && info.device_address != 0);
  REQUIRE(((unsigned char*)info.data)[4095] == 0);
  REQUIRE_OK(weir_fill((void*)(uintptr_t)info.device_address, 3, 4096, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(((unsigned char*)info.data)[4095] == 3);
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE(weir_buffer_get_info(buffer, &info) == weir_error_already_freed);
  REQUIRE(weir_buffer_create_pinned(runtime, 0, 0, &buffer) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_pinned(runtime, 0, 1, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of every kind, and their pools, as a C program uses them. */
#include <stddef.h>
#include <string.h>

#include "c_tests.h"

enum { mib = 1 << 20 };

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
  REQUIRE_OK(weir_buffer_create(memory, 64, 0, stream, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.kind == weir_buffer_device && info.size == 64);
  REQUIRE(info.device_address == (uintptr_t)info.data && info.data != NULL);
  REQUIRE_OK(weir_fill(info.data, 42, 64, stream));
  REQUIRE_OK(weir_buffer_resize(buffer, 2 * mib)); /* the bytes come along */
  REQUIRE_OK(weir_buffer_hand_over(buffer, other));
  REQUIRE_OK(weir_buffer_record_stream(buffer, stream));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.size == 2 * mib);
  memset(host, 0, sizeof(host));
  REQUIRE_OK(weir_copy(host, info.data, 64, other));
  REQUIRE_OK(weir_stream_synchronize(other));
  REQUIRE(host[0] == 42 && host[63] == 42);
  REQUIRE(weir_buffer_resize_managed(buffer, 1, stream) == weir_error_not_supported);
  REQUIRE(weir_buffer_attach(buffer, weir_attach_host, stream) == weir_error_not_supported);
  REQUIRE(weir_buffer_begin_host(buffer) == weir_error_not_supported);

  REQUIRE_OK(weir_buffer_join(buffer, stream));
  REQUIRE(weir_buffer_use_on(buffer, stream) == weir_error_not_supported);

  REQUIRE_OK(weir_buffer_create(memory, 64, weir_buffer_zeroed, stream, &plain));
  REQUIRE_OK(weir_buffer_get_info(plain, &info));
  memset(host, 1, sizeof(host));
  REQUIRE_OK(weir_copy(host, info.data, 64, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(host[0] == 0 && host[63] == 0);
  REQUIRE_OK(weir_buffer_close(plain));
  memset(host, 9, sizeof(host));
  REQUIRE_OK(weir_buffer_create_copy(memory, host, 64, stream, &plain));
  REQUIRE_OK(weir_stream_synchronize(stream));
  memset(host, 1, sizeof(host));
  REQUIRE_OK(weir_buffer_get_info(plain, &info));
  REQUIRE_OK(weir_copy(host, info.data, 64, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(host[0] == 9 && host[63] == 9);
  REQUIRE_OK(weir_buffer_close(plain));
  REQUIRE(weir_buffer_create(memory, 64, 1u << 31, stream, &plain) == weir_error_invalid_argument);

  REQUIRE_OK(weir_buffer_create_plain(runtime, 0, mib, &plain));
  REQUIRE_OK(weir_buffer_get_info(plain, &info));
  REQUIRE(info.kind == weir_buffer_device && info.size == mib);
  REQUIRE_OK(weir_buffer_close(plain));
  REQUIRE(weir_buffer_close(plain) == weir_error_closed);

  REQUIRE(weir_buffer_create(memory, 1ull << 40, 0, stream, &plain) == weir_error_out_of_memory);
  REQUIRE(weir_buffer_create(memory, 1, 0, stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_plain(runtime, 0, 1, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_get_info(buffer, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_copy(NULL, host, 1, stream) == weir_error_invalid_argument);
  REQUIRE(weir_fill(NULL, 0, 1, stream) == weir_error_invalid_argument);

  /* Everything it depends on may be closed before it. */
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
  weir_stream* elsewhere = NULL;
  weir_event* event = NULL;
  weir_buffer* buffer = NULL;
  weir_buffer_info info;
  unsigned char bytes[64];

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE ",sim_mode=manual", &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_stream_create(runtime, 1, 0, 0, &elsewhere));
  REQUIRE_OK(weir_event_create(runtime, 0, 0, &event));
  REQUIRE_OK(weir_buffer_create_managed(runtime, 0, 4096, weir_buffer_zeroed, weir_attach_global,
                                        stream, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.kind == weir_buffer_managed && info.size == 4096 && info.data != NULL);
  REQUIRE_OK(weir_buffer_begin_host(buffer));
  REQUIRE(((unsigned char*)info.data)[17] == 0); /* zeros to begin with */
  ((unsigned char*)info.data)[17] = 5;
  REQUIRE_OK(weir_buffer_begin_host(buffer));
  REQUIRE(weir_buffer_use_on(buffer, stream) == weir_error_not_ready);
  REQUIRE(weir_buffer_resize_managed(buffer, 1, stream) == weir_error_not_ready);
  REQUIRE_OK(weir_buffer_end_host(buffer));
  REQUIRE_OK(weir_buffer_end_host(buffer));
  REQUIRE(weir_buffer_end_host(buffer) == weir_error_invalid_argument);
  REQUIRE_OK(weir_buffer_use_on(buffer, stream));
  REQUIRE_OK(weir_buffer_prefetch(buffer, 0, 0, 0, stream));
  REQUIRE_OK(weir_fill(info.data, 9, 4096, stream));
  REQUIRE_OK(weir_event_record(event, stream));
  REQUIRE(weir_buffer_try_begin_host(buffer) == weir_error_not_ready); /* the fill is not done */
  REQUIRE_OK(weir_buffer_begin_host_after(buffer, event));
  REQUIRE(((unsigned char*)info.data)[17] == 9);
  REQUIRE_OK(weir_buffer_end_host(buffer));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_buffer_try_begin_host(buffer));
  ((unsigned char*)info.data)[4095] = 3;
  REQUIRE_OK(weir_buffer_end_host(buffer));

  /* Larger: the old bytes, then zeros. */
  REQUIRE_OK(weir_buffer_resize_managed(buffer, 8192, stream));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.size == 8192);
  REQUIRE_OK(weir_buffer_begin_host(buffer));
  REQUIRE(((unsigned char*)info.data)[17] == 9 && ((unsigned char*)info.data)[4095] == 3);
  REQUIRE(((unsigned char*)info.data)[4096] == 0 && ((unsigned char*)info.data)[8191] == 0);
  REQUIRE_OK(weir_buffer_end_host(buffer));
  REQUIRE(weir_buffer_resize(buffer, 1) == weir_error_not_supported);
  REQUIRE(weir_buffer_hand_over(buffer, stream) == weir_error_not_supported);
  REQUIRE(weir_buffer_begin_host_after(buffer, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE(weir_buffer_begin_host(buffer) == weir_error_closed);

  memset(bytes, 7, sizeof(bytes));
  REQUIRE_OK(weir_buffer_create_managed_copy(runtime, 1, bytes, sizeof(bytes), weir_attach_host,
                                             NULL, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE_OK(weir_buffer_begin_host(buffer));
  REQUIRE(info.size == 64 && memcmp(info.data, bytes, 64) == 0);
  REQUIRE_OK(weir_buffer_close(buffer)); /* also while the host has it */

  REQUIRE(weir_buffer_create_managed(runtime, 0, 0, 0, 0, NULL, &buffer) ==
          weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_managed(runtime, 0, 1, 0, 0, NULL, NULL) ==
          weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_managed(runtime, 0, 1, 2, 0, NULL, &buffer) ==
          weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_managed(runtime, 0, 1, 0, 3, NULL, &buffer) ==
          weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_managed(runtime, 0, 1, 0, 0, elsewhere, &buffer) ==
          weir_error_bad_stream);
  REQUIRE(weir_buffer_create_managed(runtime, 2, 1, 0, 0, NULL, &buffer) == weir_error_no_device);
  REQUIRE(weir_buffer_create_managed_copy(runtime, 0, NULL, 1, 0, NULL, &buffer) ==
          weir_error_invalid_argument);
  REQUIRE_OK(weir_event_close(event));
  REQUIRE_OK(weir_stream_close(elsewhere));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

const char* weir_test_managed_placement(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_buffer* buffer = NULL;
  weir_managed_info info;
  const uint64_t half = 2 * mib;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(
      weir_buffer_create_managed(runtime, 0, 2 * half, 0, weir_attach_global, NULL, &buffer));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, 0, &info));
  REQUIRE(info.attachment == weir_attach_global && info.read_mostly == 0);
  REQUIRE(info.preferred == WEIR_PLACE_NONE && info.last_prefetch == WEIR_PLACE_NONE);
  REQUIRE(info.accessed_by_count == 0);

  REQUIRE_OK(weir_buffer_advise_read_mostly(buffer, half, 0, 1));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, half, half, &info));
  REQUIRE(info.read_mostly == 1);
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, half, &info));
  REQUIRE(info.read_mostly == 0);
  REQUIRE_OK(weir_buffer_advise_read_mostly(buffer, half, 0, 0));

  REQUIRE_OK(weir_buffer_advise_preferred(buffer, 0, 0, 1));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, 0, &info));
  REQUIRE(info.preferred == 1);
  REQUIRE_OK(weir_buffer_advise_preferred(buffer, 0, half, WEIR_PLACE_HOST));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, half, &info));
  REQUIRE(info.preferred == WEIR_PLACE_HOST);
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, 0, &info));
  REQUIRE(info.preferred == WEIR_PLACE_NONE); /* its pages differ */
  REQUIRE_OK(weir_buffer_advise_preferred(buffer, 0, 0, WEIR_PLACE_NONE));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, half, half, &info));
  REQUIRE(info.preferred == WEIR_PLACE_NONE);

  REQUIRE_OK(weir_buffer_advise_accessed_by(buffer, 0, 0, 1, 1));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, 0, &info));
  REQUIRE(info.accessed_by_count == 1 && info.accessed_by[0] == 1);
  REQUIRE_OK(weir_buffer_advise_accessed_by(buffer, 0, 0, 1, 0));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, 0, &info));
  REQUIRE(info.accessed_by_count == 0);

  REQUIRE_OK(weir_buffer_prefetch(buffer, 0, 0, 1, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, 0, &info));
  REQUIRE(info.last_prefetch == 1);
  REQUIRE_OK(weir_buffer_prefetch(buffer, 0, half, WEIR_PLACE_HOST, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, half, &info));
  REQUIRE(info.last_prefetch == WEIR_PLACE_HOST);

  REQUIRE_OK(weir_buffer_attach(buffer, weir_attach_single, stream));
  REQUIRE_OK(weir_buffer_get_managed_info(buffer, 0, 0, &info));
  REQUIRE(info.attachment == weir_attach_single);
  REQUIRE(weir_buffer_attach(buffer, weir_attach_single, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_attach(buffer, 7, stream) == weir_error_invalid_argument);
  REQUIRE_OK(weir_buffer_attach(buffer, weir_attach_global, stream));

  REQUIRE(weir_buffer_prefetch(buffer, 0, 0, 6, stream) == weir_error_no_device);
  REQUIRE(weir_buffer_prefetch(buffer, 0, 0, WEIR_PLACE_NONE, stream) ==
          weir_error_invalid_argument);
  REQUIRE(weir_buffer_prefetch(buffer, 2 * half, 0, 0, stream) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_prefetch(buffer, half, half + 1, 0, stream) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_advise_read_mostly(buffer, 0, UINT64_MAX, 1) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_advise_accessed_by(buffer, 0, 0, 9, 1) == weir_error_no_device);
  REQUIRE(weir_buffer_get_managed_info(buffer, 0, 0, NULL) == weir_error_invalid_argument);
  info.struct_size = 4;
  REQUIRE(weir_buffer_get_managed_info(buffer, 0, 0, &info) == weir_error_bad_version);
  REQUIRE_OK(weir_buffer_close(buffer));
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
  REQUIRE(weir_buffer_record_stream(buffer, stream) == weir_error_not_supported);
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE(weir_buffer_get_info(buffer, &info) == weir_error_closed);
  REQUIRE(weir_buffer_create_pinned(runtime, 0, 0, &buffer) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_create_pinned(runtime, 0, 1, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

const char* weir_test_buffer_pools(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_stream* other = NULL;
  weir_stream* elsewhere = NULL;
  weir_buffer_pool* pool = NULL;
  weir_buffer_pool* second = NULL;
  weir_buffer* buffer = NULL;
  weir_buffer* none = NULL;
  weir_buffer* plain = NULL;
  weir_buffer_pool_options options = WEIR_BUFFER_POOL_OPTIONS_INIT;
  weir_buffer_pool_stats stats;
  weir_buffer_info info;
  void* first = NULL;
  unsigned char host = 1;
  uint64_t released = 0;
  const uint64_t reported = weir_reported_errors();

  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &other));
  REQUIRE_OK(weir_stream_create(runtime, 1, 0, 0, &elsewhere));
  REQUIRE_OK(weir_buffer_pool_create(NULL, &pool));

  REQUIRE(weir_buffer_pool_take_cached(pool, mib, 0, stream, &buffer) == weir_error_not_found);
  REQUIRE_OK(weir_buffer_pool_take(pool, mib, weir_buffer_zeroed, stream, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.kind == weir_buffer_device && info.size == mib && info.data != NULL);
  REQUIRE(info.device_address == (uintptr_t)info.data);
  first = info.data;
  REQUIRE_OK(weir_copy(&host, info.data, 1, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(host == 0);
  REQUIRE_OK(weir_buffer_pool_get_stats(pool, runtime, 0, &stats));
  REQUIRE(stats.hits == 0 && stats.misses == 1 && stats.returns == 0 && stats.cached == 0);
  REQUIRE(stats.taken.current == mib && stats.taken.peak == mib);
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE(weir_buffer_close(buffer) == weir_error_closed);

  REQUIRE_OK(weir_buffer_pool_take_cached(pool, mib, 0, stream, &buffer));
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE(info.data == first);
  REQUIRE_OK(weir_buffer_record_stream(buffer, other));
  REQUIRE_OK(weir_buffer_pool_free(pool, buffer, other));
  REQUIRE(weir_buffer_get_info(buffer, &info) == weir_error_closed);
  REQUIRE_OK(weir_buffer_pool_take(pool, mib, 0, elsewhere, &buffer));
  REQUIRE_OK(weir_buffer_pool_get_stats(pool, runtime, 0, &stats));
  REQUIRE(stats.hits == 1 && stats.misses == 1 && stats.returns == 2);
  REQUIRE(stats.cached == mib && stats.taken.current == 0);
  REQUIRE_OK(weir_buffer_pool_get_stats(pool, NULL, 99, &stats)); /* all devices */
  REQUIRE(stats.hits == 1 && stats.misses == 2 && stats.cached == mib);
  REQUIRE(stats.taken.current == mib && stats.taken.peak == 2 * mib);
  REQUIRE_OK(weir_buffer_pool_reset_peaks(pool, runtime, 0));
  REQUIRE_OK(weir_buffer_pool_reset_counters(pool, runtime, 0));
  REQUIRE_OK(weir_buffer_pool_get_stats(pool, NULL, 0, &stats));
  REQUIRE(stats.hits == 0 && stats.misses == 1 && stats.taken.peak == mib);
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE_OK(weir_buffer_pool_reset_peaks(pool, NULL, 0));
  REQUIRE_OK(weir_buffer_pool_reset_counters(pool, NULL, 0));
  REQUIRE_OK(weir_buffer_pool_get_stats(pool, NULL, 0, &stats));
  REQUIRE(stats.misses == 0 && stats.returns == 0 && stats.taken.peak == 0);
  REQUIRE(stats.cached == 2 * mib);

  REQUIRE_OK(weir_device_synchronize(runtime, 0));
  REQUIRE_OK(weir_device_synchronize(runtime, 1));
  REQUIRE_OK(weir_buffer_pool_trim(pool, runtime, 1, WEIR_NO_LIMIT, &released));
  REQUIRE(released == 0); /* nothing is bounded */
  REQUIRE_OK(weir_buffer_pool_trim(pool, NULL, 0, 0, &released));
  REQUIRE(released == 2 * mib);
  REQUIRE_OK(weir_buffer_pool_take(pool, mib, 0, stream, &buffer));
  REQUIRE_OK(weir_fill(first, 1, 1, stream));
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE_OK(weir_buffer_pool_empty_cache(pool, runtime, 0, &released));
  REQUIRE(released == mib);
  REQUIRE_OK(weir_buffer_pool_empty_cache(pool, NULL, 0, NULL));

  /* Bounds. */
  options.max_cached = 0;
  options.max_idle_time = 1;
  options.flags = weir_buffer_pool_declared_uses;
  REQUIRE_OK(weir_buffer_pool_create(&options, &second));
  REQUIRE_OK(weir_buffer_pool_take(second, 1000, 0, stream, &buffer));
  REQUIRE(weir_buffer_pool_free(pool, buffer, stream) == weir_error_foreign_pointer);
  REQUIRE(weir_buffer_resize(buffer, 1) == weir_error_not_supported);
  REQUIRE(weir_buffer_begin_host(buffer) == weir_error_not_supported);
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_buffer_pool_trim(second, NULL, 0, WEIR_NO_LIMIT, &released));
  REQUIRE(released == 1024);

  REQUIRE_OK(weir_buffer_create_plain(runtime, 0, 1, &plain));
  REQUIRE(weir_buffer_pool_free(pool, plain, stream) == weir_error_foreign_pointer);
  REQUIRE_OK(weir_buffer_close(plain));
  REQUIRE(weir_buffer_pool_take(pool, 0, 0, stream, &none) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_pool_take(pool, 1, 6, stream, &none) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_pool_take(pool, 1, 0, NULL, &none) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_pool_take(pool, 1, 0, stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_pool_take(pool, 1ull << 40, 0, stream, &none) == weir_error_out_of_memory);
  REQUIRE(weir_buffer_pool_take(NULL, 1, 0, stream, &none) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_pool_get_stats(pool, runtime, 5, &stats) == weir_error_no_device);
  REQUIRE(weir_buffer_pool_get_stats(pool, runtime, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_buffer_pool_create(NULL, NULL) == weir_error_invalid_argument);
  options.flags = 1u << 31;
  REQUIRE(weir_buffer_pool_create(&options, &second) == weir_error_invalid_argument);
  options.struct_size = 8;
  REQUIRE(weir_buffer_pool_create(&options, &second) == weir_error_bad_version);
  stats.struct_size = 8;
  REQUIRE(weir_buffer_pool_get_stats(pool, runtime, 0, &stats) == weir_error_bad_version);

  /* A buffer outlives its pool. */
  REQUIRE_OK(weir_buffer_pool_take(pool, mib, 0, stream, &buffer));
  REQUIRE_OK(weir_buffer_pool_close(pool));
  REQUIRE(weir_buffer_pool_close(pool) == weir_error_closed);
  REQUIRE(weir_buffer_pool_take(pool, 1, 0, stream, &none) == weir_error_closed);
  REQUIRE_OK(weir_buffer_get_info(buffer, &info));
  REQUIRE_OK(weir_fill(info.data, 1, mib, stream));
  REQUIRE_OK(weir_buffer_close(buffer));
  REQUIRE_OK(weir_buffer_pool_close(second));
  REQUIRE_OK(weir_buffer_pool_close(NULL));
  REQUIRE_OK(weir_stream_close(elsewhere));
  REQUIRE_OK(weir_stream_close(other));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  REQUIRE(weir_reported_errors() == reported);
  return NULL;
}

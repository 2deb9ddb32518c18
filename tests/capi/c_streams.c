/* SPDX-License-Identifier: Apache-2.0 */
/* Options, tags, streams and events as a C program uses them. */
#include <stddef.h>
#include <string.h>

#include "c_tests.h"

const char* weir_test_options(void) {
  weir_option_info info;
  char text[32];
  uint64_t length = 0;
  int has_policy = 0;
  uint32_t i;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE(weir_option_count() > 10);
  for (i = 0; i < weir_option_count(); ++i) {
    REQUIRE_OK(weir_option_get_info(i, &info));
    REQUIRE(info.name[0] != '\0' && info.type[0] != '\0' && info.meaning[0] != '\0');
    REQUIRE(strncmp(info.environment, "WEIR_", 5) == 0);
    if (strcmp(info.name, "heap_policy") == 0) {
      has_policy = 1;
      REQUIRE(strcmp(info.initial, "balanced") == 0);
      REQUIRE(strstr(info.values, "compact") != NULL);
    }
  }
  REQUIRE(has_policy);
  REQUIRE(weir_option_get_info(weir_option_count(), &info) == weir_error_not_found);
  REQUIRE(weir_option_get_info(0, NULL) == weir_error_invalid_argument);
  info.struct_size = 8;
  REQUIRE(weir_option_get_info(0, &info) == weir_error_bad_version);

  REQUIRE_OK(
      weir_option_get_value("heap_policy=compact", "heap_policy", text, sizeof(text), &length));
  REQUIRE(strcmp(text, "compact") == 0 && length == 7);
  REQUIRE_OK(weir_option_get_value(NULL, "heap_policy", text, 4, &length));
  REQUIRE(strcmp(text, "bal") == 0 && length == 8);
  REQUIRE_OK(weir_option_get_value("", "heap_policy", NULL, 0, &length));
  REQUIRE(weir_option_get_value("", "heap_policy", NULL, 5, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_option_get_value("", "heap_police", text, 4, NULL) == weir_error_bad_option);
  REQUIRE(weir_option_get_value("x=1", "heap_policy", text, 4, NULL) == weir_error_bad_option);
  REQUIRE(weir_option_get_value("", NULL, text, 4, NULL) == weir_error_invalid_argument);
  return NULL;
}

const char* weir_test_tags(void) {
  uint32_t weights = 0;
  uint32_t again = 0;
  uint32_t before = 77;

  REQUIRE_OK(weir_tag_named("c weights", &weights));
  REQUIRE_OK(weir_tag_named("c weights", &again));
  REQUIRE(weights != 0 && weights == again);
  REQUIRE(strcmp(weir_tag_name(weights), "c weights") == 0);
  REQUIRE(strcmp(weir_tag_name(0), "") == 0);
  REQUIRE(weir_tag_name(1000) == NULL && weir_tag_name(0xffffffffu) == NULL);
  REQUIRE(weir_tag_named("", &weights) == weir_error_invalid_argument);
  REQUIRE(weir_tag_named(NULL, &weights) == weir_error_invalid_argument);
  REQUIRE(weir_tag_named("x", NULL) == weir_error_invalid_argument);

  REQUIRE_OK(weir_tag_set_current(weights, &before));
  REQUIRE(before == 0);
  REQUIRE(weir_tag_set_current(65537, &before) == weir_error_not_found);
  REQUIRE_OK(weir_tag_set_current(0, &before));
  REQUIRE(before == weights);
  REQUIRE_OK(weir_tag_set_current(0, NULL));
  return NULL;
}

const char* weir_test_streams(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_stream* wrapped = NULL;
  weir_stream* legacy = NULL;
  void* native = NULL;
  void* same = NULL;
  uint64_t id = 0;
  uint64_t other = 0;
  uint64_t capture = 9;
  int32_t answer = -1;

  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_stream_get_native(stream, &native));
  REQUIRE(native != NULL);
  REQUIRE_OK(weir_stream_get_id(stream, &id));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_stream_is_complete(stream, &answer));
  REQUIRE(answer == 1);
  REQUIRE_OK(weir_stream_get_capture(stream, &answer, &capture));
  REQUIRE(answer == weir_capture_none && capture == 0);
  REQUIRE_OK(weir_stream_get_capture(stream, &answer, NULL));

  /* A wrapped stream is the same stream under another handle. */
  REQUIRE_OK(weir_stream_wrap(runtime, 0, native, &wrapped));
  REQUIRE(wrapped != stream);
  REQUIRE_OK(weir_stream_get_native(wrapped, &same));
  REQUIRE(same == native);
  REQUIRE_OK(weir_stream_get_id(wrapped, &other));
  REQUIRE(other == id);
  REQUIRE_OK(weir_stream_close(wrapped));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(weir_stream_wrap(runtime, 1, native, &wrapped) == weir_error_bad_stream);

  REQUIRE_OK(weir_stream_wrap(runtime, 0, NULL, &legacy));
  REQUIRE_OK(weir_stream_get_id(legacy, &other));
  REQUIRE(other != id);
  REQUIRE_OK(weir_stream_close(legacy));
  REQUIRE_OK(weir_stream_wrap(runtime, 0, (void*)2, &legacy)); /* the thread's own */
  REQUIRE_OK(weir_stream_synchronize(legacy));
  REQUIRE_OK(weir_stream_close(legacy));

  REQUIRE_OK(weir_stream_create(runtime, 1, weir_stream_blocking, -1, &legacy));
  REQUIRE_OK(weir_stream_close(legacy));
  REQUIRE(weir_stream_create(runtime, 0, 1u << 30, 0, &legacy) == weir_error_invalid_argument);
  REQUIRE(weir_stream_create(runtime, 2, 0, 0, &legacy) == weir_error_no_device);
  REQUIRE(weir_stream_create(runtime, 0, 0, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_wrap(runtime, 0, NULL, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_get_native(stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_get_id(stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_is_complete(stream, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_stream_get_capture(stream, NULL, NULL) == weir_error_invalid_argument);

  /* Its runtime's handle may go first. */
  REQUIRE_OK(weir_runtime_close(runtime));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE(weir_stream_close(stream) == weir_error_closed);
  REQUIRE(weir_stream_synchronize(stream) == weir_error_closed);
  REQUIRE(strstr(weir_last_error_message(), "stream is closed") != NULL);
  REQUIRE(weir_stream_close(NULL) == weir_ok);
  return NULL;
}

const char* weir_test_watching(void) {
  weir_runtime* runtime = NULL;
  weir_allocator* memory = NULL;
  weir_block_pool* bins = NULL;
  weir_stream* owner = NULL;
  weir_stream* other = NULL;
  weir_stream* legacy = NULL;
  weir_stream* own = NULL;
  void* freed = NULL;
  void* p = NULL;
  void* native = NULL;
  uint64_t size = 4 << 20;

  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE ",sim_mode=manual", &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &owner));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &other));
  REQUIRE_OK(weir_stream_wrap(runtime, 0, NULL, &legacy));
  REQUIRE_OK(weir_allocator_create(runtime, 0, "heap_queued_waits=off", &memory));
  REQUIRE_OK(weir_bin_pool_create(runtime, 0, NULL, &bins));

  /* The legacy stream uses memory that nobody recorded for it, and asks for none. */
  REQUIRE_OK(weir_watch_stream(legacy));
  REQUIRE_OK(weir_watch_stream(legacy)); /* is watching once */
  REQUIRE_OK(weir_allocator_allocate(memory, size, owner, &freed));
  REQUIRE_OK(weir_fill(freed, 1, size, legacy));
  REQUIRE_OK(weir_allocator_deallocate(memory, freed, owner));
  REQUIRE_OK(weir_allocator_trim(memory, 0, NULL));
  REQUIRE_OK(weir_allocator_allocate(memory, size, other, &p));
  REQUIRE(p != freed);
  REQUIRE_OK(weir_allocator_deallocate(memory, p, other));
  REQUIRE_OK(weir_block_pool_allocate(bins, size, 0, owner, &freed));
  REQUIRE_OK(weir_fill(freed, 1, size, legacy));
  REQUIRE_OK(weir_block_pool_deallocate(bins, freed, owner));
  REQUIRE_OK(weir_block_pool_allocate(bins, size, 0, other, &p));
  REQUIRE(p != freed);
  REQUIRE_OK(weir_block_pool_deallocate(bins, p, other));

  /* Its last work counts until it is done. */
  REQUIRE_OK(weir_unwatch_stream(legacy));
  REQUIRE_OK(weir_block_pool_allocate(bins, size, 0, other, &p));
  REQUIRE(p != freed);
  REQUIRE_OK(weir_block_pool_deallocate(bins, p, other));
  REQUIRE_OK(weir_stream_synchronize(legacy));
  REQUIRE_OK(weir_block_pool_allocate(bins, size, 0, other, &native));
  REQUIRE_OK(weir_block_pool_allocate(bins, size, 0, other, &p));
  REQUIRE(p == freed || native == freed);
  REQUIRE_OK(weir_block_pool_deallocate(bins, p, other));
  REQUIRE_OK(weir_block_pool_deallocate(bins, native, other));
  REQUIRE_OK(weir_unwatch_stream(legacy)); /* a second time does no harm */

  REQUIRE_OK(weir_stream_wrap(runtime, 0, (void*)2, &own));
  REQUIRE(weir_watch_stream(own) == weir_error_bad_stream);
  REQUIRE(weir_unwatch_stream(own) == weir_error_bad_stream);
  REQUIRE_OK(weir_stream_close(own));
  REQUIRE(weir_watch_stream(own) == weir_error_closed);
  REQUIRE(weir_watch_stream(NULL) == weir_error_invalid_argument);
  REQUIRE(weir_unwatch_stream(NULL) == weir_error_invalid_argument);
  REQUIRE(weir_watch_stream((weir_stream*)runtime) == weir_error_invalid_argument);

  REQUIRE_OK(weir_block_pool_close(bins));
  REQUIRE_OK(weir_allocator_close(memory));
  REQUIRE_OK(weir_stream_close(legacy));
  REQUIRE_OK(weir_stream_close(other));
  REQUIRE_OK(weir_stream_close(owner));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

const char* weir_test_events(void) {
  weir_runtime* runtime = NULL;
  weir_stream* stream = NULL;
  weir_stream* elsewhere = NULL;
  weir_event* begin = NULL;
  weir_event* end = NULL;
  weir_event* plain = NULL;
  void* native = NULL;
  float time = -1;
  int32_t answer = -1;

  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_stream_create(runtime, 1, 0, 0, &elsewhere));
  REQUIRE_OK(weir_event_create(runtime, 0, weir_event_timing, &begin));
  REQUIRE_OK(weir_event_create(runtime, 0, weir_event_timing | weir_event_blocking_sync, &end));
  REQUIRE_OK(weir_event_create(runtime, 0, 0, &plain));
  REQUIRE_OK(weir_event_record(begin, stream));
  REQUIRE_OK(weir_event_record(end, stream));
  REQUIRE_OK(weir_event_record(plain, NULL)); /* the legacy stream */
  REQUIRE_OK(weir_stream_wait(elsewhere, end));
  REQUIRE_OK(weir_stream_wait(NULL, end));
  REQUIRE_OK(weir_event_synchronize(end));
  REQUIRE_OK(weir_event_is_complete(end, &answer));
  REQUIRE(answer == 1);
  REQUIRE_OK(weir_event_get_elapsed(begin, end, &time));
  REQUIRE(time >= 0);
  REQUIRE_OK(weir_event_get_native(end, &native));
  REQUIRE(native != NULL);

  REQUIRE(weir_event_record(begin, elsewhere) == weir_error_bad_stream);
  REQUIRE(weir_event_create(runtime, 0, weir_event_timing | weir_event_interprocess, &plain) ==
          weir_error_invalid_argument);
  REQUIRE(weir_event_create(runtime, 0, 8, &plain) == weir_error_invalid_argument);
  REQUIRE(weir_event_create(runtime, 0, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_event_is_complete(end, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_event_get_native(end, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_event_get_elapsed(begin, end, NULL) == weir_error_invalid_argument);

  REQUIRE_OK(weir_event_close(begin));
  REQUIRE(weir_event_close(begin) == weir_error_closed);
  REQUIRE(weir_event_get_elapsed(begin, end, &time) == weir_error_closed);
  REQUIRE_OK(weir_event_close(end));
  REQUIRE_OK(weir_event_close(plain));
  REQUIRE_OK(weir_stream_close(elsewhere));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

/* A handle of every kind that is null, of another kind, or none at all. */
const char* weir_test_closed_and_null(void) {
  const weir_error invalid = weir_error_invalid_argument;
  weir_runtime* runtime = NULL;
  weir_stream* as_stream = NULL;
  uint64_t word = 0;
  uint32_t half = 0;
  int32_t number = 0;
  void* pointer = &word;

  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  as_stream = (weir_stream*)runtime;
  REQUIRE(weir_stream_synchronize(as_stream) == invalid);
  REQUIRE(strstr(weir_last_error_message(), "kind stream") != NULL);
  REQUIRE(weir_stream_close(as_stream) == invalid);
  REQUIRE(weir_stream_close((weir_stream*)&word) == invalid);
  REQUIRE(weir_stream_close((weir_stream*)(uintptr_t)-1) == invalid);
  REQUIRE(weir_stream_close((weir_stream*)(uintptr_t)3) == invalid);

  REQUIRE(weir_stream_synchronize(NULL) == invalid);
  REQUIRE(weir_stream_is_complete(NULL, &number) == invalid);
  REQUIRE(weir_stream_get_id(NULL, &word) == invalid);
  REQUIRE(weir_stream_get_native(NULL, &pointer) == invalid);
  REQUIRE(weir_stream_get_capture(NULL, &number, &word) == invalid);
  REQUIRE(weir_stream_wait(NULL, NULL) == invalid);
  REQUIRE(weir_event_record(NULL, NULL) == invalid);
  REQUIRE(weir_event_is_complete(NULL, &number) == invalid);
  REQUIRE(weir_event_synchronize(NULL) == invalid);
  REQUIRE(weir_event_get_native(NULL, &pointer) == invalid);
  REQUIRE(weir_allocator_get_device(NULL, &number) == invalid);
  REQUIRE(weir_allocator_allocate(NULL, 1, NULL, &pointer) == invalid);
  REQUIRE(pointer == NULL);
  REQUIRE(weir_allocator_allocate_native(NULL, 1, NULL, &pointer) == invalid);
  REQUIRE(weir_allocator_deallocate(NULL, &word, NULL) == invalid);
  REQUIRE(weir_allocator_deallocate_sized(NULL, &word, 1, NULL) == invalid);
  REQUIRE(weir_allocator_deallocate_native(NULL, &word, NULL) == invalid);
  REQUIRE(weir_allocator_free(NULL, &word) == invalid);
  REQUIRE(weir_allocator_record_stream(NULL, &word, NULL) == invalid);
  REQUIRE(weir_allocator_record_stream_native(NULL, &word, NULL) == invalid);
  REQUIRE(weir_allocator_size_of(NULL, &word, &word) == invalid);
  REQUIRE(weir_allocator_reset_peaks(NULL) == invalid);
  REQUIRE(weir_allocator_trim(NULL, 0, NULL) == invalid);
  REQUIRE(weir_allocator_empty_cache(NULL, NULL) == invalid);
  REQUIRE(weir_allocator_release_stream(NULL, NULL) == invalid);
  REQUIRE(weir_allocator_set_limit(NULL, 1) == invalid);
  REQUIRE(weir_allocator_set_limit_fraction(NULL, 0.5) == invalid);
  REQUIRE(weir_allocator_get_limit(NULL, &word) == invalid);
  REQUIRE(weir_allocator_set_tag_limit(NULL, 0, 1) == invalid);
  REQUIRE(weir_pool_get_id(NULL, &half) == invalid);
  REQUIRE(weir_pool_enter(NULL) == invalid);
  REQUIRE(weir_pool_empty_cache(NULL, NULL) == invalid);
  REQUIRE(weir_capture_end(NULL) == invalid);
  REQUIRE(weir_recorder_flush(NULL) == invalid);
  REQUIRE(weir_stream_pool_reset_peaks(NULL) == invalid);
  REQUIRE(weir_stream_pool_trim(NULL, 0, NULL) == invalid);
  REQUIRE(weir_block_pool_free(NULL, &word) == invalid);
  REQUIRE(weir_block_pool_reset_peaks(NULL) == invalid);
  REQUIRE(weir_buffer_resize(NULL, 1) == invalid);
  REQUIRE(weir_link_check(NULL) == invalid);
  REQUIRE(weir_copy(&word, &half, 1, NULL) == invalid);
  REQUIRE(weir_fill(&word, 1, 1, NULL) == invalid);

  REQUIRE_OK(weir_event_close(NULL));
  REQUIRE_OK(weir_allocator_close(NULL));
  REQUIRE_OK(weir_callback_close(NULL));
  REQUIRE_OK(weir_pool_close(NULL));
  REQUIRE_OK(weir_capture_close(NULL));
  REQUIRE_OK(weir_capture_guard_close(NULL));
  REQUIRE_OK(weir_snapshot_close(NULL));
  REQUIRE_OK(weir_recorder_close(NULL));
  REQUIRE_OK(weir_stream_pool_close(NULL, NULL));
  REQUIRE_OK(weir_block_pool_close(NULL));
  REQUIRE_OK(weir_buffer_close(NULL));
  REQUIRE_OK(weir_imported_close(NULL));
  REQUIRE_OK(weir_shared_close(NULL));
  REQUIRE_OK(weir_link_close(NULL));
  REQUIRE_OK(weir_offer_close(NULL));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

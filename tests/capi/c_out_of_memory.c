/* SPDX-License-Identifier: Apache-2.0 */
/* Out of memory in C: an error and a null pointer, callbacks that make room, and a last word. */
#include <setjmp.h>
#include <stddef.h>
#include <string.h>

#include "c_tests.h"

enum { mib = 1 << 20 };

typedef struct fixture {
  weir_runtime* runtime;
  weir_allocator* memory;
  weir_stream* stream;
  void* ballast;
  int calls;
  uint64_t needed;
  weir_error why;
  jmp_buf way_out;
} fixture;

static const char* set_up(fixture* on) {
  memset(on, 0, sizeof(*on));
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &on->runtime));
  REQUIRE_OK(weir_allocator_create(on->runtime, 0, "heap_limit=64MiB", &on->memory));
  REQUIRE_OK(weir_stream_create(on->runtime, 0, 0, 0, &on->stream));
  REQUIRE_OK(weir_allocator_allocate(on->memory, 48 * mib, on->stream, &on->ballast));
  return NULL;
}

static const char* tear_down(fixture* on) {
  const uint64_t reported = weir_reported_errors();
  if (on->ballast != NULL) REQUIRE_OK(weir_allocator_free(on->memory, on->ballast));
  REQUIRE_OK(weir_allocator_close(on->memory));
  REQUIRE_OK(weir_stream_close(on->stream));
  REQUIRE_OK(weir_runtime_close(on->runtime));
  REQUIRE(weir_reported_errors() == reported);
  return NULL;
}

#define REQUIRE_DONE(call)               \
  do {                                   \
    const char* const failed_ = (call);  \
    if (failed_ != NULL) return failed_; \
  } while (0)

const char* weir_test_out_of_memory_null(void) {
  fixture on;
  void* p = &on;

  REQUIRE_DONE(set_up(&on));
  REQUIRE(weir_allocator_allocate(on.memory, 32 * mib, on.stream, &p) == weir_error_out_of_memory);
  REQUIRE(p == NULL);
  REQUIRE(strstr(weir_last_error_message(), "32 MiB") != NULL);
  p = &on;
  REQUIRE(weir_allocator_allocate_aligned(on.memory, 32 * mib, 4096, on.stream, &p) ==
          weir_error_out_of_memory);
  REQUIRE(p == NULL);
  REQUIRE(weir_allocator_allocate_native(on.memory, 32 * mib, NULL, &p) ==
          weir_error_out_of_memory);
  /* What fits still comes. */
  REQUIRE_OK(weir_allocator_allocate(on.memory, 4 * mib, on.stream, &p));
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

static int32_t give_up_ballast(void* context, uint64_t needed) {
  fixture* const on = context;
  ++on->calls;
  on->needed = needed;
  if (on->ballast == NULL) return 0;
  weir_allocator_free(on->memory, on->ballast);
  on->ballast = NULL;
  return 1;
}

const char* weir_test_out_of_memory_reclaim(void) {
  fixture on;
  weir_callback* registration = NULL;
  void* p = NULL;

  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_allocator_on_out_of_memory(on.memory, give_up_ballast, &on, &registration));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 32 * mib, on.stream, &p));
  REQUIRE(on.calls == 1 && on.needed == 32 * mib && on.ballast == NULL);
  /* It has nothing left to give. */
  REQUIRE(weir_allocator_allocate(on.memory, 48 * mib, on.stream, &on.ballast) ==
          weir_error_out_of_memory);
  REQUIRE(on.calls == 2);
  REQUIRE_OK(weir_callback_close(registration));
  REQUIRE(weir_callback_close(registration) == weir_error_closed);
  REQUIRE(weir_allocator_allocate(on.memory, 48 * mib, on.stream, &on.ballast) ==
          weir_error_out_of_memory);
  REQUIRE(on.calls == 2);
  REQUIRE(weir_allocator_on_out_of_memory(on.memory, NULL, &on, &registration) ==
          weir_error_invalid_argument);
  REQUIRE(weir_allocator_on_out_of_memory(on.memory, give_up_ballast, &on, NULL) ==
          weir_error_invalid_argument);
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

/* Frees something the first time, and gives up the second. */
static int32_t on_failure(void* context, weir_allocator* memory, uint64_t size, weir_error why) {
  fixture* const on = context;
  ++on->calls;
  on->needed = size;
  on->why = why;
  if (memory != on->memory || strstr(weir_last_error_message(), "out_of_memory") == NULL) return 0;
  if (on->ballast == NULL) return 0;
  if (weir_allocator_free(memory, on->ballast) != weir_ok) return 0;
  on->ballast = NULL;
  return 1;
}

const char* weir_test_out_of_memory_handler(void) {
  fixture on;
  weir_pool* pool = NULL;
  void* p = NULL;
  void* q = &on;

  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_pool_create(on.memory, "apart", 0, &pool));
  REQUIRE_OK(weir_allocator_set_out_of_memory_handler(on.memory, on_failure, &on));
  REQUIRE_OK(weir_allocator_allocate(on.memory, 32 * mib, on.stream, &p));
  REQUIRE(on.calls == 1 && on.needed == 32 * mib && on.why == weir_error_out_of_memory);
  REQUIRE(weir_allocator_allocate(on.memory, 48 * mib, on.stream, &q) == weir_error_out_of_memory);
  REQUIRE(on.calls == 2 && q == NULL);
  REQUIRE(weir_pool_allocate(pool, 48 * mib, 0, on.stream, &q) == weir_error_out_of_memory);
  REQUIRE(on.calls == 3);
  /* Nothing but a lack of memory is its business. */
  REQUIRE(weir_allocator_allocate_aligned(on.memory, 1, 3, on.stream, &q) ==
          weir_error_bad_alignment);
  REQUIRE(on.calls == 3);
  REQUIRE_OK(weir_allocator_set_out_of_memory_handler(on.memory, NULL, NULL));
  REQUIRE(weir_allocator_allocate(on.memory, 48 * mib, on.stream, &q) == weir_error_out_of_memory);
  REQUIRE(on.calls == 3);
  REQUIRE(weir_allocator_set_out_of_memory_handler(NULL, on_failure, &on) ==
          weir_error_invalid_argument);
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_OK(weir_pool_close(pool));
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

static int32_t jump_away(void* context, weir_allocator* memory, uint64_t size, weir_error why) {
  fixture* const on = context;
  (void)memory;
  (void)size;
  on->why = why;
  longjmp(on->way_out, 1);
}

const char* weir_test_out_of_memory_jump(void) {
  static fixture on; /* what changes between setjmp and longjmp is not in registers */
  static int round;
  void* p = NULL;

  REQUIRE_DONE(set_up(&on));
  REQUIRE_OK(weir_allocator_set_out_of_memory_handler(on.memory, jump_away, &on));
  for (round = 0; round < 100; ++round) {
    if (setjmp(on.way_out) == 0) {
      weir_allocator_allocate(on.memory, 32 * mib, on.stream, &p);
      return "the handler did not return";
    }
    REQUIRE(on.why == weir_error_out_of_memory);
  }
  /* Nothing is left behind: the allocator works, and can be closed. */
  REQUIRE_OK(weir_allocator_allocate(on.memory, 4 * mib, on.stream, &p));
  REQUIRE_OK(weir_allocator_deallocate(on.memory, p, on.stream));
  REQUIRE_DONE(tear_down(&on));
  return NULL;
}

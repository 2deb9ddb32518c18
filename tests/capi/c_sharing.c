/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing as a C program uses it: by descriptors, and over a link. */
#include <stddef.h>
#include <string.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include "c_tests.h"

enum { mib = 1 << 20 };

static void sleep_a_little(void) {
  const struct timespec millisecond = {0, 1000000};
  thrd_sleep(&millisecond, NULL);
}

const char* weir_test_descriptors(void) {
  weir_runtime* runtime = NULL;
  weir_allocator* memory = NULL;
  weir_allocator* plain = NULL;
  weir_stream* stream = NULL;
  weir_pool* pool = NULL;
  weir_imported* imported = NULL;
  weir_imported_info info;
  weir_shared_piece pieces[8];
  void* p = NULL;
  void* q = NULL;
  uint64_t count = 0;
  uint64_t offset = 0;
  uint64_t i;
  int32_t done = -1;
  unsigned char host[16];

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  memset(pieces, 0, sizeof(pieces));
  pieces[0].struct_size = sizeof(pieces[0]);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE ",sim_mode=manual", &runtime));
  REQUIRE_OK(weir_allocator_create(runtime, 0, NULL, &memory));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_pool_create(memory, "to give", weir_pool_exportable, &pool));
  REQUIRE_OK(weir_pool_allocate(pool, 5 * mib, 0, stream, &p));
  REQUIRE_OK(weir_fill(p, 6, 5 * mib, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));

  REQUIRE(weir_allocator_export_block(memory, p, NULL, 0, &count, &offset) ==
          weir_error_invalid_argument);
  REQUIRE(count >= 3 && count <= 8); /* how many there are, in units of 2 MiB */
  REQUIRE_OK(weir_allocator_export_block(memory, p, pieces, 8, &count, &offset));
  REQUIRE(pieces[0].descriptor >= 0 && pieces[0].size >= 2 * mib);

  REQUIRE_OK(weir_import_pieces(runtime, 0, pieces, count, offset, 5 * mib, weir_read, &imported));
  REQUIRE_OK(weir_imported_get_info(imported, &info));
  REQUIRE(info.size == 5 * mib && info.rights == weir_read && info.address != (uintptr_t)p);
  memset(host, 0, sizeof(host));
  REQUIRE_OK(weir_copy(host, (void*)(uintptr_t)(info.address + 5 * mib - 16), 16, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(host[0] == 6 && host[15] == 6);
  REQUIRE_OK(weir_allocator_allocate(memory, mib, stream, &q));
  REQUIRE_OK(weir_copy(q, (void*)(uintptr_t)info.address, mib, stream));
  REQUIRE_OK(weir_stream_is_complete(stream, &done));
  REQUIRE(done == 0);
  REQUIRE_OK(weir_imported_close(imported)); /* waits for the copy */
  REQUIRE_OK(weir_stream_is_complete(stream, &done));
  REQUIRE(done == 1);
  REQUIRE(weir_imported_get_info(imported, &info) == weir_error_closed);
  REQUIRE(weir_imported_close(imported) == weir_error_closed);
  REQUIRE_OK(weir_allocator_deallocate(memory, q, stream));

  REQUIRE(weir_import_pieces(runtime, 0, pieces, 0, 0, 1, weir_read, &imported) ==
          weir_error_invalid_argument);
  REQUIRE(weir_import_pieces(runtime, 0, pieces, 100000, 0, 1, weir_read, &imported) ==
          weir_error_limit_exceeded);
  REQUIRE(weir_import_pieces(runtime, 0, pieces, count, 0, 0, weir_read, &imported) ==
          weir_error_invalid_argument);
  REQUIRE(weir_import_pieces(runtime, 0, pieces, count, UINT64_MAX, 2, weir_read, &imported) ==
          weir_error_invalid_argument);
  REQUIRE(weir_import_pieces(runtime, 0, pieces, count, 0, mib, 7, &imported) ==
          weir_error_invalid_argument);
  REQUIRE(weir_import_pieces(runtime, 0, NULL, 1, 0, 1, weir_read, &imported) ==
          weir_error_invalid_argument);
  REQUIRE(weir_import_pieces(runtime, 0, pieces, count, 0, 1, weir_read, NULL) ==
          weir_error_invalid_argument);
  for (i = 0; i < count; ++i) close(pieces[i].descriptor);
  pieces[0].descriptor = 0; /* no physical memory, whatever it is */
  REQUIRE(weir_import_pieces(runtime, 0, pieces, 1, 0, 1, weir_read, &imported) != weir_ok);

  /* Nothing that is not meant to be given. */
  REQUIRE_OK(weir_allocator_create(runtime, 0, NULL, &plain));
  REQUIRE_OK(weir_allocator_allocate(plain, mib, stream, &q));
  REQUIRE(weir_allocator_export_block(plain, q, pieces, 8, &count, &offset) ==
          weir_error_not_supported);
  REQUIRE(weir_allocator_export_block(plain, p, pieces, 8, &count, &offset) ==
          weir_error_foreign_pointer);
  REQUIRE(weir_allocator_export_block(memory, p, pieces, 8, NULL, &offset) ==
          weir_error_invalid_argument);
  REQUIRE_OK(weir_allocator_deallocate(plain, q, stream));
  REQUIRE_OK(weir_allocator_close(plain));

  REQUIRE_OK(weir_allocator_free(memory, p));
  REQUIRE_OK(weir_pool_close(pool));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_allocator_close(memory));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

static const char* receive(weir_link* from, int32_t kind, weir_offer** offer) {
  weir_offer_info info;
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_link_receive(from, 2000, offer));
  REQUIRE_OK(weir_offer_get_info(*offer, &info));
  REQUIRE(info.kind == kind);
  return NULL;
}

#define REQUIRE_DONE(call)               \
  do {                                   \
    const char* const failed_ = (call);  \
    if (failed_ != NULL) return failed_; \
  } while (0)

static const char* give_memory(weir_runtime* runtime, weir_link* giver, weir_link* taker,
                               weir_shared* shared) {
  weir_offer* offer = NULL;
  weir_imported* imported = NULL;
  weir_imported_info info;
  weir_shared_info about;
  weir_stream* stream = NULL;
  uint64_t grant = 0;
  uint64_t count = 9;
  unsigned char host = 0;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  memset(&about, 0, sizeof(about));
  about.struct_size = sizeof(about);
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_shared_get_info(shared, &about));
  REQUIRE(about.device == 0 && about.size == 4 * mib && about.address != 0);
  REQUIRE_OK(weir_fill((void*)(uintptr_t)about.address, 8, 4 * mib, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));

  REQUIRE_OK(weir_link_offer_memory(giver, shared, 0, 0, weir_read, &grant));
  REQUIRE_OK(weir_link_get_outstanding(giver, &count));
  REQUIRE(count == 1);
  REQUIRE_DONE(receive(taker, weir_offer_memory, &offer));
  REQUIRE_OK(weir_offer_open_memory(offer, &imported));
  REQUIRE(weir_offer_open_memory(offer, &imported) == weir_error_moved_from);
  REQUIRE_OK(weir_offer_close(offer));
  REQUIRE_OK(weir_imported_get_info(imported, &info));
  REQUIRE(info.size == 4 * mib && info.rights == weir_read);
  REQUIRE_OK(weir_copy(&host, (void*)(uintptr_t)(info.address + 4 * mib - 1), 1, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(host == 8);

  REQUIRE(weir_link_revoke(giver, grant, 20) == weir_error_not_ready);
  REQUIRE(weir_imported_get_info(imported, &info) == weir_error_not_permitted);
  REQUIRE_OK(weir_imported_close(imported));
  REQUIRE_OK(weir_link_check(giver)); /* reads that it was let go */
  REQUIRE_OK(weir_link_get_outstanding(giver, &count));
  REQUIRE(count == 0);
  REQUIRE(weir_link_revoke(giver, 4711, 20) == weir_error_not_found);
  REQUIRE(weir_link_offer_memory(giver, shared, 0, 0, 0, &grant) == weir_error_invalid_argument);
  REQUIRE(weir_link_offer_memory(giver, shared, 5 * mib, 1, weir_read, NULL) ==
          weir_error_invalid_argument);
  REQUIRE_OK(weir_stream_close(stream));
  return NULL;
}

const char* weir_test_link(weir_runtime* runtime, weir_link* giver, weir_link* taker) {
  weir_shared* shared = NULL;
  weir_allocator* memory = NULL;
  weir_pool* pool = NULL;
  weir_event* event = NULL;
  weir_event* far_event = NULL;
  weir_stream_pool* driver_pool = NULL;
  weir_stream_pool* far_pool = NULL;
  weir_stream_pool_config config = WEIR_STREAM_POOL_CONFIG_INIT;
  weir_offer* offer = NULL;
  weir_imported* imported = NULL;
  char note[8];

  REQUIRE_OK(weir_link_check(giver));
  REQUIRE_OK(weir_shared_create(runtime, 0, 4 * mib, 0, &shared));
  REQUIRE_DONE(give_memory(runtime, giver, taker, shared));
  REQUIRE_OK(weir_shared_close(shared));
  REQUIRE(weir_shared_close(shared) == weir_error_closed);

  REQUIRE_OK(weir_allocator_create(runtime, 0, NULL, &memory));
  REQUIRE_OK(weir_pool_create(memory, "to give", weir_pool_exportable, &pool));
  REQUIRE_OK(weir_shared_allocate(memory, pool, 4 * mib, NULL, &shared));
  REQUIRE_DONE(give_memory(runtime, giver, taker, shared));
  REQUIRE_OK(weir_shared_close(shared));

  memset(note, 0, sizeof(note));
  REQUIRE_OK(weir_link_send_note(giver, "hello", 5));
  REQUIRE_DONE(receive(taker, weir_offer_note, &offer));
  REQUIRE_OK(weir_offer_get_note(offer, note, sizeof(note)));
  REQUIRE(strcmp(note, "hello") == 0);
  REQUIRE(weir_offer_get_note(offer, NULL, 1) == weir_error_invalid_argument);
  REQUIRE(weir_offer_open_memory(offer, &imported) == weir_error_invalid_argument);
  REQUIRE_OK(weir_offer_close(offer));
  REQUIRE(weir_offer_close(offer) == weir_error_closed);
  REQUIRE(weir_link_send_note(giver, NULL, 1) == weir_error_invalid_argument);

  REQUIRE_OK(weir_event_create(runtime, 0, weir_event_interprocess, &event));
  REQUIRE_OK(weir_link_offer_event(giver, event, NULL));
  REQUIRE_DONE(receive(taker, weir_offer_event, &offer));
  REQUIRE(weir_offer_get_note(offer, note, 1) == weir_error_invalid_argument);
  REQUIRE(weir_offer_open_event(offer, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_offer_open_event(offer, &far_event) != weir_ok); /* not in the same process */
  REQUIRE_OK(weir_offer_close(offer));
  REQUIRE_OK(weir_event_close(event));

  config.flags = weir_stream_pool_posix_descriptor;
  REQUIRE_OK(weir_stream_pool_create(runtime, 0, &config, &driver_pool));
  REQUIRE_OK(weir_link_offer_stream_pool(giver, driver_pool, NULL));
  REQUIRE_DONE(receive(taker, weir_offer_stream_pool, &offer));
  REQUIRE(weir_offer_open_event(offer, &far_event) == weir_error_invalid_argument);
  REQUIRE_OK(weir_offer_open_stream_pool(offer, &far_pool));
  REQUIRE_OK(weir_offer_close(offer));
  REQUIRE_OK(weir_stream_pool_close(far_pool, NULL));
  REQUIRE_OK(weir_stream_pool_close(driver_pool, NULL));

  REQUIRE(weir_link_receive(taker, 10, &offer) == weir_error_not_ready);
  REQUIRE(weir_link_receive(taker, 10, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_shared_create(runtime, 0, 1, 0, NULL) == weir_error_invalid_argument);
  REQUIRE(weir_link_get_outstanding(giver, NULL) == weir_error_invalid_argument);
  REQUIRE_OK(weir_link_close(taker));
  REQUIRE(weir_link_check(giver) == weir_error_peer_closed);
  REQUIRE_OK(weir_link_close(giver));
  REQUIRE(weir_link_check(giver) == weir_error_closed);
  REQUIRE_OK(weir_pool_close(pool));
  REQUIRE_OK(weir_allocator_close(memory));
  return NULL;
}

const char* weir_test_other_process(int32_t socket) {
  weir_runtime* runtime = NULL;
  weir_link* link = NULL;
  weir_offer* offer = NULL;
  weir_event* event = NULL;
  weir_imported* imported = NULL;
  weir_imported_info info;
  weir_stream* stream = NULL;
  unsigned char host = 0;

  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_link_open(runtime, socket, 5000, &link));
  REQUIRE_DONE(receive(link, weir_offer_memory, &offer));
  REQUIRE_OK(weir_offer_open_memory(offer, &imported));
  REQUIRE_OK(weir_offer_close(offer));
  REQUIRE_DONE(receive(link, weir_offer_event, &offer));
  REQUIRE_OK(weir_offer_open_event(offer, &event));
  REQUIRE_OK(weir_offer_close(offer));
  REQUIRE_OK(weir_stream_wait(stream, event));
  REQUIRE_OK(weir_imported_get_info(imported, &info));
  REQUIRE_OK(weir_copy(&host, (void*)(uintptr_t)info.address, 1, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE(host == 11);
  REQUIRE_OK(weir_event_close(event));
  REQUIRE_OK(weir_imported_close(imported));
  REQUIRE_OK(weir_link_close(link));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

const char* weir_test_this_process(int32_t socket) {
  weir_runtime* runtime = NULL;
  weir_link* link = NULL;
  weir_shared* shared = NULL;
  weir_shared_info about;
  weir_event* event = NULL;
  weir_stream* stream = NULL;

  memset(&about, 0, sizeof(about));
  about.struct_size = sizeof(about);
  REQUIRE_OK(weir_runtime_open(SMALL_MACHINE, &runtime));
  REQUIRE_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
  REQUIRE_OK(weir_event_create(runtime, 0, weir_event_interprocess, &event));
  REQUIRE_OK(weir_shared_create(runtime, 0, 4 * mib, 0, &shared));
  REQUIRE_OK(weir_shared_get_info(shared, &about));
  REQUIRE_OK(weir_fill((void*)(uintptr_t)about.address, 11, 4 * mib, stream));
  REQUIRE_OK(weir_event_record(event, stream));
  REQUIRE_OK(weir_stream_synchronize(stream));
  REQUIRE_OK(weir_link_open(runtime, socket, 5000, &link));
  REQUIRE_OK(weir_link_offer_memory(link, shared, 0, 0, weir_read_write, NULL));
  REQUIRE_OK(weir_link_offer_event(link, event, NULL));
  while (weir_link_check(link) == weir_ok) sleep_a_little();
  REQUIRE_OK(weir_link_close(link));
  REQUIRE_OK(weir_shared_close(shared));
  REQUIRE_OK(weir_event_close(event));
  REQUIRE_OK(weir_stream_close(stream));
  REQUIRE_OK(weir_runtime_close(runtime));
  return NULL;
}

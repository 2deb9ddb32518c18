// SPDX-License-Identifier: Apache-2.0
// The C ABI's sharing, by descriptors and over a link, each argument told apart from the others.
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "c_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::Each;

[[nodiscard]] bool is_open(int number) { return ::fcntl(number, F_GETFD) != -1; }

// --- By descriptors ------------------------------------------------------------------------------

class c_descriptors : public c_memory {
 protected:
  void SetUp() override {
    ASSERT_OK(weir_allocator_create(runtime, 0, "heap_exportable=on", &exporter));
    ASSERT_OK(weir_allocator_allocate(exporter, 1000, stream, &small));
    ASSERT_OK(weir_allocator_allocate(exporter, 5 * mib, stream, &large));
    EXPECT_OK(weir_fill(large, 1, 5 * mib, stream));
    EXPECT_OK(weir_fill(static_cast<char*>(large) + 4 * mib, 2, mib, stream));
    wait_for_all();
    std::memset(static_cast<void*>(pieces), 0, sizeof(pieces));
    pieces[0].struct_size = sizeof(pieces[0]);
    ASSERT_OK(weir_allocator_export_block(exporter, large, pieces, 8, &count, &offset));
  }
  void TearDown() override {
    for (std::uint64_t i = 0; i < count; ++i) ::close(pieces[i].descriptor);
    EXPECT_OK(weir_allocator_free(exporter, small));
    EXPECT_OK(weir_allocator_free(exporter, large));
    EXPECT_OK(weir_allocator_close(exporter));
    c_memory::TearDown();
  }
  [[nodiscard]] static weir_imported_info info_of(weir_imported* imported) {
    return read<weir_imported_info>(
        [&](auto* into) { return weir_imported_get_info(imported, into); });
  }
  [[nodiscard]] static const void* at(std::uint64_t address) {
    return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address));
  }
  [[nodiscard]] std::string import(std::uint64_t number, std::uint64_t from, std::uint64_t size,
                                   std::int32_t rights = weir_read) {
    weir_imported* imported = nullptr;
    const weir_error code =
        weir_import_pieces(runtime, 0, pieces, number, from, size, rights, &imported);
    const std::string refusal = said(code);
    EXPECT_OK(weir_imported_close(imported));
    return refusal;
  }

  weir_allocator* exporter = nullptr;
  void* small = nullptr;
  void* large = nullptr;
  weir_shared_piece pieces[8];
  std::uint64_t count = 0;
  std::uint64_t offset = 0;
};

TEST_F(c_descriptors, are_of_the_handles_under_a_block) {
  const auto under =
      capi::find(exporter).value()->memory.handles_under(static_cast<const void*>(large)).value();
  ASSERT_EQ(count, under.handles.size());
  EXPECT_EQ(offset, under.offset.count());
  for (std::uint64_t i = 0; i < count; ++i) {
    EXPECT_EQ(pieces[i].size, under.handles[i].size.count());
    EXPECT_EQ(pieces[i].struct_size, sizeof(pieces[i]));
    EXPECT_TRUE(is_open(pieces[i].descriptor));
  }
  for (std::uint64_t i = count; i < 8; ++i) {
    EXPECT_EQ(pieces[i].struct_size, 0u) << "nothing is written behind the last one";
    EXPECT_EQ(pieces[i].size, 0u);
    EXPECT_EQ(pieces[i].descriptor, 0);
  }
  void* second = nullptr;
  ASSERT_OK(weir_allocator_allocate(exporter, 1000, stream, &second));
  std::uint64_t inside = 0;
  std::uint64_t number = 0;
  weir_shared_piece one = unset<weir_shared_piece>();
  ASSERT_OK(weir_allocator_export_block(exporter, second, &one, 1, &number, &inside));
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(inside,
            capi::find(exporter).value()->memory.handles_under(second).value().offset.count());
  EXPECT_NE(inside, 0u) << "another block lies before it";
  ::close(one.descriptor);
  EXPECT_OK(weir_allocator_free(exporter, second));

  number = 99;
  inside = 99;
  EXPECT_EQ(said(weir_allocator_export_block(exporter, large, pieces, count - 1, &number, &inside)),
            "invalid_argument: the array is too short for all pieces; pass a larger capacity");
  EXPECT_EQ(number, count);
  EXPECT_EQ(inside, 99u);
  EXPECT_EQ(weir_allocator_export_block(exporter, this, pieces, 8, &number, &inside),
            weir_error_foreign_pointer);
  void* const plain = allocate(1000, stream);
  EXPECT_EQ(weir_allocator_export_block(memory, plain, pieces, 8, &number, &inside),
            weir_error_not_supported);
  EXPECT_OK(weir_allocator_free(memory, plain));
}

TEST_F(c_descriptors, are_mapped_one_behind_the_other) {
  weir_imported* imported = nullptr;
  ASSERT_OK(weir_import_pieces(runtime, 0, pieces, count, offset + 4 * mib - 8, mib, weir_read,
                               &imported));
  const weir_imported_info info = info_of(imported);
  EXPECT_EQ(info.size, mib);
  EXPECT_EQ(info.rights, weir_read);
  EXPECT_EQ(bytes_at(at(info.address), 16),
            (std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2}));
  unsigned long long flags = 0;
  const driver::CUmemLocation place{driver::CU_MEM_LOCATION_TYPE_DEVICE, 0};
  ASSERT_EQ(machine->driver().mem_get_access(&flags, &place, info.address), driver::CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{driver::CU_MEM_ACCESS_FLAGS_PROT_READ});
  EXPECT_TRUE(is_open(pieces[0].descriptor)) << "they stay the caller's";
  EXPECT_OK(weir_imported_close(imported));

  ASSERT_OK(weir_import_pieces(runtime, 0, pieces, count, 0, 1, weir_read_write, &imported));
  EXPECT_EQ(info_of(imported).rights, weir_read_write);
  ASSERT_EQ(machine->driver().mem_get_access(&flags, &place, info_of(imported).address),
            driver::CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  EXPECT_OK(weir_imported_close(imported));
}

TEST_F(c_descriptors, are_mapped_as_far_as_they_reach) {
  std::uint64_t total = 0;
  for (std::uint64_t i = 0; i < count; ++i) total += pieces[i].size;
  const std::string outside = "invalid_argument: the part exceeds the pieces";
  EXPECT_EQ(import(count, 0, total), "");
  EXPECT_EQ(import(count, 0, total + 1), outside);
  EXPECT_EQ(import(count, total - 1, 1), "");
  EXPECT_EQ(import(count, total - 1, 2), outside);
  EXPECT_EQ(import(count, total, 1), outside);
  EXPECT_EQ(import(count, total, 0), outside);
  EXPECT_EQ(import(count, UINT64_MAX, 2), outside);
  EXPECT_EQ(import(count, 0, 0), outside);
  for (const std::int32_t none : {0, 3})
    EXPECT_EQ(import(count, 0, 1, none), "invalid_argument: access: unknown value");
  EXPECT_EQ(import(0, 0, 1), "invalid_argument: count must be greater than zero");
  EXPECT_EQ(import(241, 0, 1), "limit_exceeded: too many pieces");

  const weir_shared_piece good = pieces[0];
  pieces[0].size = 0;
  EXPECT_EQ(import(1, 0, 1), "invalid_argument: a piece has size zero");
  pieces[0] = good;
  pieces[0].descriptor = -1;
  EXPECT_EQ(import(1, 0, 1), "invalid_argument: a piece has size zero");
  pieces[0] = good;
  const std::uint64_t second = pieces[1].size;
  pieces[1].size = UINT64_MAX;
  EXPECT_EQ(import(2, 0, 1), "size_overflow");
  pieces[1].size = second;
  pieces[0].struct_size = sizeof(pieces[0]) - 1;
  EXPECT_EQ(import(1, 0, 1), "bad_version: struct_size must be from 16 to 65536, got 15");
  pieces[0] = good;
}

// A program that closed its input gets 0 for the next file that it opens.
TEST_F(c_descriptors, may_be_zero) {
  const int input = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  ASSERT_EQ(::dup2(pieces[0].descriptor, STDIN_FILENO), STDIN_FILENO);
  const int given = std::exchange(pieces[0].descriptor, STDIN_FILENO);
  const std::string refusal = import(count, 0, 1);
  pieces[0].descriptor = given;
  ::close(STDIN_FILENO);
  if (input >= 0) ::dup2(input, STDIN_FILENO);
  if (input >= 0) ::close(input);
  EXPECT_EQ(refusal, "");
}

TEST_F(c_descriptors, of_most_pieces_are_still_read) {
  std::vector<weir_shared_piece> many(240, pieces[0]);
  many.back().size = 0;
  weir_imported* none = nullptr;
  EXPECT_EQ(said(weir_import_pieces(runtime, 0, many.data(), 240, 0, 1, weir_read, &none)),
            "invalid_argument: a piece has size zero");
}

// Of a newer caller's array the first element says how far apart they are.
TEST_F(c_descriptors, are_read_at_the_distance_that_the_first_says) {
  struct {
    weir_shared_piece known;
    std::uint64_t from_the_future;
  } wide[8];
  for (std::uint64_t i = 0; i < count; ++i) wide[i] = {pieces[i], 0};
  wide[0].known.struct_size = sizeof(wide[0]);
  weir_imported* imported = nullptr;
  for (const std::uint64_t i : {std::uint64_t{0}, count - 1}) {
    wide[i].from_the_future = 77;
    EXPECT_EQ(said(weir_import_pieces(runtime, 0, &wide[0].known, count, offset + 4 * mib, mib,
                                      weir_read, &imported)),
              "bad_version: the structure is larger than this version of weir knows, and its "
              "further members are not zero; use a newer weir");
    wide[i].from_the_future = 0;
  }
  ASSERT_OK(weir_import_pieces(runtime, 0, &wide[0].known, count, offset + 4 * mib, mib, weir_read,
                               &imported));
  EXPECT_THAT(bytes_at(at(info_of(imported).address), 16), Each(2));
  EXPECT_OK(weir_imported_close(imported));

  std::uint64_t number = 0;
  std::uint64_t inside = 0;
  std::memset(static_cast<void*>(wide), 0xa5, sizeof(wide));
  wide[0].known.struct_size = sizeof(wide[0]);
  ASSERT_OK(weir_allocator_export_block(exporter, large, &wide[0].known, 8, &number, &inside));
  for (std::uint64_t i = 0; i < number; ++i) {
    EXPECT_EQ(wide[i].known.size, pieces[i].size);
    EXPECT_EQ(wide[i].known.struct_size, sizeof(weir_shared_piece));
    EXPECT_EQ(wide[i].from_the_future, 0u);
    ::close(wide[i].known.descriptor);
  }
}

TEST_F(c_descriptors, are_unmapped_when_the_device_is_done_beside_a_capture_too) {
  weir_imported* imported = nullptr;
  ASSERT_OK(weir_import_pieces(runtime, 0, pieces, count, offset, mib, weir_read, &imported));
  void* const copy = allocate(mib, other);
  EXPECT_OK(weir_copy(copy, at(info_of(imported).address), mib, other));
  EXPECT_FALSE(is_idle(other));
  const auto& table = machine->driver();
  {
    const context_scope bound{device()};
    ASSERT_EQ(table.stream_begin_capture(native(stream), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
              driver::CUDA_SUCCESS);
    const std::uint64_t unmapped = calls(driver::call::mem_unmap);
    EXPECT_OK(weir_imported_close(imported));
    EXPECT_EQ(calls(driver::call::mem_unmap), unmapped + count);
    driver::CUgraph graph = nullptr;
    ASSERT_EQ(table.stream_end_capture(native(stream), &graph), driver::CUDA_SUCCESS);
    ASSERT_EQ(table.graph_destroy(graph), driver::CUDA_SUCCESS);
  }
  EXPECT_TRUE(is_idle(other)) << "its work was waited for";
  EXPECT_EQ(said(weir_imported_close(imported)), "closed: the imported is closed");
  EXPECT_OK(weir_allocator_free(memory, copy));
}

TEST_F(c_descriptors, stay_open_when_the_device_cannot_be_waited_for) {
  weir_imported* imported = nullptr;
  ASSERT_OK(weir_import_pieces(runtime, 0, pieces, count, offset, mib, weir_read, &imported));
  const std::uint64_t unmapped = calls(driver::call::mem_unmap);
  machine->fail(driver::call::mem_free, 1, driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_NE(weir_imported_close(imported), weir_ok);
  EXPECT_EQ(weir_last_error_native(), driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(calls(driver::call::mem_unmap), unmapped);
  EXPECT_EQ(info_of(imported).size, mib) << "its work may go on";
  EXPECT_OK(weir_imported_close(imported));
  EXPECT_EQ(calls(driver::call::mem_unmap), unmapped + count);
  EXPECT_EQ(said(weir_imported_close(imported)), "closed: the imported is closed");
}

TEST_F(c_descriptors, are_mapped_on_the_device_that_was_named) {
  weir_allocator* far = nullptr;
  void* p = nullptr;
  ASSERT_OK(weir_allocator_create(runtime, 1, "heap_exportable=on", &far));
  ASSERT_OK(weir_allocator_allocate(far, 4 * mib, elsewhere, &p));
  std::uint64_t number = 0;
  std::uint64_t inside = 0;
  weir_shared_piece of_far[4];
  of_far[0].struct_size = sizeof(of_far[0]);
  ASSERT_OK(weir_allocator_export_block(far, p, of_far, 4, &number, &inside));
  weir_imported* imported = nullptr;
  ASSERT_OK(weir_import_pieces(runtime, 1, of_far, number, inside, mib, weir_read, &imported));
  unsigned long long flags = 99;
  const driver::CUmemLocation second{driver::CU_MEM_LOCATION_TYPE_DEVICE, 1};
  ASSERT_EQ(machine->driver().mem_get_access(&flags, &second, info_of(imported).address),
            driver::CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{driver::CU_MEM_ACCESS_FLAGS_PROT_READ});
  EXPECT_OK(weir_imported_close(imported));
  for (std::uint64_t i = 0; i < number; ++i) ::close(of_far[i].descriptor);
  EXPECT_OK(weir_allocator_free(far, p));
  EXPECT_OK(weir_allocator_close(far));
}

// --- Over a link ---------------------------------------------------------------------------------

class c_links : public c_memory {
 protected:
  void SetUp() override {
    std::int32_t sockets[2] = {-1, -1};
    ASSERT_OK(weir_link_create_sockets(sockets));
    std::thread far{[&] { EXPECT_OK(weir_link_open(runtime, sockets[1], 20'000, &taker)); }};
    EXPECT_OK(weir_link_open(runtime, sockets[0], 20'000, &giver));
    far.join();
    ASSERT_OK(weir_shared_create(runtime, 0, 5 * mib, 2 * mib, &shared));
    const auto info = shared_info(shared);
    void* const data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(info.address));
    EXPECT_OK(weir_fill(data, 1, 2 * mib, stream));
    EXPECT_OK(weir_fill(static_cast<char*>(data) + 2 * mib, 2, 2 * mib, stream));
    wait_for_all();
  }
  void TearDown() override {
    EXPECT_OK(weir_shared_close(shared));
    EXPECT_OK(weir_link_close(giver));
    EXPECT_OK(weir_link_close(taker));
    c_memory::TearDown();
  }
  [[nodiscard]] static weir_shared_info shared_info(weir_shared* of) {
    return read<weir_shared_info>([&](auto* into) { return weir_shared_get_info(of, into); });
  }
  [[nodiscard]] static weir_offer_info offer_info(weir_offer* of) {
    return read<weir_offer_info>([&](auto* into) { return weir_offer_get_info(of, into); });
  }
  [[nodiscard]] weir_offer* received() const {
    weir_offer* offer = nullptr;
    EXPECT_OK(weir_link_receive(taker, 1000, &offer));
    return offer;
  }
  [[nodiscard]] std::uint64_t outstanding() const {
    std::uint64_t number = 99;
    EXPECT_OK(weir_link_get_outstanding(giver, &number));
    return number;
  }

  weir_link* giver = nullptr;
  weir_link* taker = nullptr;
  weir_shared* shared = nullptr;
};

TEST_F(c_links, share_memory_of_the_size_and_unit_that_was_asked_for) {
  weir_shared_info info = shared_info(shared);
  EXPECT_EQ(info.device, 0);
  EXPECT_EQ(info.size, 5 * mib);
  EXPECT_EQ(info.unit, 2 * mib);
  EXPECT_NE(info.address, 0u);
  weir_shared* far = nullptr;
  const std::uint64_t before = used(1);
  ASSERT_OK(weir_shared_create(runtime, 1, 5 * mib, 0, &far));
  info = shared_info(far);
  EXPECT_EQ(info.device, 1);
  EXPECT_EQ(info.unit, 8 * mib);
  EXPECT_EQ(used(1), before + 8 * mib);
  EXPECT_OK(weir_shared_close(far));
  EXPECT_EQ(used(1), before);

  weir_pool* pool = nullptr;
  ASSERT_OK(weir_pool_create(memory, "to share", weir_pool_exportable, &pool));
  ASSERT_OK(weir_shared_allocate(memory, pool, 3 * mib, other, &far));
  info = shared_info(far);
  EXPECT_EQ(info.size, 3 * mib);
  EXPECT_EQ(info.unit, 2 * mib);
  const void* const data = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(info.address));
  EXPECT_EQ(block_at(data).stream, id(other));
  EXPECT_NE(block_at(data).pool, 0u);
  EXPECT_OK(weir_shared_close(far));
  weir_pool* plain = nullptr;
  ASSERT_OK(weir_pool_create(memory, "plain", 0, &plain));
  EXPECT_EQ(weir_shared_allocate(memory, plain, mib, stream, &far), weir_error_not_supported);
  EXPECT_OK(weir_pool_close(plain));
  EXPECT_OK(weir_pool_close(pool));
}

TEST_F(c_links, offer_the_part_and_the_rights_that_were_named) {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  ASSERT_OK(weir_link_offer_memory(giver, shared, 2 * mib - 4, mib, weir_read, &first));
  ASSERT_OK(weir_link_offer_memory(giver, shared, mib, 0, weir_read_write, &second));
  EXPECT_GT(second, first);
  EXPECT_EQ(outstanding(), 2u);

  weir_offer* offer = received();
  weir_offer_info about = offer_info(offer);
  EXPECT_EQ(about.kind, weir_offer_memory);
  EXPECT_EQ(about.rights, weir_read);
  EXPECT_EQ(about.size, mib);
  weir_event* none = nullptr;
  weir_stream_pool* no_pool = nullptr;
  char text[4];
  EXPECT_EQ(said(weir_offer_open_event(offer, &none)),
            "invalid_argument: the offer is not of kind event");
  EXPECT_EQ(said(weir_offer_open_stream_pool(offer, &no_pool)),
            "invalid_argument: the offer is not of kind pool");
  EXPECT_EQ(said(weir_offer_get_note(offer, text, 4)), "invalid_argument: the offer is not a note");
  EXPECT_EQ(said(weir_offer_open_memory(offer, nullptr)), "invalid_argument: imported is null");
  weir_imported* imported = nullptr;
  ASSERT_OK(weir_offer_open_memory(offer, &imported));
  const std::string opened = "moved_from: the offer was already opened";
  EXPECT_EQ(said(weir_offer_open_memory(offer, &imported)), opened);
  EXPECT_EQ(said(weir_offer_open_event(offer, &none)), opened);
  EXPECT_EQ(said(weir_offer_open_stream_pool(offer, &no_pool)), opened);
  EXPECT_EQ(said(weir_offer_get_note(offer, text, 4)), opened);
  EXPECT_EQ(said(weir_offer_get_info(offer, &about)), opened);
  EXPECT_OK(weir_offer_close(offer));

  auto info =
      read<weir_imported_info>([&](auto* into) { return weir_imported_get_info(imported, into); });
  EXPECT_EQ(info.size, mib);
  EXPECT_EQ(info.rights, weir_read);
  EXPECT_EQ(bytes_at(reinterpret_cast<const void*>(static_cast<std::uintptr_t>(info.address)), 8),
            (std::vector<int>{1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(weir_link_revoke(giver, first, 5), weir_error_not_ready);
  EXPECT_EQ(weir_imported_get_info(imported, &info), weir_error_not_permitted);
  EXPECT_OK(weir_imported_close(imported));
  EXPECT_EQ(weir_link_revoke(giver, first, 5), weir_error_not_found);
  EXPECT_EQ(outstanding(), 1u);

  offer = received();
  about = offer_info(offer);
  EXPECT_EQ(about.rights, weir_read_write);
  EXPECT_EQ(about.size, 4 * mib) << "up to the end";
  EXPECT_OK(weir_offer_close(offer));
  EXPECT_EQ(outstanding(), 0u);
  EXPECT_EQ(weir_link_offer_memory(giver, shared, 5 * mib, 0, weir_read, nullptr),
            weir_error_invalid_argument);
  for (const std::int32_t rights : {0, 3})
    EXPECT_EQ(said(weir_link_offer_memory(giver, shared, 0, 0, rights, nullptr)),
              "invalid_argument: access: unknown value");
}

TEST_F(c_links, carry_notes) {
  EXPECT_OK(weir_link_send_note(giver, "hello", 3));
  EXPECT_OK(weir_link_send_note(giver, nullptr, 0));
  weir_offer* offer = received();
  const weir_offer_info about = offer_info(offer);
  EXPECT_EQ(about.kind, weir_offer_note);
  EXPECT_EQ(about.size, 3u);
  EXPECT_EQ(about.rights, 0);
  char text[6] = "#####";
  EXPECT_OK(weir_offer_get_note(offer, text, 2));
  EXPECT_STREQ(text, "he###");
  EXPECT_OK(weir_offer_get_note(offer, text, 5));
  EXPECT_STREQ(text, "hel##");
  EXPECT_OK(weir_offer_get_note(offer, nullptr, 0));
  EXPECT_EQ(said(weir_offer_get_note(offer, nullptr, 1)), "invalid_argument: note is null");
  weir_imported* none = nullptr;
  EXPECT_EQ(said(weir_offer_open_memory(offer, &none)),
            "invalid_argument: the offer is not of kind memory");
  EXPECT_OK(weir_offer_close(offer));
  offer = received();
  EXPECT_EQ(offer_info(offer).size, 0u);
  EXPECT_OK(weir_offer_close(offer));
  EXPECT_EQ(said(weir_link_send_note(giver, nullptr, 1)), "invalid_argument: note is null");
  const std::string longest(1024, 'x');
  EXPECT_OK(weir_link_send_note(giver, longest.data(), 1024));
  EXPECT_EQ(weir_link_send_note(giver, longest.data(), 1025), weir_error_invalid_argument);
  EXPECT_OK(weir_offer_close(received()));
}

TEST_F(c_links, offer_events_and_pools) {
  weir_event* event = nullptr;
  weir_event* local = nullptr;
  ASSERT_OK(weir_event_create(runtime, 0, weir_event_interprocess, &event));
  ASSERT_OK(weir_event_create(runtime, 0, 0, &local));
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  EXPECT_EQ(weir_link_offer_event(giver, local, &first), weir_error_invalid_argument);
  EXPECT_EQ(first, 0u);
  ASSERT_OK(weir_link_offer_event(giver, event, &first));
  weir_stream_pool_config config = WEIR_STREAM_POOL_CONFIG_INIT;
  config.flags = weir_stream_pool_posix_descriptor;
  weir_stream_pool* pool = nullptr;
  ASSERT_OK(weir_stream_pool_create(runtime, 0, &config, &pool));
  ASSERT_OK(weir_link_offer_stream_pool(giver, pool, &second));
  EXPECT_GT(second, first);
  EXPECT_GT(first, 0u);
  EXPECT_EQ(outstanding(), 0u);

  weir_offer* offer = received();
  EXPECT_EQ(offer_info(offer).kind, weir_offer_event);
  EXPECT_EQ(said(weir_offer_open_event(offer, nullptr)), "invalid_argument: event is null");
  EXPECT_OK(weir_offer_close(offer));
  offer = received();
  EXPECT_EQ(offer_info(offer).kind, weir_offer_stream_pool);
  EXPECT_EQ(said(weir_offer_open_stream_pool(offer, nullptr)), "invalid_argument: pool is null");
  weir_stream_pool* seen = nullptr;
  ASSERT_OK(weir_offer_open_stream_pool(offer, &seen));
  EXPECT_OK(weir_offer_close(offer));
  void* none = nullptr;
  EXPECT_EQ(weir_stream_pool_allocate(seen, 1, 0, stream, &none), weir_error_not_supported);
  std::int32_t rights = -1;
  EXPECT_OK(weir_stream_pool_get_peer(seen, 0, &rights)) << "it knows its runtime";
  EXPECT_OK(weir_stream_pool_close(seen, nullptr));
  EXPECT_OK(weir_stream_pool_close(pool, nullptr));
  EXPECT_OK(weir_event_close(event));
  EXPECT_OK(weir_event_close(local));
}

TEST_F(c_links, wait_as_long_as_was_said) {
  weir_offer* none = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(weir_link_receive(taker, 30, &none), weir_error_not_ready);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{30});
  EXPECT_EQ(said(weir_link_receive(taker, 0, nullptr)), "invalid_argument: offer is null");
  EXPECT_EQ(said(weir_link_get_outstanding(taker, nullptr)), "invalid_argument: count is null");
}

TEST_F(c_links, end_with_their_handles) {
  EXPECT_OK(weir_link_check(giver));
  EXPECT_OK(weir_link_close(taker));
  EXPECT_EQ(weir_link_check(giver), weir_error_peer_closed);
  EXPECT_EQ(said(weir_link_close(taker)), "closed: the link is closed");
  taker = nullptr;
}

// The socket is weir's from the call on, whatever comes of it.
TEST_F(c_links, take_their_socket_over) {
  std::int32_t sockets[2] = {-1, -1};
  weir_link* none = nullptr;
  for (int round = 0; round < 3; ++round) {
    ASSERT_OK(weir_link_create_sockets(sockets));
    EXPECT_NE(sockets[0], sockets[1]);
    EXPECT_TRUE(is_open(sockets[0]) && is_open(sockets[1]));
    const weir_error code = round == 0   ? weir_link_open(nullptr, sockets[0], 10, &none)
                            : round == 1 ? weir_link_open(runtime, sockets[0], 10, nullptr)
                                         : weir_link_open(runtime, sockets[0], 10, &none);
    EXPECT_EQ(code, round == 2 ? weir_error_not_ready : weir_error_invalid_argument);
    EXPECT_FALSE(is_open(sockets[0]));
    EXPECT_TRUE(is_open(sockets[1]));
    ::close(sockets[1]);
  }
  EXPECT_EQ(said(weir_link_open(runtime, -1, 10, &none)),
            "invalid_argument: not a Unix socket for messages");
}

}  // namespace
}  // namespace weir::testing_support

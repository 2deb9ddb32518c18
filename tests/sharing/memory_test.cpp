// SPDX-License-Identifier: Apache-2.0
// Offers and imports over a link, with both ends in one process.
#include <unistd.h>

#include <thread>

#include "sharing/sharing_fixture.hpp"

namespace weir::testing_support { namespace {

class shared_memory_test : public sharing_test {};
WEIR_CONTRACT(shared_memory_test);

using ::testing::ElementsAre;
using ::testing::Property;

TEST_P(shared_memory_test, is_one_handle_or_many) {
  const auto whole = shared_memory::create(gpu(), 5_MiB).value();
  EXPECT_EQ(whole.size(), 5_MiB);
  EXPECT_EQ(whole.unit(), round_to_granularity(gpu(), 5_MiB).value());
  const auto pieces = shared_memory::create(gpu(), 5_MiB, {.unit = 1_B}).value();
  EXPECT_EQ(pieces.unit(), unit());
  EXPECT_EQ(fill(pieces.address(), 7, 5 * mib / 4, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(mismatches(pieces.address(), 7, 5 * mib / 4), 0u);
  EXPECT_EQ(code_of(shared_memory::create(gpu(), bytes{})), errc::invalid_argument);
  EXPECT_EQ(code_of(shared_memory::create(gpu(), bytes::max())), errc::size_overflow);
  EXPECT_EQ(reason_of(shared_memory::create(gpu(), unit() * 241, {.unit = unit()})),
            "limit_exceeded: more than 240 handles");
  EXPECT_EQ(whole.device(), gpu());
  EXPECT_FALSE(shared_memory{});
}

TEST_P(shared_memory_test, is_of_the_device_that_was_asked_for) {
  if (machine_runtime->device_count() < 2) GTEST_SKIP() << "there is one device";
  auto [here, there] = link_to_itself();
  const auto second = machine_runtime->device(device_id{1}).value();
  const auto memory = shared_memory::create(second, unit()).value();
  EXPECT_EQ(memory.device(), second);
  static_cast<void>(here.offer(memory).value());
  auto offer = there.receive(1s).value();
  EXPECT_EQ(offer.ticket().device, second.uuid().value());
  const auto taken = offer.open_memory().value();
  const auto rights_of = [&](int number) {
    unsigned long long flags = 0;
    const CUmemLocation place{CU_MEM_LOCATION_TYPE_DEVICE, number};
    EXPECT_EQ(cu->mem_get_access(&flags, &place, taken.mapped_at()), CUDA_SUCCESS);
    return flags;
  };
  EXPECT_EQ(rights_of(0), unsigned{CU_MEM_ACCESS_FLAGS_PROT_NONE});
  EXPECT_EQ(rights_of(1), unsigned{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
}

TEST_P(shared_memory_test, is_seen_at_the_other_end) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), 5_MiB).value();
  ASSERT_EQ(fill(memory.address(), 7, 16, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu->ctx_synchronize(), CUDA_SUCCESS);
  const auto grant = here.offer(memory).value();
  auto offer = there.receive(1s).value();
  EXPECT_FALSE(offer.is_note());
  EXPECT_EQ(offer.ticket().grant, grant.number());
  EXPECT_EQ(offer.ticket().size, 5_MiB);
  EXPECT_EQ(code_of(offer.open_event()), errc::invalid_argument);  // and it is still there
  EXPECT_EQ(reason_of(offer.open_event()), "invalid_argument: the offer is not of kind event");
  EXPECT_EQ(reason_of(offer.open_pool()), "invalid_argument: the offer is not of kind pool");
  auto taken = offer.open_memory().value();
  EXPECT_EQ(code_of(offer.open_memory()), errc::moved_from);
  EXPECT_EQ(code_of(offer.open_event()), errc::moved_from);
  EXPECT_FALSE(offer.is_note());
  EXPECT_TRUE(offer.note().empty());
  EXPECT_EQ(offer.ticket(), share_ticket{});
  EXPECT_EQ(taken.size(), 5_MiB);
  EXPECT_EQ(taken.rights(), access_rights::read_write);
  EXPECT_NE(taken.address().value(), memory.address());
  EXPECT_EQ(taken.address().value(), taken.mapped_at());
  EXPECT_EQ(words(taken.mapped_at(), 16), words(memory.address(), 16));
  EXPECT_EQ(here.outstanding(), 1u);
  EXPECT_TRUE(taken.close());
  EXPECT_EQ(code_of(taken.address()), errc::closed);
  EXPECT_EQ(code_of(taken.allow(gpu())), errc::closed);
  EXPECT_EQ(code_of(imported_memory{}.address()), errc::moved_from);
  EXPECT_EQ(code_of(imported_memory{}.close()), errc::moved_from);
  EXPECT_EQ(code_of(imported_memory{}.allow(gpu())), errc::moved_from);
  EXPECT_EQ(imported_memory{}.mapped_at(), 0u);
  EXPECT_EQ(imported_memory{}.size(), bytes{});
  EXPECT_EQ(imported_memory{}.rights(), access_rights::none);
  EXPECT_EQ(taken.mapped_at(), 0u);
  EXPECT_EQ(here.outstanding(), 0u);
  EXPECT_TRUE(taken.close());
}

TEST_P(shared_memory_test, an_offer_that_another_takes_the_place_of_is_released) {
  auto [here, there] = link_to_itself();
  const auto one = shared_memory::create(gpu(), unit()).value();
  const auto two = shared_memory::create(gpu(), unit()).value();
  ASSERT_TRUE(here.offer(one));
  const auto second = here.offer(two).value();
  auto offer = there.receive(1s).value();
  EXPECT_EQ(here.outstanding(), 2u);
  offer = there.receive(1s).value();
  EXPECT_EQ(here.outstanding(), 1u);
  EXPECT_EQ(offer.ticket().grant, second.number());
  const auto taken = offer.open_memory().value();
  EXPECT_TRUE(taken);
  EXPECT_FALSE(imported_memory{});
  EXPECT_EQ(taken.size(), unit());
}

/// Memory in handles of their own, each filled with its number.
class shared_handles : public sharing_test {
 protected:
  void SetUp() override {
    sharing_test::SetUp();
    if (machine == nullptr || IsSkipped()) return;
    words_each = unit().count() / sizeof(word);
    memory = numbered(10);
    ends.emplace(link_to_itself());
  }
  void TearDown() override {
    memory = {};
    ends.reset();
    sharing_test::TearDown();
  }
  shared_memory numbered(word first) {
    auto filled = shared_memory::create(gpu(), unit() * 4, {.unit = unit()}).value();
    for (word i = 0; i < 4; ++i)
      EXPECT_EQ(fill(filled.address() + i * unit().count(), first + i, words_each, nullptr),
                CUDA_SUCCESS);
    EXPECT_EQ(cu->ctx_synchronize(), CUDA_SUCCESS);
    return filled;
  }
  imported_memory share(const shared_memory& source, share_view part = {}) {
    static_cast<void>(ends->first.offer(source, part).value());
    return ends->second.receive(1s).value().open_memory().value();
  }
  word first_word(const imported_memory& taken) { return words(taken.mapped_at(), 1).front(); }

  std::size_t words_each = 0;
  shared_memory memory;
  std::optional<std::pair<share_link, share_link>> ends;
};
WEIR_CONTRACT(shared_handles);

TEST_P(shared_handles, of_a_part_are_mapped_in_their_order) {
  const auto taken = share(memory, {.offset = unit() + 4_KiB, .size = unit() * 2});
  EXPECT_EQ(taken.size(), unit() * 2);
  const std::size_t in_first = words_each - 1024;
  EXPECT_EQ(mismatches(taken.mapped_at(), 11, in_first), 0u);
  EXPECT_EQ(mismatches(taken.mapped_at() + in_first * 4, 12, words_each), 0u);
  EXPECT_EQ(mismatches(taken.mapped_at() + (in_first + words_each) * 4, 13, 1024), 0u);
  std::size_t size = 0;
  CUdeviceptr base = 0;
  EXPECT_EQ(cu->mem_get_address_range(&base, &size, taken.mapped_at()), CUDA_SUCCESS);
  EXPECT_EQ(base, taken.mapped_at() - 4096);
}

TEST_P(shared_handles, of_different_parts_are_mapped_apart) {
  const auto second = share(memory, {.offset = unit(), .size = unit()});
  const auto third = share(memory, {.offset = unit() * 2, .size = unit()});
  const auto both = share(memory, {.offset = unit(), .size = unit() * 2});
  const auto other_memory = numbered(30);
  const auto of_other = share(other_memory, {.offset = unit(), .size = unit()});
  EXPECT_EQ(first_word(second), 11u);
  EXPECT_EQ(first_word(third), 12u);
  EXPECT_EQ(mismatches(both.mapped_at() + unit().count(), 12, words_each), 0u);
  EXPECT_EQ(first_word(of_other), 31u);
  // Of the same handles another offset needs no mapping of its own.
  const auto inside = share(memory, {.offset = unit() + 4_KiB, .size = 4_KiB});
  EXPECT_EQ(inside.mapped_at(), second.mapped_at() + 4096);
  EXPECT_EQ(inside.size(), 4_KiB);
  const auto beginning = share(memory, {.size = 4_KiB});
  EXPECT_EQ(share(memory, {.size = unit()}).mapped_at(), beginning.mapped_at());
}

TEST_P(shared_handles, are_unmapped_with_the_last_import_of_them) {
  const auto is_mapped = [&](CUdeviceptr address) {
    std::size_t size = 0;
    CUdeviceptr base = 0;
    return cu->mem_get_address_range(&base, &size, address) == CUDA_SUCCESS;
  };
  const auto first = share(memory, {.size = unit()});
  auto second = share(memory, {.size = unit()});
  const CUdeviceptr address = first.mapped_at();
  ASSERT_EQ(second.mapped_at(), address);
  EXPECT_TRUE(first.close());
  EXPECT_TRUE(is_mapped(address));
  EXPECT_EQ(first_word(second), 10u);
  EXPECT_EQ(ends->first.outstanding(), 1u);
  second = {};
  EXPECT_FALSE(is_mapped(address));
  EXPECT_EQ(ends->first.outstanding(), 0u);
  EXPECT_EQ(first_word(share(memory, {.size = unit()})), 10u);  // and mapped anew
}

TEST_P(shared_memory_test, is_mapped_once_and_with_the_granted_rights) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  const auto take = [&, &from = here, &to = there](access_rights rights) {
    static_cast<void>(from.offer(memory, {.rights = rights}).value());
    return to.receive(1s).value().open_memory().value();
  };
  auto first = take(access_rights::read);
  auto second = take(access_rights::read);
  const auto writable = take(access_rights::read_write);
  EXPECT_EQ(first.mapped_at(), second.mapped_at());
  EXPECT_NE(first.mapped_at(), writable.mapped_at());
  const auto rights_at = [&](CUdeviceptr address) {
    unsigned long long flags = 0;
    const CUmemLocation place{CU_MEM_LOCATION_TYPE_DEVICE, device};
    EXPECT_EQ(cu->mem_get_access(&flags, &place, address), CUDA_SUCCESS);
    return flags;
  };
  EXPECT_EQ(rights_at(first.mapped_at()), unsigned{CU_MEM_ACCESS_FLAGS_PROT_READ});
  EXPECT_EQ(rights_at(writable.mapped_at()), unsigned{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  EXPECT_EQ(first.rights(), access_rights::read);
  EXPECT_TRUE(first.close());
  EXPECT_EQ(rights_at(second.mapped_at()), unsigned{CU_MEM_ACCESS_FLAGS_PROT_READ});
  EXPECT_EQ(here.outstanding(), 2u);
}

TEST_P(shared_memory_test, is_freed_when_the_last_has_released_it) {
  auto [here, there] = link_to_itself();
  const auto free_now = [&] { return gpu().memory_info().value().free; };
  const bytes before = free_now();
  auto memory = shared_memory::create(gpu(), unit() * 16).value();
  static_cast<void>(here.offer(memory).value());
  auto taken = there.receive(1s).value().open_memory().value();
  memory = {};
  EXPECT_LT(free_now(), before);
  EXPECT_EQ(fill(taken.mapped_at(), 3, 16, nullptr), CUDA_SUCCESS);  // it is still there
  EXPECT_EQ(mismatches(taken.mapped_at(), 3, 16), 0u);
  taken = {};
  EXPECT_EQ(here.outstanding(), 0u);
  EXPECT_GE(free_now(), before);
}

TEST_P(shared_memory_test, can_be_revoked) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  const auto grant = here.offer(memory).value();
  auto taken = there.receive(1s).value().open_memory().value();
  EXPECT_EQ(code_of(here.revoke(grant, 30ms)), errc::not_ready);  // nobody listens yet
  EXPECT_EQ(here.outstanding(), 1u);
  EXPECT_EQ(code_of(taken.address()), errc::not_permitted);
  EXPECT_NE(taken.mapped_at(), 0u);
  EXPECT_TRUE(taken.close());
  EXPECT_EQ(code_of(here.revoke(grant, 30ms)), errc::not_found);

  // An offer that waits to be opened goes by itself; one in hand cannot be opened any more.
  static_cast<void>(here.offer(memory).value());
  const auto second = here.offer(memory).value();
  auto in_hand = there.receive(1s).value();
  EXPECT_TRUE(there.check());  // takes the second in
  EXPECT_EQ(code_of(here.revoke(second, 0ms)), errc::not_ready);
  EXPECT_TRUE(there.check());
  EXPECT_EQ(here.outstanding(), 1u);
  EXPECT_EQ(code_of(there.receive(0ms)), errc::not_ready);
  EXPECT_EQ(code_of(here.revoke(share_grant{in_hand.ticket().grant}, 0ms)), errc::not_ready);
  EXPECT_EQ(code_of(in_hand.open_memory()), errc::not_permitted);
  EXPECT_EQ(here.outstanding(), 0u);

  // Of two that wait it is the one that was meant.
  const auto stays = here.offer(memory).value();
  const auto goes = here.offer(memory).value();
  EXPECT_TRUE(there.check());
  EXPECT_EQ(code_of(here.revoke(goes, 0ms)), errc::not_ready);
  EXPECT_TRUE(there.check());
  EXPECT_EQ(there.receive(0ms).value().ticket().grant, stays.number());
  EXPECT_EQ(code_of(there.receive(0ms)), errc::not_ready);
}

TEST_P(shared_memory_test, an_offer_that_nobody_opens_goes_back) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  static_cast<void>(here.offer(memory).value());
  { const auto dropped = there.receive(1s).value(); }
  EXPECT_EQ(here.outstanding(), 0u);
}

TEST_P(shared_memory_test, links_carry_notes_in_order) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  EXPECT_TRUE(here.send_note(as_note("before")));
  static_cast<void>(here.offer(memory).value());
  EXPECT_TRUE(here.send_note({}));
  const auto first = there.receive(1s).value();
  EXPECT_TRUE(first.is_note());
  EXPECT_EQ(text_of(first), "before");
  EXPECT_EQ(first.ticket(), share_ticket{});
  const auto second = there.receive(1s).value();
  EXPECT_FALSE(second.is_note());
  EXPECT_TRUE(second.note().empty());
  const auto third = there.receive(1s).value();
  EXPECT_TRUE(third.is_note());
  EXPECT_TRUE(third.note().empty());
  std::string longest(share_link::most_note, 'x');
  longest.back() = 'y';
  EXPECT_TRUE(here.send_note(as_note(longest)));
  EXPECT_EQ(text_of(there.receive(1s).value()), longest);
  const std::string large(share_link::most_note + 1, 'x');
  EXPECT_EQ(code_of(here.send_note(as_note(large))), errc::invalid_argument);
}

TEST_P(shared_memory_test, of_an_allocator_is_a_block_in_handles_of_its_own) {
  auto heap = caching_allocator::create(gpu()).value();
  const auto stream = weir::stream::create(gpu()).value();
  {
    auto pool = heap.create_pool("shared", {.exportable = true}).value();
    auto [here, there] = link_to_itself();
    auto before = shared_memory::allocate(heap, pool, unit(), stream).value();
    auto memory = shared_memory::allocate(heap, pool, unit() * 2 + 1_KiB, stream).value();
    auto behind = shared_memory::allocate(heap, pool, unit(), stream).value();
    EXPECT_EQ(memory.unit(), unit());
    EXPECT_EQ(memory.size(), unit() * 2 + 1_KiB);
    EXPECT_EQ(memory.device(), gpu());
    EXPECT_EQ(memory.address() % unit().count(), 0u);
    EXPECT_EQ(pool.stats().blocks.current, 3u);
    EXPECT_EQ(pool.stats().requested.current, unit() * 5);  // in whole handles
    ASSERT_EQ(fill(memory.address(), 5, unit().count() / 2, stream.handle()), CUDA_SUCCESS);
    ASSERT_TRUE(stream.synchronize());
    static_cast<void>(here.offer(memory).value());
    auto offer = there.receive(1s).value();
    EXPECT_EQ(offer.ticket().pieces, 3u);
    EXPECT_EQ(offer.ticket().offset, bytes{});
    EXPECT_EQ(offer.ticket().size, unit() * 2 + 1_KiB);
    auto taken = offer.open_memory().value();
    EXPECT_EQ(mismatches(taken.mapped_at(), 5, unit().count() / 2), 0u);

    // The block is out as long as somebody may use it, whatever its owner does.
    memory = {};
    EXPECT_EQ(pool.stats().blocks.current, 3u);
    EXPECT_TRUE(taken.close());
    EXPECT_EQ(here.outstanding(), 0u);
    EXPECT_EQ(pool.stats().blocks.current, 2u);
  }
  EXPECT_TRUE(heap.close());
}

TEST_P(shared_memory_test, of_an_allocator_needs_an_exportable_pool) {
  auto heap = caching_allocator::create(gpu()).value();
  const auto stream = weir::stream::create(gpu()).value();
  {
    const auto plain = heap.create_pool("plain").value();
    const auto pool = heap.create_pool("shared", {.exportable = true}).value();
    EXPECT_EQ(code_of(shared_memory::allocate(heap, plain, unit(), stream)), errc::not_supported);
    EXPECT_EQ(code_of(shared_memory::allocate(heap, {}, unit(), stream)), errc::invalid_argument);
    EXPECT_EQ(code_of(shared_memory::allocate(heap, pool, {}, stream)), errc::invalid_argument);
    EXPECT_EQ(reason_of(shared_memory::allocate(heap, pool, unit() * 240 + 1_B, stream)),
              "limit_exceeded: more than 240 handles");
    EXPECT_EQ(shared_memory::allocate(heap, pool, unit() * 240, stream).value().size(),
              unit() * 240);
    EXPECT_EQ(plain.stats().blocks.current, 0u);

    void* const block = pool.allocate(3_MiB, stream);
    const auto under = pool.handles_under(block).value();
    EXPECT_EQ(under.offset, bytes{});
    EXPECT_EQ(under.handles.size(), (round_to_granularity(gpu(), 3_MiB).value() / unit()));
    EXPECT_EQ(code_of(plain.handles_under(block)), errc::foreign_pointer);
    EXPECT_EQ(code_of(pool.handles_under(&heap)), errc::foreign_pointer);
    heap.deallocate(block, stream);
    EXPECT_EQ(code_of(pool.handles_under(block)), errc::double_free);
    EXPECT_EQ(code_of(memory_pool{}.handles_under(block)), errc::moved_from);
  }
  EXPECT_TRUE(heap.close());
}

TEST_P(shared_memory_test, of_an_allocator_stays_out_if_the_other_side_does_not_let_go) {
  auto heap = caching_allocator::create(gpu()).value();
  const auto stream = weir::stream::create(gpu()).value();
  {
    const auto pool = heap.create_pool("shared", {.exportable = true}).value();
    auto memory = shared_memory::allocate(heap, pool, unit() - 1_KiB, stream).value();
    auto [ours, theirs] = share_channel::pair().value();
    const liar other{std::move(theirs)};
    other.say(sharing::encode_number(sharing::packet_kind::hello, other.number));
    {
      auto link = share_link::open(machine_runtime, std::move(ours)).value();
      EXPECT_TRUE(other.end.receive(1s));
      const auto grant = link.offer(memory).value();
      const auto kept = other.end.receive(1s).value();  // the descriptor, and no word about it
      EXPECT_EQ(kept.descriptors.size(), 1u);
      EXPECT_EQ(code_of(link.revoke(grant, 10ms)), errc::not_ready);
    }
    memory = {};
    EXPECT_THAT(take_reports(),
                ElementsAre(error{{.code = errc::not_ready,
                                   .requested = unit() - 1_KiB,
                                   .detail = "a block stays allocated: another process may still "
                                             "have it mapped"}}));
    EXPECT_EQ(pool.stats().blocks.current, 1u);
  }
  EXPECT_TRUE(heap.close());
  EXPECT_THAT(take_reports(), ElementsAre(Property(&error::code, errc::still_live)));
}

// --- The end of memory that is in use ------------------------------------------------------------

class shared_memory_end_test : public sharing_test {
 protected:
  static constexpr std::size_t count = mib / 4;

  void SetUp() override {
    sharing_test::SetUp();
    if (machine == nullptr) return;
    copied = new_memory(count * sizeof(word));
    busy = new_stream();  // weir does not know it
  }
  void write(CUdeviceptr memory) {
    ASSERT_EQ(fill(memory, 7, count, nullptr), CUDA_SUCCESS);
    ASSERT_EQ(cu->ctx_synchronize(), CUDA_SUCCESS);
  }
  /// Queues work that will read the memory in a while.
  void read_later(CUdeviceptr memory) {
    for (int i = 0; i < 8; ++i) ASSERT_EQ(spin(2ms, busy), CUDA_SUCCESS);
    ASSERT_EQ(copy(copied, memory, count, busy), CUDA_SUCCESS);
  }
  void expect_to_be_read() { EXPECT_EQ(mismatches(copied, 7, count), 0u); }

  CUdeviceptr copied = 0;
  CUstream busy = nullptr;
};
WEIR_CONTRACT(shared_memory_end_test);

TEST_P(shared_memory_end_test, of_an_import_waits_for_the_work_that_uses_it) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  write(memory.address());
  for (const bool closes : {true, false}) {
    static_cast<void>(here.offer(memory).value());
    auto taken = there.receive(1s).value().open_memory().value();
    read_later(taken.mapped_at());
    if (closes) {
      EXPECT_TRUE(taken.close());
    } else {
      taken = {};
    }
    EXPECT_EQ(here.outstanding(), 0u);
    expect_to_be_read();
  }
}

TEST_P(shared_memory_end_test, of_an_import_waits_though_others_share_its_mapping) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  write(memory.address());
  static_cast<void>(here.offer(memory).value());
  static_cast<void>(here.offer(memory).value());
  auto first = there.receive(1s).value().open_memory().value();
  const auto second = there.receive(1s).value().open_memory().value();
  ASSERT_EQ(first.mapped_at(), second.mapped_at());
  read_later(first.mapped_at());
  EXPECT_TRUE(first.close());
  ASSERT_EQ(fill(memory.address(), 9, count, new_stream()), CUDA_SUCCESS);  // it was released
  expect_to_be_read();
}

TEST_P(shared_memory_end_test, of_the_exporters_own_waits_for_the_work_that_uses_it) {
  auto [here, there] = link_to_itself();
  for (const bool is_offered : {false, true}) {
    auto memory = shared_memory::create(gpu(), unit()).value();
    write(memory.address());
    read_later(memory.address());
    if (is_offered) static_cast<void>(here.offer(memory).value());
    memory = {};
    // Offered memory is freed when the other side has released it, by a call that reads messages.
    if (is_offered) static_cast<void>(there.receive(1s).value());
    EXPECT_EQ(here.outstanding(), 0u);
    expect_to_be_read();
  }
}

TEST_P(shared_memory_end_test, waits_for_the_work_and_leaves_captures_valid) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  auto own = shared_memory::create(gpu(), unit()).value();
  write(memory.address());
  write(own.address());
  const auto offered = [&, &from = here, &to = there] {
    static_cast<void>(from.offer(memory).value());
    return to.receive(1s).value().open_memory().value();
  };
  auto closed = offered();
  auto dropped = offered();
  const auto captured = weir::stream::create(gpu()).value();
  read_later(dropped.mapped_at());
  read_later(own.address());
  ASSERT_EQ(cu->stream_begin_capture(captured.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            CUDA_SUCCESS);
  EXPECT_TRUE(closed.close());
  EXPECT_EQ(closed.mapped_at(), 0u);
  dropped = {};
  own = {};
  EXPECT_EQ(here.outstanding(), 0u);
  ASSERT_EQ(fill(copied, 7, count, captured.handle()), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cu->stream_end_capture(captured.handle(), &graph), CUDA_SUCCESS) << "it is whole";
  ASSERT_EQ(cu->graph_destroy(graph), CUDA_SUCCESS);
  expect_to_be_read();
}

TEST_P(shared_memory_end_test, leaves_captures_of_streams_valid_that_weir_does_not_know) {
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  static_cast<void>(here.offer(memory).value());
  const auto taken = there.receive(1s).value().open_memory().value();
  const CUstream stranger = new_stream(CU_STREAM_DEFAULT);
  ASSERT_EQ(cu->stream_begin_capture(stranger, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
  EXPECT_TRUE(taken.close());
  EXPECT_EQ(here.outstanding(), 0u);
  ASSERT_EQ(fill(copied, 7, count, stranger), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cu->stream_end_capture(stranger, &graph), CUDA_SUCCESS) << "it is whole";
  ASSERT_EQ(cu->graph_destroy(graph), CUDA_SUCCESS);
}

TEST_P(shared_memory_end_test, of_an_import_waits_for_every_device_that_reaches_it) {
  if (machine_runtime->device_count() < 2) GTEST_SKIP() << "there is one device";
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  write(memory.address());
  const auto second = machine_runtime->device(device_id{1}).value();
  const auto far = weir::stream::create(second).value();
  const auto far_memory = shared_memory::create(second, unit()).value();
  for (const bool is_captured : {false, true}) {
    static_cast<void>(here.offer(memory).value());
    auto taken = there.receive(1s).value().open_memory().value();
    ASSERT_TRUE(taken.allow(second));
    {
      const context_scope bound{second};
      ASSERT_EQ(cu->memcpy_dtod_async(far_memory.address(), taken.mapped_at(), 64, far.handle()),
                CUDA_SUCCESS);
      if (is_captured) {
        ASSERT_EQ(cu->stream_begin_capture(far.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                  CUDA_SUCCESS);
      }
    }
    EXPECT_TRUE(taken.close());
    EXPECT_EQ(here.outstanding(), 0u);
    if (is_captured) {
      CUgraph graph = nullptr;
      ASSERT_EQ(cu->stream_end_capture(far.handle(), &graph), CUDA_SUCCESS) << "it is whole";
      ASSERT_EQ(cu->graph_destroy(graph), CUDA_SUCCESS);
    }
    EXPECT_TRUE(far.is_complete().value());
  }
}

TEST_P(shared_memory_test, can_be_reached_by_other_devices_with_the_same_rights) {
  if (machine_runtime->device_count() < 2) GTEST_SKIP() << "there is one device";
  auto [here, there] = link_to_itself();
  const auto memory = shared_memory::create(gpu(), unit()).value();
  static_cast<void>(here.offer(memory, {.rights = access_rights::read}).value());
  const auto taken = there.receive(1s).value().open_memory().value();
  const auto second = machine_runtime->device(device_id{1}).value();
  ASSERT_TRUE(taken.allow(second));
  unsigned long long flags = 0;
  const CUmemLocation place{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  EXPECT_EQ(cu->mem_get_access(&flags, &place, taken.mapped_at()), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_READ});
}

TEST_P(shared_memory_test, threads_may_give_and_take_over_one_link) {
  auto [here, there] = link_to_itself({.limit = 20s});
  const auto memory = shared_memory::create(gpu(), unit()).value();
  constexpr int each = 40;
  std::vector<std::thread> givers;
  givers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    givers.emplace_back([&, &from = here] {
      for (int j = 0; j < each; ++j) EXPECT_EQ(code_of(from.offer(memory)), std::nullopt);
    });
  }
  std::vector<std::thread> takers;
  takers.reserve(2);
  for (int i = 0; i < 2; ++i) {
    takers.emplace_back([&, &to = there] {
      for (int j = 0; j < each; ++j) {
        auto taken = to.receive().value().open_memory().value();
        EXPECT_NE(taken.address().value(), 0u);
      }
    });
  }
  for (auto& thread : givers) thread.join();
  for (auto& thread : takers) thread.join();
  EXPECT_EQ(here.outstanding(), 0u);
}

}  // namespace
}  // namespace weir::testing_support

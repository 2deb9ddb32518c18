// SPDX-License-Identifier: Apache-2.0
// Two and three processes: memory, allocators' blocks, pools, legacy handles and events that both
// see, and what happens when one of them dies.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "sharing/sharing_fixture.hpp"
#include "support/call_counter.hpp"

namespace weir::testing_support { namespace {

class processes : public sharing_test {
 protected:
  /// Waits for what the link learns only when it looks.
  template <class Condition>
  static bool comes(Condition condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }
};
WEIR_CONTRACT(processes);

/// The words at an address, as a child reads them.
std::array<word, 16> read_words(const table& cu, CUdeviceptr address) {
  std::array<word, 16> seen{};
  if (cu.memcpy_dtoh(seen.data(), address, sizeof(seen)) != CUDA_SUCCESS) seen.fill(0xbad);
  return seen;
}

std::array<word, 16> all(word value) {
  std::array<word, 16> words{};
  words.fill(value);
  return words;
}

// --- Memory --------------------------------------------------------------------------------------

/// Takes memory, reads what its first word must be from the note behind it, and answers in it, with
/// work that is still queued when the memory is closed.
WEIR_CHILD(answer_in_memory) {
  const table& cu = machine.driver();
  auto link = link_from_parent(machine, parent);
  WEIR_CHILD_EXPECT(0, number_of(link));
  auto offer = link->receive(20s);
  WEIR_CHILD_EXPECT(0, number_of(offer));
  const bool is_legacy = offer->ticket().kind == share_kind::legacy_memory;
  auto memory = offer->open_memory();
  WEIR_CHILD_EXPECT(0, number_of(memory));
  auto note = link->receive(20s);
  WEIR_CHILD_EXPECT(0, number_of(note));
  const auto value = static_cast<word>(std::stoul(text_of(*note)));
  WEIR_CHILD_EXPECT(0, number_of(memory->address()));
  const CUdeviceptr address = memory->mapped_at();
  WEIR_CHILD_EXPECT(true, read_words(cu, address) == all(value));
  CUstream stream = nullptr;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 100; ++i)
    WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32_async(address, value + 1, 16, stream));
  if (is_legacy) {
    const auto home = runtime_over(machine)->device(device_id{0}).value();
    WEIR_CHILD_EXPECT(number_of(errc::not_supported), number_of(memory->allow(home)));
  }
  WEIR_CHILD_EXPECT(0, number_of(memory->close()));
  WEIR_CHILD_EXPECT(number_of(errc::closed), number_of(memory->address()));
  WEIR_CHILD_EXPECT(true, machine.take_hazards().empty());
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.stream_destroy(stream));
  WEIR_CHILD_EXPECT(0, number_of(link->send_note(as_note("done"))));
  WEIR_CHILD_EXPECT(true, parent.meet());
  return 0;
}

TEST_P(processes, share_memory) {
  const auto memory = shared_memory::create(gpu(), 5_MiB).value();
  WEIR_OK(fill(memory.address(), 71, 5 * mib / 4, nullptr));
  WEIR_OK(cu->ctx_synchronize());
  child_process child{"answer_in_memory", GetParam()};
  auto link = link_to(child);
  EXPECT_NE(link.peer().process, ::getpid());
  ASSERT_EQ(code_of(link.offer(memory)), std::nullopt);
  ASSERT_TRUE(link.send_note(as_note("71")));
  EXPECT_EQ(text_of(link.receive(20s).value()), "done");
  EXPECT_EQ(link.outstanding(), 0u);  // it was released before the note
  EXPECT_EQ(mismatches(memory.address(), 72, 16), 0u);
  EXPECT_EQ(mismatches(memory.address() + 64, 71, mib), 0u);
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(code_of(link.check()), errc::peer_closed);
}

TEST_P(processes, share_a_part_of_memory) {
  const auto memory = shared_memory::create(gpu(), unit() * 3, {.unit = unit()}).value();
  const std::size_t count = unit().count() / 4;
  WEIR_OK(fill(memory.address(), 1, 3 * count, nullptr));
  WEIR_OK(fill(memory.address() + unit().count(), 81, 16, nullptr));
  WEIR_OK(cu->ctx_synchronize());
  child_process child{"answer_in_memory", GetParam()};
  auto link = link_to(child);
  ASSERT_EQ(code_of(link.offer(memory, {.offset = unit(), .size = 4_KiB})), std::nullopt);
  ASSERT_TRUE(link.send_note(as_note("81")));
  EXPECT_EQ(text_of(link.receive(20s).value()), "done");
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(mismatches(memory.address(), 1, count), 0u);
  EXPECT_EQ(mismatches(memory.address() + unit().count(), 82, 16), 0u);
  EXPECT_EQ(mismatches(memory.address() + 2 * unit().count(), 1, count), 0u);
}

TEST_P(processes, share_a_block_of_an_allocator) {
  auto heap = caching_allocator::create(gpu()).value();
  const auto stream = weir::stream::create(gpu()).value();
  {
    const auto pool = heap.create_pool("shared", {.exportable = true}).value();
    auto memory = shared_memory::allocate(heap, pool, 5_MiB, stream).value();
    WEIR_OK(fill(memory.address(), 91, 16, stream.handle()));
    ASSERT_TRUE(stream.synchronize());
    child_process child{"answer_in_memory", GetParam()};
    auto link = link_to(child);
    ASSERT_EQ(code_of(link.offer(memory)), std::nullopt);
    ASSERT_TRUE(link.send_note(as_note("91")));
    EXPECT_EQ(text_of(link.receive(20s).value()), "done");
    EXPECT_EQ(mismatches(memory.address(), 92, 16), 0u);
    EXPECT_TRUE(child.link().meet());
    EXPECT_EQ(child.wait(), 0);
    memory = {};
    EXPECT_EQ(link.outstanding(), 0u);
    EXPECT_EQ(pool.stats().blocks.current, 0u);
  }
  EXPECT_TRUE(heap.close());
}

TEST_P(processes, share_legacy_memory) {
  const CUdeviceptr memory = new_memory(unit().count());
  WEIR_OK(fill(memory, 61, 16, nullptr));
  WEIR_OK(cu->ctx_synchronize());
  child_process child{"answer_in_memory", GetParam()};
  auto link = link_to(child);
  EXPECT_EQ(code_of(link.offer_legacy(gpu(), new_memory(4096))), errc::not_permitted);
  EXPECT_EQ(code_of(link.offer_legacy(gpu(), memory + 512)), errc::invalid_argument);
  EXPECT_TRUE(code_of(link.offer_legacy(gpu(), 0)).has_value());
  const auto mapped = shared_memory::create(gpu(), unit()).value();
  EXPECT_TRUE(code_of(link.offer_legacy(gpu(), mapped.address())).has_value());
  ASSERT_EQ(code_of(link.offer_legacy(gpu(), memory)), std::nullopt);
  EXPECT_EQ(link.outstanding(), 1u);
  ASSERT_TRUE(link.send_note(as_note("61")));
  EXPECT_EQ(text_of(link.receive(20s).value()), "done");
  EXPECT_EQ(link.outstanding(), 0u);
  EXPECT_EQ(mismatches(memory, 62, 16), 0u);
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(child.wait(), 0);
}

/// Offers legacy memory of its own: first as larger than it is, then as it is.
WEIR_CHILD(lie_about_legacy_memory) {
  const table& cu = machine.driver();
  auto channel = share_channel::adopt(descriptor{parent.receive_descriptor()});
  WEIR_CHILD_EXPECT(0, number_of(channel));
  const auto own = runtime_over(machine);
  const auto home = own->device(device_id{0}).value();
  const bytes size = home.capabilities().granularity;
  CUdeviceptr memory = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_alloc(&memory, size.count()));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32(memory, 77, 16));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ctx_synchronize());
  CUipcMemHandle handle{};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ipc_get_mem_handle(&handle, memory));
  const liar self{*std::move(channel)};
  self.say(sharing::encode_number(sharing::packet_kind::hello, self.number));
  share_ticket ticket{.kind = share_kind::legacy_memory,
                      .device = home.uuid().value(),
                      .exporter = self.number,
                      .object = 1,
                      .size = size * 2};
  std::memcpy(ticket.payload.data(), &handle, sizeof(handle));
  for (ticket.grant = 1; ticket.grant <= 2; ++ticket.grant) {
    self.offer(ticket);
    ticket.size = size;
  }
  WEIR_CHILD_EXPECT(true, parent.meet());
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_free(memory));
  return 0;
}

TEST_P(processes, check_the_size_of_legacy_memory) {
  child_process child{"lie_about_legacy_memory", GetParam()};
  auto link = link_to(child);
  const auto closes = [] {
    return counted().succeeded[static_cast<std::size_t>(call::ipc_close_mem_handle)];
  };
  const std::uint64_t before = closes();
  const auto refused = link.receive(20s).value().open_memory();
  EXPECT_EQ(reason_of(refused), "invalid_argument: the memory has " + to_string(unit()));
  EXPECT_EQ(refused.error().requested(), unit() * 2);
  EXPECT_EQ(closes(), before + 1);
  auto taken = link.receive(20s).value().open_memory().value();  // the first is closed by now
  EXPECT_EQ(taken.size(), unit());
  EXPECT_EQ(mismatches(taken.mapped_at(), 77, 16), 0u);
  EXPECT_TRUE(taken.close());
  EXPECT_EQ(taken.mapped_at(), 0u);
  EXPECT_EQ(closes(), before + 2);
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(child.wait(), 0);
}

TEST_P(processes, three_share_the_same_memory) {
  const auto memory = shared_memory::create(gpu(), unit()).value();
  WEIR_OK(fill(memory.address(), 10, 16, nullptr));
  WEIR_OK(cu->ctx_synchronize());
  child_process first{"answer_in_memory", GetParam()};
  child_process second{"answer_in_memory", GetParam()};
  auto to_first = link_to(first);
  auto to_second = link_to(second);
  EXPECT_NE(to_first.peer().process, to_second.peer().process);
  // Both have it mapped at once; the second sees what the first wrote.
  ASSERT_EQ(code_of(to_first.offer(memory)), std::nullopt);
  ASSERT_EQ(code_of(to_second.offer(memory)), std::nullopt);
  ASSERT_TRUE(to_first.send_note(as_note("10")));
  EXPECT_EQ(text_of(to_first.receive(20s).value()), "done");
  ASSERT_TRUE(to_second.send_note(as_note("11")));
  EXPECT_EQ(text_of(to_second.receive(20s).value()), "done");
  EXPECT_EQ(mismatches(memory.address(), 12, 16), 0u);
  EXPECT_TRUE(first.link().meet());
  EXPECT_TRUE(second.link().meet());
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
}

// --- Revocation and death ------------------------------------------------------------------------

/// Takes memory and keeps it until it is taken back.
WEIR_CHILD(keep_until_revoked) {
  auto link = link_from_parent(machine, parent);
  WEIR_CHILD_EXPECT(0, number_of(link));
  auto offer = link->receive(20s);
  WEIR_CHILD_EXPECT(0, number_of(offer));
  auto memory = offer->open_memory();
  WEIR_CHILD_EXPECT(0, number_of(memory));
  WEIR_CHILD_EXPECT(0, number_of(memory->address()));
  WEIR_CHILD_EXPECT(true, parent.meet());
  int code = 0;
  for (int i = 0; i < 1000 && code == 0; ++i) {
    code = number_of(memory->address());
    std::this_thread::sleep_for(5ms);
  }
  WEIR_CHILD_EXPECT(number_of(errc::not_permitted), code);
  WEIR_CHILD_EXPECT(0, number_of(memory->close()));
  WEIR_CHILD_EXPECT(true, parent.meet());
  return 0;
}

TEST_P(processes, take_back_what_they_gave) {
  const auto memory = shared_memory::create(gpu(), unit()).value();
  child_process child{"keep_until_revoked", GetParam()};
  auto link = link_to(child);
  const auto grant = link.offer(memory).value();
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(code_of(link.revoke(grant, 20s)), std::nullopt);
  EXPECT_EQ(link.outstanding(), 0u);
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(child.wait(), 0);
}

/// Takes what comes and holds on to it until it is ended.
WEIR_CHILD(hold_forever) {
  auto link = link_from_parent(machine, parent);
  WEIR_CHILD_EXPECT(0, number_of(link));
  auto offer = link->receive(20s);
  WEIR_CHILD_EXPECT(0, number_of(offer));
  auto memory = offer->open_memory();
  WEIR_CHILD_EXPECT(0, number_of(memory));
  parent.meet();
  parent.meet();  // never comes
  return 0;
}

TEST_P(processes, notice_that_an_importer_died) {
  auto heap = caching_allocator::create(gpu()).value();
  const auto stream = weir::stream::create(gpu()).value();
  {
    const auto pool = heap.create_pool("shared", {.exportable = true}).value();
    auto memory = shared_memory::allocate(heap, pool, unit(), stream).value();
    child_process child{"hold_forever", GetParam()};
    auto link = link_to(child);
    const auto grant = link.offer(memory).value();
    EXPECT_TRUE(child.link().meet());
    memory = {};
    EXPECT_EQ(code_of(link.revoke(grant, 20ms)), errc::not_ready);
    EXPECT_EQ(pool.stats().blocks.current, 1u);
    child.kill();
    EXPECT_TRUE(comes([&] { return link.outstanding() == 0; }));
    EXPECT_EQ(pool.stats().blocks.current, 0u);  // a dead process has nothing mapped
    EXPECT_EQ(code_of(link.check()), errc::peer_closed);
  }
  EXPECT_TRUE(heap.close());
}

/// Holds memory, and its sockets in a process that it forked, until it is ended.
WEIR_CHILD(hold_forever_twice) {
  auto link = link_from_parent(machine, parent);
  WEIR_CHILD_EXPECT(0, number_of(link));
  auto memory = link->receive(20s).value().open_memory();
  WEIR_CHILD_EXPECT(0, number_of(memory));
  const auto own =
      shared_memory::create(runtime_over(machine)->device(device_id{0}).value(), memory->size());
  WEIR_CHILD_EXPECT(0, number_of(own));
  WEIR_CHILD_EXPECT(0, number_of(link->offer(*own)));
  const pid_t copy = ::fork();
  if (copy == 0)
    for (;;) ::pause();
  WEIR_CHILD_EXPECT(true, parent.send(copy));
  parent.meet();  // never comes
  return 0;
}

TEST_P(processes, notice_that_an_importer_died_whose_fork_lives) {
  auto heap = caching_allocator::create(gpu()).value();
  const auto stream = weir::stream::create(gpu()).value();
  {
    const auto pool = heap.create_pool("shared", {.exportable = true}).value();
    auto memory = shared_memory::allocate(heap, pool, unit(), stream).value();
    child_process child{"hold_forever_twice", GetParam()};
    auto link = link_to(child);
    const auto grant = link.offer(memory).value();
    const auto theirs = link.receive(20s).value().open_memory().value();
    pid_t copy = 0;
    ASSERT_TRUE(child.link().receive(copy));
    memory = {};
    EXPECT_EQ(code_of(theirs.address()), std::nullopt);
    std::thread ending{[&] { child.kill(); }};
    EXPECT_EQ(code_of(link.receive(20s)), errc::peer_closed);  // wakes up
    ending.join();
    EXPECT_EQ(::kill(copy, 0), 0) << "it lives, and has the socket";
    EXPECT_EQ(code_of(link.check()), errc::peer_closed);
    EXPECT_EQ(code_of(theirs.address()), errc::peer_closed);
    EXPECT_EQ(code_of(link.send_note({})), errc::peer_closed);
    EXPECT_EQ(code_of(link.revoke(grant, 20s)), errc::not_found) << "it ended with the process";
    EXPECT_EQ(link.outstanding(), 0u);
    EXPECT_EQ(pool.stats().blocks.current, 0u);
    EXPECT_EQ(::kill(copy, SIGKILL), 0);
  }
  EXPECT_TRUE(heap.close());
}

// A process that has ended has nothing mapped, also if nobody looked before the link was closed.
TEST_P(processes, free_what_a_dead_importer_had_when_its_link_ends) {
  auto heap = caching_allocator::create(gpu()).value();
  const auto stream = weir::stream::create(gpu()).value();
  {
    const auto pool = heap.create_pool("shared", {.exportable = true}).value();
    auto memory = shared_memory::allocate(heap, pool, unit(), stream).value();
    child_process child{"hold_forever", GetParam()};
    {
      auto link = link_to(child);
      static_cast<void>(link.offer(memory).value());
      EXPECT_TRUE(child.link().meet());
      child.kill();
      EXPECT_NE(child.wait(), 0);
    }
    memory = {};
    EXPECT_EQ(pool.stats().blocks.current, 0u);
  }
  EXPECT_TRUE(heap.close());
}

/// Gives memory away and waits for its end.
WEIR_CHILD(give_and_die) {
  const table& cu = machine.driver();
  auto link = link_from_parent(machine, parent);
  WEIR_CHILD_EXPECT(0, number_of(link));
  const auto own = runtime_over(machine);
  const auto home = own->device(device_id{0}).value();
  auto memory = shared_memory::create(home, home.capabilities().granularity);
  WEIR_CHILD_EXPECT(0, number_of(memory));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32(memory->address(), 33, 16));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ctx_synchronize());
  WEIR_CHILD_EXPECT(0, number_of(link->offer(*memory)));
  parent.meet();
  parent.meet();  // never comes
  return 0;
}

TEST_P(processes, notice_that_an_exporter_died) {
  child_process child{"give_and_die", GetParam()};
  auto link = link_to(child);
  auto memory = link.receive(20s).value().open_memory().value();
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(code_of(memory.address()), std::nullopt);
  child.kill();
  EXPECT_TRUE(comes([&] { return code_of(memory.address()) == errc::peer_closed; }));
  EXPECT_EQ(code_of(link.receive(1s)), errc::peer_closed);
  EXPECT_EQ(mismatches(memory.mapped_at(), 33, 16), 0u);  // the memory outlives its maker
  EXPECT_TRUE(memory.close());
}

// --- Events --------------------------------------------------------------------------------------

/// Waits, on a stream, for the parent's event, and reads its memory behind that; then the other way
/// round with the same event.
WEIR_CHILD(follow_an_event) {
  const table& cu = machine.driver();
  auto link = link_from_parent(machine, parent);
  WEIR_CHILD_EXPECT(0, number_of(link));
  auto written = link->receive(20s).value().open_event();
  WEIR_CHILD_EXPECT(0, number_of(written));
  auto memory = link->receive(20s).value().open_memory();
  WEIR_CHILD_EXPECT(0, number_of(memory));
  const auto stream = weir::stream::create(written->device()).value();
  WEIR_CHILD_EXPECT(true, link->receive(20s).value().is_note());  // it is recorded
  WEIR_CHILD_EXPECT(0, number_of(stream.wait(*written)));
  WEIR_CHILD_EXPECT(false, stream.is_complete().value());
  WEIR_CHILD_EXPECT(true, parent.meet());  // now the parent lets it happen
  WEIR_CHILD_EXPECT(0, number_of(stream.synchronize()));
  WEIR_CHILD_EXPECT(true, read_words(cu, memory->mapped_at()) == all(51));

  WEIR_CHILD_EXPECT(CUDA_SUCCESS,
                    cu.memset_d32_async(memory->mapped_at(), 52, 16, stream.handle()));
  WEIR_CHILD_EXPECT(0, number_of(written->record(stream)));
  WEIR_CHILD_EXPECT(0, number_of(link->send_note(as_note("recorded"))));
  WEIR_CHILD_EXPECT(0, number_of(stream.synchronize()));
  WEIR_CHILD_EXPECT(true, parent.meet());
  return 0;
}

TEST_P(processes, order_their_work_by_events) {
  const auto memory = shared_memory::create(gpu(), unit()).value();
  const auto stream = weir::stream::create(gpu()).value();
  auto written = event::create(gpu(), {.interprocess = true}).value();
  const auto local = event::create(gpu()).value();
  child_process child{"follow_an_event", GetParam()};
  auto link = link_to(child);
  EXPECT_EQ(code_of(link.offer(local)), errc::invalid_argument);
  ASSERT_EQ(code_of(link.offer(written)), std::nullopt);
  ASSERT_EQ(code_of(link.offer(memory)), std::nullopt);
  {
    const auto busy = occupy(stream.handle());
    WEIR_OK(fill(memory.address(), 51, 16, stream.handle()));
    ASSERT_TRUE(written.record(stream));
    ASSERT_TRUE(link.send_note(as_note("recorded")));
    EXPECT_TRUE(child.link().meet());  // the child waits for it
    busy->finish();
    ASSERT_TRUE(stream.synchronize());
  }
  EXPECT_EQ(text_of(link.receive(20s).value()), "recorded");
  ASSERT_TRUE(stream.wait(written));
  const CUdeviceptr copy = new_memory(64);
  WEIR_OK(cu->memcpy_dtod_async(copy, memory.address(), 64, stream.handle()));
  ASSERT_TRUE(stream.synchronize());
  EXPECT_EQ(mismatches(copy, 52, 16), 0u);
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(child.wait(), 0);
}

// --- Driver pools --------------------------------------------------------------------------------

/// Takes a pool and an allocation of it, and answers in it.
WEIR_CHILD(answer_in_a_pool) {
  const table& cu = machine.driver();
  auto link = link_from_parent(machine, parent);
  WEIR_CHILD_EXPECT(0, number_of(link));
  auto pool_offer = link->receive(20s);
  WEIR_CHILD_EXPECT(0, number_of(pool_offer));
  const auto object = pool_offer->ticket().object;
  auto pool = pool_offer->open_pool();
  WEIR_CHILD_EXPECT(0, number_of(pool));
  const auto stream = weir::stream::create(pool->device()).value();
  WEIR_CHILD_EXPECT(number_of(errc::not_supported), number_of(pool->try_allocate(1_MiB, stream)));
  auto pointer_offer = link->receive(20s);
  WEIR_CHILD_EXPECT(0, number_of(pointer_offer));
  WEIR_CHILD_EXPECT(object, pointer_offer->ticket().object);
  auto memory = pointer_offer->open_allocation(*pool, stream);
  WEIR_CHILD_EXPECT(0, number_of(memory));
  const auto address = reinterpret_cast<CUdeviceptr>(memory->data());
  WEIR_CHILD_EXPECT(true, read_words(cu, address) == all(41));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32_async(address, 42, 16, stream.handle()));
  WEIR_CHILD_EXPECT(0, number_of(memory->free()));
  WEIR_CHILD_EXPECT(0, number_of(stream.synchronize()));
  WEIR_CHILD_EXPECT(true, parent.meet());
  return 0;
}

TEST_P(processes, share_a_driver_pool) {
  const auto stream = weir::stream::create(gpu()).value();
  auto pool =
      stream_pool::create(gpu(), {.handles = stream_pool_handles::posix_descriptor}).value();
  auto memory = pool.allocate_owned(1_MiB, stream).value();
  const auto address = reinterpret_cast<CUdeviceptr>(memory.data());
  WEIR_OK(fill(address, 41, 16, stream.handle()));
  ASSERT_TRUE(stream.synchronize());
  child_process child{"answer_in_a_pool", GetParam()};
  auto link = link_to(child);
  const auto local = stream_pool::create(gpu()).value();
  EXPECT_EQ(code_of(link.offer(local)), errc::not_supported);
  EXPECT_EQ(code_of(link.offer(stream_allocation{})), errc::moved_from);
  ASSERT_EQ(code_of(link.offer(pool)), std::nullopt);
  ASSERT_EQ(code_of(link.offer(memory)), std::nullopt);
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(mismatches(address, 42, 16), 0u);
  EXPECT_TRUE(memory.free());
  ASSERT_TRUE(stream.synchronize());
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Private pools: apart from everything else, and gone when nobody needs them.
#include <array>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using pools_test = heap_test;

TEST_F(pools_test, keep_their_memory_to_themselves) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("cache").value();
  EXPECT_TRUE(pool);
  EXPECT_EQ(pool.name(), "cache");
  EXPECT_NE(pool.id(), pool_id{});
  void* const p = pool.allocate(10_MiB, stream);
  memory.deallocate(p, stream);
  void* const q = memory.allocate(10_MiB, stream);
  EXPECT_NE(q, p);
  EXPECT_EQ(pool.allocate(10_MiB, stream), p);
  EXPECT_EQ(pool.stats().allocated.current, 10_MiB);
  EXPECT_EQ(pool.stats().thread_cached, 0_B);
  EXPECT_EQ(memory.stats().allocated.current, 20_MiB);
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(p, stream);
  memory.deallocate(q, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(pools_test, scopes_send_requests_there_and_nest) {
  auto memory = make();
  const auto stream = new_stream();
  const auto one = memory.create_pool("one").value();
  const auto two = memory.create_pool("two").value();
  memory.deallocate(memory.allocate(64_KiB, stream), stream);  // a cached block that must not serve
  std::vector<void*> all;
  const auto request = [&] { all.push_back(memory.allocate(64_KiB, stream)); };
  request();
  {
    const pool_scope outer{one};
    request();
    {
      const pool_scope inner{two};
      request();
      request();
    }
    request();
    const pool_scope none{memory_pool{}};
    request();
  }
  request();
  const auto blocks = [](const memory_stats& of) { return of.blocks.current; };
  EXPECT_EQ(blocks(one.stats()), 3u);
  EXPECT_EQ(blocks(two.stats()), 2u);
  EXPECT_EQ(blocks(memory.stats()), 7u);
  auto other = make();
  {
    const pool_scope ours{one};
    void* const p = other.allocate(64_KiB, stream);  // another allocator's requests are not sent
    EXPECT_EQ(other.stats().blocks.current, 1u);
    other.deallocate(p, stream);
    memory.deallocate(all[0], stream);  // frees go where the block belongs
    all.erase(all.begin());
  }
  for (void* const p : all) memory.deallocate(p, stream);
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(pools_test, a_forsaken_pool_goes_with_its_last_block) {
  auto memory = make();
  const auto stream = new_stream();
  listener ear;
  auto observation = memory.add_observer(ear).value();
  auto pool = memory.create_pool("short").value();
  auto copy = pool;
  void* const p = pool.allocate(100_MiB, stream);
  void* const q = pool.allocate(100_MiB, stream);
  write(stream, p, 100_MiB);
  pool = {};
  EXPECT_EQ(ear.count(memory_event_kind::pool_released), 0u);
  copy = {};
  EXPECT_EQ(ear.count(memory_event_kind::pool_released), 1u);
  memory.deallocate(p, stream);
  EXPECT_GE(memory.stats().reserved.current, 200_MiB);
  machine->run_until_idle();
  memory.deallocate(q, stream);
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(check(memory), "");
  observation.close();
}

TEST_F(pools_test, requests_go_to_a_scopes_pool_of_the_same_allocator_only) {
  // Both ways round: which of the two comes first in memory must not matter.
  std::array both{make(), make()};
  const auto stream = new_stream();
  for (std::size_t i = 0; i < 2; ++i) {
    caching_allocator& here = both[i];
    caching_allocator& there = both[1 - i];
    const auto pool = here.create_pool("here").value();
    const pool_scope scope{pool};
    void* const p = here.allocate(64_KiB, stream);
    void* const q = there.allocate(64_KiB, stream);
    EXPECT_EQ(here.block_at(p).value().pool, pool.id());
    EXPECT_EQ(there.block_at(q).value().pool, pool_id{});
    here.deallocate(p, stream);
    there.deallocate(q, stream);
  }
}

TEST_F(pools_test, scopes_of_several_allocators_are_open_at_a_time) {
  auto one = make();
  auto two = make();
  const auto stream = new_stream();
  const auto outer = one.create_pool("outer").value();
  const auto inner = two.create_pool("inner").value();
  const auto pool_of = [&](const caching_allocator& memory) {
    void* const p = memory.allocate(64_KiB, stream);
    const pool_id id = memory.block_at(p).value().pool;
    memory.deallocate(p, stream);
    return id;
  };
  const pool_scope first{outer};
  {
    const pool_scope second{inner};
    EXPECT_EQ(pool_of(one), outer.id());
    EXPECT_EQ(pool_of(two), inner.id());
    const pool_scope none{memory_pool{}};
    EXPECT_EQ(pool_of(one), outer.id());
    EXPECT_EQ(pool_of(two), inner.id());
  }
  EXPECT_EQ(pool_of(two), pool_id{});
  EXPECT_EQ(pool_of(one), outer.id());
}

TEST_F(pools_test, the_caches_serve_nobody_inside_a_scope_and_everybody_behind_it) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  void* const outside = memory.allocate(64_KiB, stream);
  memory.deallocate(outside, stream);
  {
    const pool_scope scope{pool};
    void* const inside = memory.allocate(64_KiB, stream);
    EXPECT_NE(inside, outside);
    memory.deallocate(inside, stream);
    EXPECT_EQ(memory.allocate(64_KiB, stream), inside);
    memory.deallocate(inside, stream);
  }
  EXPECT_EQ(memory.allocate(64_KiB, stream), outside);
  EXPECT_EQ(memory.stats().hits, 1u);
  memory.deallocate(outside, stream);
}

TEST_F(pools_test, a_pool_that_is_let_go_is_gone_at_once) {
  auto memory = make();
  const auto stream = new_stream();
  const auto kept = memory.create_pool("kept").value();
  memory.deallocate(kept.allocate(6_MiB, stream), stream);
  for (const bool for_graphs : {false, true}) {
    auto pool = memory.create_pool("brief", {.for_graphs = for_graphs}).value();
    memory.deallocate(pool.allocate(10_MiB, stream), stream);
    EXPECT_EQ(memory.stats().reserved.current, 16_MiB);
    pool = {};
    EXPECT_EQ(memory.stats().reserved.current, 6_MiB);
    EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  }
  EXPECT_EQ(kept.stats().reserved.current, 6_MiB) << "somebody holds it";
  EXPECT_EQ(memory.block_at(kept.allocate(6_MiB, stream)).value().pool, kept.id());
  auto empty = memory.create_pool("never used").value();
  empty = {};
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  static_cast<void>(memory.close());
  EXPECT_EQ(heard.take().size(), 1u);
}

TEST_F(pools_test, a_forsaken_pool_keeps_all_until_its_last_block_is_freed) {
  auto memory = make();
  const auto stream = new_stream();
  auto pool = memory.create_pool("forsaken").value();
  void* const p = pool.allocate(10_MiB, stream);
  void* const q = pool.allocate(10_MiB, stream);
  pool = {};
  memory.deallocate(p, stream);
  static_cast<void>(memory.create_pool("another"));  // which looks for pools to end
  EXPECT_EQ(memory.stats().reserved.current, 20_MiB);
  memory.deallocate(q, stream);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

TEST_F(pools_test, a_forsaken_pool_that_streams_still_use_goes_when_they_have_passed) {
  auto memory = make();
  const auto stream = new_stream();
  auto pool = memory.create_pool("forsaken").value();
  void* const p = pool.allocate(10_MiB, stream);
  write(stream, p, 10_MiB);
  memory.deallocate(p, stream);
  pool = {};
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim(bytes::max()));  // which keeps all that somebody has
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

/// Replays may be under way on any stream that there was when it was let go.
TEST_F(pools_test, a_retaining_pool_stays_until_every_stream_has_come_so_far) {
  for (std::size_t busy = 0; busy < 3; ++busy) {
    auto memory = make({.crossing = crossing_rule::declared_uses});
    const std::array streams{new_stream(), new_stream(), new_stream()};
    for (const stream& each : streams) memory.deallocate(memory.allocate(1_KiB, each), each);
    auto pool = memory.create_pool("graphs", {.for_graphs = true}).value();
    memory.deallocate(pool.allocate(4_MiB, streams[1]), streams[1]);
    void* const p = memory.allocate(1_KiB, streams[busy]);
    auto held = hold(streams[busy]);
    write(streams[busy], p, 1_KiB);
    pool = {};
    EXPECT_EQ(memory.snapshot().pools.size(), 2u) << busy;
    held.release();
    machine->run_until_idle();
    ASSERT_TRUE(memory.trim(bytes::max()));
    EXPECT_EQ(memory.snapshot().pools.size(), 1u);
    memory.deallocate(p, streams[busy]);
  }
}

TEST_F(pools_test, a_pool_that_helps_out_does_so_with_what_it_has_there) {
  auto memory = make({.limit = 12_MiB});
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart", {.suspendable = suspendable_options{}}).value();
  ASSERT_TRUE(pool.set_fallback(true));
  void* const own = memory.allocate(4_MiB, stream);
  ASSERT_TRUE(memory.set_limit(4_MiB));
  EXPECT_EQ(code_of(memory.try_allocate(2_MiB, stream)), errc::out_of_memory) << "nothing yet";
  ASSERT_TRUE(memory.set_limit(12_MiB));
  void* const kept = pool.allocate(2_MiB, stream);
  memory.deallocate(pool.allocate(6_MiB, stream), stream);
  machine->run_until_idle();
  void* const helped = memory.allocate(6_MiB, stream);
  EXPECT_EQ(memory.block_at(helped).value().pool, pool.id());
  memory.deallocate(helped, stream);
  ASSERT_TRUE(pool.suspend());
  ASSERT_TRUE(memory.set_limit(4_MiB));
  EXPECT_EQ(code_of(memory.try_allocate(2_MiB, stream)), errc::out_of_memory) << "it is away";
  EXPECT_EQ(check(memory), "");
  memory.deallocate(own, stream);
  memory.deallocate(kept, stream);
}

TEST_F(pools_test, a_pool_that_was_never_used_is_in_nobodys_way) {
  auto memory = make({.limit = 16_MiB});
  const auto stream = new_stream();
  const auto pool = memory.create_pool("never used").value();
  int local = 0;
  const auto ask_everything = [&](bytes live) {
    EXPECT_EQ(code_of(memory.block_at(&local)), errc::foreign_pointer);
    EXPECT_EQ(code_of(memory.describe_address(&local)), errc::foreign_pointer);
    EXPECT_EQ(code_of(memory.try_deallocate(&local, stream)), errc::foreign_pointer);
    EXPECT_EQ(code_of(memory.try_allocate(17_MiB, stream)), errc::out_of_memory);
    memory.reset_peaks();
    EXPECT_EQ(memory.stats().reserved, (byte_gauge{live, live}));
    EXPECT_EQ(memory.explain(1_MiB, stream).stats.reserved.current, live);
    EXPECT_EQ(memory.trim().value(), 0_B);
    EXPECT_EQ(memory.shrink(0_B).value(), 0_B);
    EXPECT_EQ(memory.empty_cache().value(), 0_B);
    const auto snapshot = memory.snapshot();
    ASSERT_EQ(snapshot.pools.size(), 2u);
    EXPECT_EQ(snapshot.pools.back().name, "never used");
    EXPECT_TRUE(snapshot.pools.back().blocks.empty());
    EXPECT_EQ(check(memory), "");
  };
  ask_everything(0_B);
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  void* const p = memory.allocate(16_MiB, stream);
  ask_everything(16_MiB);
  memory.deallocate(p, stream);
}

TEST_F(pools_test, what_is_gone_costs_nothing) {
  auto memory = make();
  const auto stream = new_stream();
  const auto once = [&] {
    const auto pool = memory.create_pool("brief").value();
    memory.deallocate(pool.allocate(2_MiB, stream), stream);
  };
  once();
  const bytes metadata = memory.stats().metadata;
  const auto ranges = machine->calls(driver::call::mem_address_reserve) -
                      machine->calls(driver::call::mem_address_free);
  for (int i = 0; i < 20; ++i) once();
  EXPECT_EQ(memory.stats().metadata, metadata);
  EXPECT_EQ(machine->calls(driver::call::mem_address_reserve) -
                machine->calls(driver::call::mem_address_free),
            ranges);
}

TEST_F(pools_test, a_handle_that_was_moved_from_has_no_pool) {
  const auto stream = new_stream();
  auto memory = make();
  const memory_pool none;
  EXPECT_FALSE(none);
  EXPECT_THROW(static_cast<void>(none.id()), failure);
  EXPECT_THROW(static_cast<void>(none.name()), failure);
  EXPECT_THROW(static_cast<void>(none.stats()), failure);
  EXPECT_THROW(static_cast<void>(none.snapshot()), failure);
  EXPECT_THROW(static_cast<void>(none.allocate(1_KiB, stream)), failure);
  EXPECT_EQ(code_of(none.handles_under(&memory)), errc::moved_from);
  EXPECT_EQ(code_of(none.allocate_at(&memory, 1_KiB, stream)), errc::moved_from);
  EXPECT_EQ(code_of(none.empty_cache()), errc::moved_from);
  EXPECT_EQ(code_of(none.suspend()), errc::moved_from);
  EXPECT_EQ(code_of(none.resume()), errc::moved_from);
  EXPECT_THROW(static_cast<void>(none.is_suspended()), failure);
  auto pool = memory.create_pool("left over", {.exportable = true}).value();
  void* const p = pool.allocate(1_KiB, stream);
  EXPECT_EQ(memory.size_of(p).value(), 1_KiB);
  memory.deallocate(p, stream);
  auto other = std::move(memory);
  memory = make();
  other = make();  // with it the pool's owner is gone
  EXPECT_EQ(code_of(pool.handles_under(p)), errc::closed);
  EXPECT_EQ(code_of(pool.allocate_at(p, 1_KiB, stream)), errc::closed);
  EXPECT_EQ(code_of(pool.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(pool.set_fallback(true)), errc::closed);
  EXPECT_EQ(code_of(pool.suspend()), errc::closed);
  EXPECT_EQ(code_of(pool.resume()), errc::closed);
  EXPECT_EQ(code_of(pool.suspend_async()), errc::closed);
  EXPECT_EQ(code_of(pool.resume_async(stream)), errc::closed);
  EXPECT_THROW(static_cast<void>(pool.is_suspended()), failure);
  EXPECT_THROW(static_cast<void>(pool.snapshot()), failure);
}

TEST_F(pools_test, requests_of_a_pool_are_checked_as_any) {
  auto memory = make({.limit = 64_MiB});
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  EXPECT_EQ(pool.allocate(0_B, stream), nullptr);
  EXPECT_EQ(code_of(pool.try_allocate(bytes::max(), stream)), errc::size_overflow);
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream, 3_B)), errc::bad_alignment);
  EXPECT_EQ(code_of(pool.try_allocate(65_MiB, stream)), errc::out_of_memory);
  EXPECT_THROW(static_cast<void>(pool.allocate(65_MiB, stream)), out_of_memory);
  EXPECT_THROW(static_cast<void>(pool.allocate(bytes::max(), stream)), failure);
  EXPECT_EQ(pool.stats().failures, 2u);
  void* const aligned = pool.allocate(1_KiB, stream, 2_MiB);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(aligned) % (2_MiB).count(), 0u);
  memory.deallocate(aligned, stream);
}

TEST_F(pools_test, in_segments_are_plain_memory_under_the_classic_policy_alone) {
  for (const auto policy : {placement_policy::classic, placement_policy::classic_expandable,
                            placement_policy::balanced}) {
    SCOPED_TRACE(to_string(policy));
    const bool plain = policy == placement_policy::classic;
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    const auto pool = memory.create_pool("segments", {.segments = true}).value();
    void* const block = pool.allocate(3_MiB, stream);
    const context_scope bound{gpu()};
    int legacy = -1;
    EXPECT_EQ(bound.driver().pointer_get_attribute(
                  &legacy, driver::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                  reinterpret_cast<driver::CUdeviceptr>(block)),
              driver::CUDA_SUCCESS);
    EXPECT_EQ(legacy, plain ? 1 : 0);
    driver::CUipcMemHandle handle{};
    EXPECT_EQ(
        bound.driver().ipc_get_mem_handle(&handle, reinterpret_cast<driver::CUdeviceptr>(block)),
        plain ? driver::CUDA_SUCCESS : driver::CUDA_ERROR_INVALID_VALUE);
    memory.deallocate(block, stream);
    EXPECT_TRUE(memory.close());
  }
}

TEST_F(pools_test, outlive_their_allocator_harmlessly) {
  const auto stream = new_stream();
  memory_pool pool;
  {
    auto memory = make();
    pool = memory.create_pool("left over").value();
    memory.deallocate(pool.allocate(1_MiB, stream), stream);
  }
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::closed);
  EXPECT_THROW(static_cast<void>(pool.stats()), failure) << "its allocator is gone";
  EXPECT_EQ(pool.name(), "left over");
  EXPECT_THROW(static_cast<void>(pool.allocate(1_MiB, stream)), failure);
  EXPECT_EQ(code_of(memory_pool{}.try_allocate(1_MiB, stream)), errc::moved_from);
}

}  // namespace
}  // namespace weir::testing_support

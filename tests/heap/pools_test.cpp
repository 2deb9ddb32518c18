// Private pools: apart from everything else, and gone when nobody needs them.
#include <array>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support {
namespace {

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
  auto observation = memory.add_observer(ear);
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
  observation.end();
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
  for (const bool retains : {false, true}) {
    auto pool = memory.create_pool("brief", {.retains = retains}).value();
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
  EXPECT_EQ(none.id(), pool_id{});
  EXPECT_EQ(none.name(), "");
  EXPECT_EQ(none.stats(), memory_stats{});
  EXPECT_EQ(none.snapshot().name, "");
  EXPECT_THROW(static_cast<void>(none.allocate(1_KiB, stream)), failure);
  EXPECT_EQ(code_of(none.handles_under(&memory)), errc::moved_from);
  EXPECT_EQ(code_of(none.allocate_at(&memory, 1_KiB, stream)), errc::moved_from);
  EXPECT_EQ(code_of(none.empty_cache()), errc::moved_from);
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
  EXPECT_EQ(pool.snapshot().name, "");
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

TEST_F(pools_test, outlive_their_allocator_harmlessly) {
  const auto stream = new_stream();
  memory_pool pool;
  {
    auto memory = make();
    pool = memory.create_pool("left over").value();
    memory.deallocate(pool.allocate(1_MiB, stream), stream);
  }
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::closed);
  EXPECT_EQ(pool.stats().blocks.current, 0u);
  EXPECT_EQ(pool.name(), "left over");
  EXPECT_THROW(static_cast<void>(pool.allocate(1_MiB, stream)), failure);
  EXPECT_EQ(code_of(memory_pool{}.try_allocate(1_MiB, stream)), errc::moved_from);
}

}  // namespace
}  // namespace weir::testing_support

// Private pools: apart from everything else, and gone when nobody needs them.
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

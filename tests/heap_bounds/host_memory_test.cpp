// SPDX-License-Identifier: Apache-2.0
// A host without memory: whatever allocation fails, it is told and nothing is lost.
#include <optional>
#include <thread>
#include <vector>

#include "heap/address_table.hpp"
#include "heap/heap_fixture.hpp"
#include "support/scarce_memory.hpp"

namespace weir::testing_support { namespace {

// --- A driver that has memory of its own ---------------------------------------------------------

const driver::table* real_table = nullptr;

template <auto Row, class Signature>
struct thunk;

template <auto Row, class... Arguments>
struct thunk<Row, driver::CUresult (*)(Arguments...)> {
  static driver::CUresult call(Arguments... arguments) {
    const spared_memory spared;
    return (real_table->*Row)(arguments...);
  }
};

const driver::table& with_memory_of_its_own(const driver::table& real) {
  static driver::table table;
  real_table = &real;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  table.member = real.member == nullptr                                       \
                     ? nullptr                                                \
                     : &thunk<&driver::table::member, decltype(driver::table::member)>::call;
#include "weir/driver/calls.def"
  return table;
}

// --- The allocator -------------------------------------------------------------------------------

class host_memory_test : public heap_test {
 protected:
  host_memory_test() {
    const auto& table = with_memory_of_its_own(machine->driver());
    runtime_ = runtime::open_table(table, "simulated", machine).value();
    first = new_stream();
    second = new_stream();
  }

  struct live_block {
    void* pointer = nullptr;
    const stream* on = nullptr;
  };

  /// What a program asks of an allocator. Tells how many answers were errors.
  int play(caching_allocator& memory, std::vector<live_block>& live) {
    const stream& one = *first;
    const stream& two = *second;
    int refused = 0;
    const auto note = [&](const auto& answer) {
      if (answer) return true;
      // What no wait or mark could be had for is missing where memory is short.
      EXPECT_TRUE(answer.code() == errc::no_host_memory || answer.code() == errc::out_of_memory)
          << answer.error().message();
      ++refused;
      return false;
    };
    const auto take = [&](bytes size, const stream& on) {
      const auto answer = memory.try_allocate(size, on);
      if (note(answer)) live.push_back({*answer, &on});
    };
    const auto give = [&](std::size_t at) {
      if (at >= live.size()) return;
      if (!note(memory.try_deallocate(live[at].pointer, *live[at].on))) return;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    };
    const auto use_pool = [&](const stream& on) {
      const auto pool = memory.create_pool("scarce");
      if (!note(pool)) return;
      const auto answer = pool->try_allocate(5_MiB, on);
      if (!note(answer)) return;
      work_on(on);
      if (!note(memory.try_deallocate(*answer, on))) live.push_back({*answer, &on});
    };
    use_pool(two);
    for (const bytes size : {1_KiB, 64_KiB, 3_MiB, 40_MiB, 1_MiB, 512_B}) take(size, one);
    for (int i = 0; i < 20; ++i) take(2_KiB, two);
    if (live.size() > 3) note(memory.record_stream(live[2].pointer, two));
    work_on(two);
    give(2);
    give(0);
    take(30_MiB, two);
    take(3_MiB, two);
    give(1);
    take(50_MiB, two);
    note(memory.release_stream(one));
    use_pool(one);
    while (live.size() > 4) {
      const auto before = live.size();
      give(before / 2);
      if (live.size() == before) give(before / 2);  // it was not freed, and can be
    }
    note(memory.trim());
    work_on(one);
    take(60_MiB, one);
    note(memory.empty_cache());
    return refused;
  }

  /// Work that is not done before somebody waits for it.
  void work_on(const stream& on) {
    const spared_memory spared;
    EXPECT_TRUE(machine->launch(on.handle(), "work", {}));
  }

  std::optional<stream> first;
  std::optional<stream> second;
};

/// Each round on a thread of its own, which has to get a cache first.
TEST_F(host_memory_test, any_allocation_of_the_host_may_fail) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic,
                            placement_policy::classic_expandable}) {
    allocator_options settings{.policy = policy};
    // A little more than is ever live, so that an arena has to move memory and wait for streams.
    settings.limit = policy == placement_policy::balanced ? 128_MiB : 512_MiB;
    long enough = 0;
    int told = 0;
    int refused = 0;
    for (bool failed = true; failed; ++enough) {
      ASSERT_LT(enough, 5000);
      SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
      caching_allocator memory = make(settings);
      std::vector<live_block> live;
      live.reserve(100);
      std::thread{[&] {
        const scarce_memory scarce{enough};
        refused = play(memory, live);
        failed = scarce_memory::take_failure();
      }}.join();
      told += refused;
      ASSERT_EQ(check(memory), "");
      if (!failed) {
        EXPECT_EQ(refused, 0);
        EXPECT_EQ(memory.stats().handles_moved != 0, policy == placement_policy::balanced);
        EXPECT_EQ(memory.stats().waits != 0, policy == placement_policy::balanced);
      }
      EXPECT_EQ(memory.stats().blocks.current, live.size());
      for (const live_block& each : live)
        EXPECT_TRUE(memory.try_deallocate(each.pointer, *each.on));
      EXPECT_EQ(memory.stats().allocated.current, 0_B);
      machine->run_until_idle();
      ASSERT_TRUE(memory.empty_cache());
      EXPECT_EQ(memory.stats().reserved.current, 0_B);
      ASSERT_EQ(check(memory), "");
      ASSERT_TRUE(memory.close());
      for (const error& each : heard.take()) EXPECT_EQ(each.code(), errc::no_host_memory);
      if (HasFailure()) return;
    }
    EXPECT_GT(enough, 50);
    EXPECT_GT(told, 20);
  }
}

TEST_F(host_memory_test, an_allocator_is_made_or_the_reason_is_told) {
  long enough = 0;
  for (bool failed = true; failed; ++enough) {
    ASSERT_LT(enough, 1000);
    std::optional<result<caching_allocator>> made;
    {
      const scarce_memory scarce{enough};
      made.emplace(caching_allocator::create(gpu()));
      failed = scarce_memory::take_failure();
    }
    ASSERT_EQ(code_of(*made), failed ? std::optional{errc::no_host_memory} : std::nullopt);
  }
  EXPECT_GT(enough, 3);
}

/// Counts what becomes of pools, without memory of its own.
class pool_counts final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override {
    if (event.kind == memory_event_kind::pool_created) ++created;
    if (event.kind == memory_event_kind::pool_released) ++released;
  }
  std::uint32_t created = 0;
  std::uint32_t released = 0;
};

/// A pool whose handle could not be made is gone again; a number is used up only where there was
/// one.
TEST_F(host_memory_test, a_pool_is_made_or_there_is_none) {
  const std::string name(100, 'p');
  long enough = 0;
  for (bool failed = true; failed; ++enough) {
    ASSERT_LT(enough, 100);
    SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
    pool_counts counts;
    caching_allocator memory = make();
    const auto observation = memory.add_observer(counts);
    std::optional<result<memory_pool>> made;
    {
      const scarce_memory scarce{enough};
      made.emplace(memory.create_pool(name));
      failed = scarce_memory::take_failure();
    }
    ASSERT_EQ(code_of(*made), failed ? std::optional{errc::no_host_memory} : std::nullopt);
    EXPECT_EQ(memory.snapshot().pools.size(), failed ? 1u : 2u);
    EXPECT_EQ(counts.released, failed ? counts.created : 0u);
    const auto next = memory.create_pool(name).value();
    EXPECT_EQ(next.id(), pool_id{counts.created});
    EXPECT_EQ(next.name(), name);
    EXPECT_EQ(memory.snapshot().pools.size(), failed ? 2u : 3u);
    EXPECT_EQ(check(memory), "");
  }
  EXPECT_GT(enough, 4);
}

/// Where memory is short, the request of a stream is served from memory that any stream may use.
/// The thread's cache returns such a block later, in a call that cannot fail.
TEST_F(host_memory_test, cached_blocks_of_a_new_stream_return_without_host_memory) {
  for (long enough = 0; enough < 8; ++enough) {
    caching_allocator memory = make({.limit = 128_MiB});
    memory.deallocate(memory.allocate(40_MiB, *first), *first);
    ASSERT_TRUE(first->synchronize());
    ASSERT_TRUE(memory.trim(40_MiB));
    memory.deallocate(memory.allocate(3_MiB, *second), *second);
    {
      const scarce_memory scarce{enough};
      const auto trimmed = memory.trim();
      EXPECT_TRUE(trimmed || trimmed.code() == errc::no_host_memory);
    }
    EXPECT_EQ(check(memory), "");
    EXPECT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
  }
}

/// A block that waits for other streams becomes memory of a stream that the pool's store has never
/// met.
TEST_F(host_memory_test, a_new_stream_takes_what_is_pending_in_a_pool_or_is_refused) {
  int refused = 0;
  bool failed = true;
  for (long enough = 0; failed; ++enough) {
    ASSERT_LT(enough, 200);
    SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
    caching_allocator memory = make({.limit = 64_MiB});
    const stream fresh = new_stream();
    const memory_pool pool = memory.create_pool("new to the stream").value();
    void* const used = pool.allocate(40_MiB, *first);
    ASSERT_TRUE(memory.record_stream(used, *second));
    work_on(*second);
    memory.deallocate(used, *first);
    std::optional<result<void*>> answer;
    {
      const scarce_memory scarce{enough};
      answer.emplace(pool.try_allocate(30_MiB, fresh));
      failed = scarce_memory::take_failure();
    }
    ASSERT_EQ(check(memory), "");
    if (*answer) {
      memory.deallocate(**answer, fresh);
    } else {
      EXPECT_TRUE(answer->code() == errc::no_host_memory || answer->code() == errc::out_of_memory)
          << answer->error().message();
      ++refused;
    }
    if (!failed) {
      EXPECT_EQ(memory.stats().waits, 2u) << "it was not taken behind waits";
    }
    machine->run_until_idle();
    EXPECT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
  }
  EXPECT_GT(refused, 3);
}

/// A stream whose first request fails is met by the next one as if nothing had happened.
TEST_F(host_memory_test, a_stream_is_known_whole_or_not_at_all) {
  bool failed = true;
  for (long enough = 0; failed; ++enough) {
    ASSERT_LT(enough, 100);
    SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
    caching_allocator memory = make();
    void* const met = memory.allocate(1_KiB, *first);
    {
      const scarce_memory scarce{enough};
      const auto refused = memory.try_allocate(1_KiB, *second);
      failed = scarce_memory::take_failure();
      if (refused) memory.deallocate(*refused, *second);
    }
    void* const block = memory.allocate(2_KiB, *second);
    EXPECT_EQ(memory.block_at(block).value().stream, second->id());
    EXPECT_EQ(check(memory), "");
    memory.deallocate(block, *second);
    memory.deallocate(met, *first);
  }
}

/// A thread that gets its cache during a capture knows its default stream from before.
TEST_F(host_memory_test, a_per_thread_stream_stays_known_when_the_thread_gets_a_cache) {
  bool failed = true;
  for (long enough = 0; failed; ++enough) {
    ASSERT_LT(enough, 100);
    SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
    caching_allocator memory = make();
    std::thread{[&] {
      const context_scope bound{gpu()};
      const stream_ref own = stream_ref::per_thread(gpu());
      std::optional<result<graph_memory>> claim;
      {
        const scarce_memory scarce{enough};
        claim.emplace(memory.begin_capture(own));
        failed = scarce_memory::take_failure();
      }
      if (!*claim) return;
      ASSERT_EQ(machine->driver().stream_begin_capture(own.handle(),
                                                       driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
                driver::CUDA_SUCCESS);
      const auto block = memory.try_allocate(1_KiB, own);
      EXPECT_TRUE(block) << block.error().message();
      if (block) {
        EXPECT_TRUE(memory.try_deallocate(*block, own));
      }
      driver::CUgraph graph = nullptr;
      EXPECT_EQ(machine->driver().stream_end_capture(own.handle(), &graph), driver::CUDA_SUCCESS);
      EXPECT_EQ(machine->driver().graph_destroy(graph), driver::CUDA_SUCCESS);
    }}.join();
  }
}

TEST_F(host_memory_test, a_graphs_memory_goes_though_nothing_could_be_noted_at_its_end) {
  bool failed = true;
  for (long enough = 0; failed; ++enough) {
    ASSERT_LT(enough, 100);
    SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
    caching_allocator memory = make();
    graph_memory claim = memory.begin_capture(*first).value();
    {
      const context_scope bound{gpu()};
      ASSERT_EQ(machine->driver().stream_begin_capture(first->handle(),
                                                       driver::CU_STREAM_CAPTURE_MODE_RELAXED),
                driver::CUDA_SUCCESS);
      memory.deallocate(memory.allocate(4_MiB, *first), *first);
      driver::CUgraph graph = nullptr;
      ASSERT_EQ(machine->driver().stream_end_capture(first->handle(), &graph),
                driver::CUDA_SUCCESS);
      ASSERT_EQ(machine->driver().graph_destroy(graph), driver::CUDA_SUCCESS);
    }
    {
      const scarce_memory scarce{enough};
      claim = {};
      failed = scarce_memory::take_failure();
    }
    EXPECT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
  }
}

/// The only memory there is lies in another thread's cache.
TEST_F(host_memory_test, a_thread_that_gets_no_cache_finds_what_others_keep) {
  long enough = 0;
  int without = 0;
  for (bool failed = true; failed; ++enough) {
    ASSERT_LT(enough, 100);
    SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
    caching_allocator memory = make({.thread_cache = 1_MiB});
    void* const pin = memory.allocate(1_MiB, *first);
    void* const freed = memory.allocate(1_MiB, *first);
    memory.deallocate(freed, *first);
    ASSERT_EQ(heap::this_thread.cache->held(), (1_MiB).count());
    std::optional<result<void*>> taken;
    std::thread{[&] {
      {
        const scarce_memory scarce{enough};
        taken.emplace(memory.try_allocate(1_MiB, *first));
        failed = scarce_memory::take_failure();
      }
      if (!*taken || !failed || heap::this_thread.cache != nullptr) return;
      ++without;
      EXPECT_EQ(taken->value(), freed);
      const memory_stats now = memory.stats();
      EXPECT_EQ(now.misses, 1u) << "the first request of all";
      EXPECT_EQ(now.reserved.current, 2_MiB);
    }}.join();
    if (*taken) memory.deallocate(taken->value(), *first);
    memory.deallocate(pin, *first);
    EXPECT_EQ(check(memory), "");
  }
  EXPECT_GT(without, 0) << "it could not be arranged";
}

TEST(address_table_without_memory, is_full_until_it_can_grow) {
  std::optional<heap::address_table> table;
  {
    const scarce_memory scarce{0};
    table.emplace();
  }
  EXPECT_EQ(table->footprint(), 0u);
  EXPECT_EQ(table->size(), 0u);
  EXPECT_TRUE(table->full());
  ASSERT_TRUE(table->grow());
  EXPECT_FALSE(table->full());
  table->insert(1024, 5);
  EXPECT_EQ(table->find(1024), 5u);
  const std::size_t footprint = table->footprint();
  {
    const scarce_memory scarce{0};
    EXPECT_FALSE(table->grow());
  }
  EXPECT_EQ(table->footprint(), footprint);
  EXPECT_EQ(table->find(1024), 5u) << "it is as it was";
}

}  // namespace
}  // namespace weir::testing_support

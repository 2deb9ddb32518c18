// SPDX-License-Identifier: Apache-2.0
// Memory that goes back to the driver because somebody asks for it, to the byte.
#include <thread>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

class trim_test : public graph_test {
 protected:
  /// A graph whose capture took 8 MiB of its own, tied to it.
  [[nodiscard]] driver::CUgraphExec make_graph(caching_allocator& memory, const stream& on) {
    auto own = memory.begin_capture(on).value();
    begin(on);
    void* const inside = memory.allocate(8_MiB, on);
    write(on, inside, 8_MiB);
    memory.deallocate(inside, on);
    const auto graph = end(on);
    EXPECT_TRUE(own.tie_to_graph(graph));
    const auto replay = instantiate(graph);
    destroy(graph);
    return replay;
  }
};

TEST_F(trim_test, releases_down_to_what_is_kept_and_says_how_much) {
  auto memory = make({.policy = placement_policy::compact, .thread_cache = {}});
  const auto stream = new_stream();
  std::vector<void*> all;
  for (int i = 0; i < 8; ++i) all.push_back(memory.allocate(8_MiB, stream));
  for (void* const p : all) memory.deallocate(p, stream);
  ASSERT_EQ(memory.stats().reserved.current, 64_MiB);
  EXPECT_EQ(memory.trim(64_MiB).value(), 0_B);
  EXPECT_EQ(memory.trim(50_MiB).value(), 14_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 50_MiB);
  EXPECT_EQ(memory.trim(49_MiB).value(), 2_MiB) << "whole handles";
  EXPECT_EQ(memory.stats().handles_released, 8u);
  EXPECT_EQ(memory.trim().value(), 48_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.trim().value(), 0_B);
}

TEST_F(trim_test, goes_through_all_pools_and_the_caches_of_threads) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  const auto unused = memory.create_pool("never used").value();
  void* const kept = pool.allocate(4_MiB, stream);
  memory.deallocate(pool.allocate(10_MiB, stream), stream);
  memory.deallocate(memory.allocate(32_MiB, stream), stream);  // in this thread's cache
  memory.deallocate(memory.allocate(1_KiB, stream), stream);
  EXPECT_EQ(memory.stats().thread_cached, 1_KiB);
  EXPECT_EQ(memory.trim(30_MiB).value(), 16_MiB) << "the allocator's own first";
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(pool.stats().reserved.current, 14_MiB);
  EXPECT_EQ(memory.trim().value(), 26_MiB);
  EXPECT_EQ(pool.stats().reserved.current, 4_MiB);
  EXPECT_EQ(unused.empty_cache().value(), 0_B);
  memory.deallocate(kept, stream);
}

TEST_F(trim_test, waits_for_nobody_and_empty_cache_for_everybody) {
  auto memory = make();
  const auto stream = new_stream();
  void* const p = memory.allocate(16_MiB, stream);
  write(stream, p, 16_MiB);
  memory.deallocate(p, stream);
  EXPECT_EQ(memory.trim().value(), 0_B);
  EXPECT_EQ(memory.stats().thread_cached, 0_B) << "flushed all the same";
  EXPECT_EQ(memory.empty_cache().value(), 16_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(trim_test, sees_that_a_graph_is_gone) {
  auto memory = make();
  const auto stream = new_stream();
  const auto replay = make_graph(memory, stream);
  EXPECT_EQ(memory.trim().value(), 0_B);
  destroy(replay);
  machine->run_until_idle();
  EXPECT_EQ(memory.trim().value(), 8_MiB);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

TEST_F(trim_test, empty_cache_sees_that_a_graph_goes_with_the_work_it_waits_for) {
  auto memory = make();
  const auto stream = new_stream();
  const auto replay = make_graph(memory, stream);
  launch(replay, stream);
  destroy(replay);  // which ends with its last replay
  {
    // A stream that is gone without a word has the whole device waited for.
    const context_scope bound{gpu()};
    driver::CUstream made = nullptr;
    ASSERT_EQ(driver::CUDA_SUCCESS,
              cuda().stream_create_with_priority(&made, driver::CU_STREAM_NON_BLOCKING, 0));
    const stream_ref bare{gpu(), made};
    void* const p = memory.allocate(2_MiB, bare);
    write(bare, p, 2_MiB);
    memory.deallocate(p, bare);
    ASSERT_EQ(driver::CUDA_SUCCESS, cuda().stream_destroy(made));
  }
  EXPECT_EQ(memory.empty_cache().value(), 10_MiB);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

TEST_F(trim_test, a_driver_that_is_gone_is_told) {
  auto memory = make();
  const auto stream = new_stream();
  memory.deallocate(memory.allocate(16_MiB, stream), stream);
  const auto pool = memory.create_pool("apart").value();
  memory.deallocate(pool.allocate(2_MiB, stream), stream);
  machine->shut_down();
  EXPECT_EQ(code_of(memory.trim()), errc::driver_gone);
  EXPECT_EQ(code_of(memory.empty_cache()), errc::driver_gone);
  EXPECT_EQ(code_of(memory.release_stream(stream)), errc::driver_gone);
  EXPECT_EQ(code_of(pool.empty_cache()), errc::driver_gone);
}

TEST_F(trim_test, trouble_with_the_driver_ends_it) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  memory.deallocate(memory.allocate(16_MiB, stream), stream);
  memory.deallocate(pool.allocate(4_MiB, stream), stream);
  machine->run_until_idle();
  machine->fail(driver::call::mem_unmap, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto trimmed = memory.trim();
  ASSERT_FALSE(trimmed);
  EXPECT_EQ(trimmed.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(memory.stats().reserved.current, 20_MiB);
  EXPECT_EQ(pool.stats().reserved.current, 4_MiB) << "nothing more is asked of that driver";
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

// --- Of one stream -------------------------------------------------------------------------------

TEST_F(trim_test, a_released_stream_leaves_nothing_in_the_caches_and_others_keep_theirs) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* const small = memory.allocate(64_KiB, one);
  void* const large = memory.allocate(32_MiB, one);
  void* const others_large = memory.allocate(32_MiB, two);
  void* const others_small = memory.allocate(64_KiB, two);
  memory.deallocate(others_small, two);
  memory.deallocate(others_large, two);
  memory.deallocate(small, one);
  memory.deallocate(large, one);  // takes the place of the other's
  EXPECT_EQ(memory.stats().thread_cached, 128_KiB + 32_MiB);
  const bytes metadata = memory.stats().metadata;
  ASSERT_TRUE(memory.release_stream(two));
  EXPECT_EQ(memory.stats().thread_cached, 64_KiB + 32_MiB);
  EXPECT_GE(metadata - memory.stats().metadata, 7_KiB) << "its lists went";
  const auto hits = memory.stats().hits;
  EXPECT_EQ(memory.allocate(64_KiB, one), small);
  EXPECT_EQ(memory.allocate(32_MiB, one), large);
  EXPECT_EQ(memory.stats().hits, hits + 2);
  memory.deallocate(small, one);
  memory.deallocate(large, one);
  ASSERT_TRUE(memory.release_stream(one));
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(check(memory), "");
}

/// What another thread freed for this one lies in no list yet.
TEST_F(trim_test, a_stream_that_ends_takes_along_what_was_on_its_way_to_a_cache) {
  auto memory = make();
  auto stream = new_stream();
  void* const p = memory.allocate(64_KiB, stream);
  write(stream, p, 64_KiB);
  std::thread{[&] {
    memory.deallocate(memory.allocate(4_KiB, stream), stream);
    memory.deallocate(p, stream);
  }}.join();
  ASSERT_TRUE(stream.close());
  machine->run_until_idle();
  EXPECT_EQ(memory.trim().value(), 2_MiB) << "nobody need wait for the device";
  EXPECT_EQ(check(memory), "");
}

TEST_F(trim_test, a_stream_may_be_released_that_nobody_met) {
  auto memory = make();
  const auto stranger = new_stream();
  EXPECT_TRUE(memory.release_stream(stranger));
  EXPECT_EQ(code_of(memory.release_stream(stream::create(gpu(1)).value())), errc::bad_stream);
}

// --- Of one pool ---------------------------------------------------------------------------------

TEST_F(trim_test, a_retaining_pool_keeps_all_while_any_stream_captures) {
  for (const crossing_rule crossing : {crossing_rule::all_work, crossing_rule::declared_uses}) {
    auto memory = make({.crossing = crossing});
    const std::array streams{new_stream(), new_stream(), new_stream()};
    const auto pool = memory.create_pool("graphs", {.for_graphs = true}).value();
    const auto plain = memory.create_pool("plain").value();
    for (const stream& each : streams) memory.deallocate(memory.allocate(1_KiB, each), each);
    memory.deallocate(pool.allocate(4_MiB, streams[0]));
    for (const stream& each : streams) {
      const stream& beside = &each == &streams[0] ? streams[1] : streams[0];
      memory.deallocate(plain.allocate(24_MiB, beside), beside);  // enough to be marked
      begin(each);
      EXPECT_EQ(pool.empty_cache().value(), 0_B);
      EXPECT_EQ(plain.empty_cache().value(), 24_MiB) << "no graph uses it";
      destroy(end(each));
    }
    EXPECT_EQ(pool.empty_cache().value(), 4_MiB);
  }
}

TEST_F(trim_test, a_pool_of_a_graph_or_one_that_is_away_has_nothing_to_give) {
  auto memory = make();
  const auto stream = new_stream();
  {
    auto claim = memory.begin_capture(stream).value();
    begin(stream);
    memory.deallocate(memory.allocate(8_MiB, stream), stream);
    const auto graph = end(stream);
    claim.end_capture();
    machine->run_until_idle();
    EXPECT_EQ(claim.pool().empty_cache().value(), 0_B);
    EXPECT_EQ(memory.stats().reserved.current, 8_MiB);
    destroy(graph);
  }
  const auto away = memory.create_pool("away", {.suspendable = suspendable_options{}}).value();
  void* const kept = away.allocate(2_MiB, stream);
  memory.deallocate(away.allocate(4_MiB, stream), stream);
  ASSERT_TRUE(away.suspend());
  EXPECT_EQ(away.empty_cache().value(), 0_B);
  ASSERT_TRUE(away.resume());
  EXPECT_EQ(check(memory), "");
  memory.deallocate(kept, stream);
  EXPECT_EQ(away.empty_cache().value(), 2_MiB) << "what was free did not come back";
}

TEST_F(trim_test, a_pool_that_nobody_holds_ends_once_it_is_emptied) {
  auto memory = make();
  const auto stream = new_stream();
  auto pool = memory.create_pool("apart").value();
  const pool_id id = pool.id();
  void* const p = pool.allocate(4_MiB, stream);
  write(stream, p, 4_MiB);
  memory.deallocate(p, stream);
  pool = {};
  ASSERT_EQ(memory.snapshot().pools.size(), 2u) << "its work is not done";
  EXPECT_EQ(memory.empty_cache(id).value(), 4_MiB);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(code_of(memory.empty_cache(id)), errc::closed);
}

TEST_F(trim_test, of_a_closed_allocator_nothing_goes) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  memory.deallocate(pool.allocate(2_MiB, stream), stream);
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(memory.trim()), errc::closed);
  EXPECT_EQ(code_of(memory.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(memory.release_stream(stream)), errc::closed);
  EXPECT_EQ(code_of(pool.empty_cache()), errc::closed);
}

}  // namespace
}  // namespace weir::testing_support

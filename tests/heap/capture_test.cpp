// SPDX-License-Identifier: Apache-2.0
// Captured graphs: memory of their own, safe to replay, given back when the graph is gone.
#include <array>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::IsEmpty;

using graph_memory_test = graph_test;

TEST_F(graph_memory_test, a_declared_capture_has_a_pool_of_its_own) {
  auto memory = make();
  const auto stream = new_stream();
  const auto other = new_stream();
  memory.deallocate(memory.allocate(1_MiB, stream), stream);  // in the thread's cache
  auto own = memory.begin_capture(stream).value();
  EXPECT_EQ(code_of(memory.begin_capture(stream)), errc::invalid_argument);
  begin(stream);
  void* const a = memory.allocate(1_MiB, stream);
  write(stream, a, 1_MiB);
  memory.deallocate(a, stream);
  void* const b = memory.allocate(1_MiB, stream);
  EXPECT_EQ(b, a) << "reused inside the capture";
  write(stream, b, 1_MiB);
  void* const c = memory.allocate(3_MiB, stream);
  write(stream, c, 3_MiB);
  memory.deallocate(b, stream);
  memory.deallocate(c, stream);
  EXPECT_EQ(own.pool().stats().blocks.current, 0u);
  void* const outside = memory.allocate(1_MiB, other);  // others go on meanwhile
  write(other, outside, 1_MiB);
  const auto graph = end(stream);
  own.end_capture();
  own.end_capture();
  EXPECT_EQ(code_of(own.pool().try_allocate(1_KiB, stream)), errc::invalid_argument);

  const auto replay = instantiate(graph);
  for (int i = 0; i < 5; ++i) {
    launch(replay, stream);
    std::vector<void*> meanwhile;
    for (const bytes size : {1_MiB, 3_MiB, 100_KiB}) {
      meanwhile.push_back(memory.allocate(size, other));
      write(other, meanwhile.back(), size);
    }
    for (void* const p : meanwhile) memory.deallocate(p, other);
    ASSERT_TRUE(memory.trim());
    ASSERT_TRUE(memory.empty_cache());
  }
  EXPECT_THAT(machine->hazards(), IsEmpty());
  EXPECT_GE(memory.stats().reserved.current, 4_MiB);
  machine->run_until_idle();
  destroy(replay);
  destroy(graph);
  memory.deallocate(outside, other);
  own = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

TEST_F(graph_memory_test, a_request_that_a_tags_limit_refuses_is_counted_in_the_captures_pool) {
  const tag limited = tag::named("capture test: limited").value();
  auto memory = make();
  const auto stream = new_stream();
  listener told;
  const auto registration = memory.add_observer(told).value();
  ASSERT_TRUE(memory.set_limit(limited, 1_KiB));
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  {
    const tag_scope as{limited};
    EXPECT_EQ(code_of(memory.try_allocate(2_KiB, stream)), errc::out_of_memory);
  }
  destroy(end(stream));
  own.end_capture();
  EXPECT_EQ(own.pool().stats().failures, 1u);
  EXPECT_EQ(memory.snapshot().pools.front().stats.failures, 0u);
  EXPECT_EQ(memory.stats(limited).failures, 1u);
  for (const memory_event& each : told.take()) {
    if (each.kind == memory_event_kind::out_of_memory) {
      EXPECT_EQ(each.pool, own.pool().id());
    }
  }
}

TEST_F(graph_memory_test, a_declared_stream_is_not_asked_before_its_capture_begins) {
  auto memory = make();
  auto stream = new_stream();
  void* const a = memory.allocate(32_MiB, stream);
  auto own = memory.begin_capture(stream).value();
  memory.deallocate(a, stream);
  const auto asked = machine->calls(driver::call::stream_get_id);
  const auto marks = machine->calls(driver::call::event_record);
  ASSERT_TRUE(memory.trim());  // on another thread it could meet the beginning of the capture
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(machine->calls(driver::call::stream_get_id), asked);
  EXPECT_EQ(machine->calls(driver::call::event_record), marks);
  EXPECT_GE(memory.stats().reserved.current, 32_MiB);
  own.end_capture();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  own = memory.begin_capture(stream).value();
  memory.deallocate(memory.allocate(1_MiB, stream), stream);
  ASSERT_TRUE(stream.close()) << "its end is marked all the same";
  own = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(graph_memory_test, forked_streams_belong_to_the_capture) {
  auto memory = make();
  const auto stream = new_stream();
  const auto branch = new_stream();
  memory.deallocate(memory.allocate(1_KiB, branch), branch);  // known before
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  void* const a = memory.allocate(1_MiB, stream);
  auto fork = event::create(gpu()).value();
  auto join = event::create(gpu()).value();
  ASSERT_TRUE(fork.record(stream));
  ASSERT_TRUE(branch.wait(fork));
  void* const b = memory.allocate(1_MiB, branch);
  write(branch, b, 1_MiB);
  memory.deallocate(b, branch);
  void* const c = memory.allocate(1_MiB, stream);
  EXPECT_NE(c, b) << "another stream's, even inside the capture";
  write(stream, c, 1_MiB);
  EXPECT_EQ(own.pool().stats().blocks.current, 2u);
  ASSERT_TRUE(join.record(branch));
  ASSERT_TRUE(stream.wait(join));
  memory.deallocate(a, stream);
  memory.deallocate(c, stream);
  const auto graph = end(stream);
  own.end_capture();
  const auto replay = instantiate(graph);
  launch(replay, stream);
  machine->run_until_idle();
  EXPECT_THAT(machine->hazards(), IsEmpty());
  destroy(replay);
  destroy(graph);
}

TEST_F(graph_memory_test, tied_to_the_graph_it_lives_as_long_as_that) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  void* const a = memory.allocate(8_MiB, stream);
  write(stream, a, 8_MiB);
  memory.deallocate(a, stream);
  const auto graph = end(stream);
  ASSERT_TRUE(own.tie_to_graph(graph));
  EXPECT_EQ(code_of(own.tie_to_graph(nullptr)), errc::invalid_argument);
  own = {};
  const auto replay = instantiate(graph);
  destroy(graph);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 8_MiB) << "the executable still needs it";
  launch(replay, stream);
  machine->run_until_idle();
  destroy(replay);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

/// The graph is gone, and nothing was freed since that would have to be waited for: what the stream
/// still does may be a replay all the same.
TEST_F(graph_memory_test, of_a_graph_that_is_gone_goes_once_the_streams_are_done) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  memory.deallocate(memory.allocate(8_MiB, stream), stream);
  const auto graph = end(stream);
  ASSERT_TRUE(own.tie_to_graph(graph));
  own = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 8_MiB);
  destroy(graph);
  ASSERT_TRUE(machine->launch(stream.handle(), "a long kernel", {}));
  EXPECT_EQ(memory.empty_cache().value(), 8_MiB) << "it was waited for";
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

class graphs_that_end : public graph_test {
 protected:
  /// A graph with 1200 MiB that is destroyed before its only replay is done.
  void destroy_under_a_replay(const caching_allocator& memory, const stream& on) {
    auto own = memory.begin_capture(on).value();
    begin(on);
    void* const inside = memory.allocate(1200_MiB, on);
    write(on, inside, 1_MiB);
    memory.deallocate(inside, on);
    const auto graph = end(on);
    ASSERT_TRUE(own.tie_to_graph(graph));
    own = {};
    const auto replay = instantiate(graph);
    launch(replay, on);
    destroy(replay);
    destroy(graph);
  }
};

TEST_F(graphs_that_end, during_the_wait_of_a_request_serve_it) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic}) {
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    const auto other = new_stream();
    destroy_under_a_replay(memory, stream);
    void* const freed = memory.allocate(100_MiB, stream);
    write(stream, freed, 1_MiB);
    memory.deallocate(freed, stream);
    void* const served = memory.try_allocate(1_GiB, other).value_or(nullptr);
    EXPECT_NE(served, nullptr) << to_string(policy);
    EXPECT_EQ(memory.stats().failures, 0u);
    memory.deallocate(served, other);
  }
}

TEST_F(graphs_that_end, with_their_last_replay_are_waited_for) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic}) {
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    const auto other = new_stream();
    destroy_under_a_replay(memory, stream);
    void* const served = memory.try_allocate(1_GiB, other).value_or(nullptr);
    EXPECT_NE(served, nullptr) << to_string(policy);
    memory.deallocate(served, other);
  }
}

TEST_F(graphs_that_end, give_their_memory_to_the_next_request_though_a_block_of_it_lives) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic}) {
    auto memory = make({.policy = policy});
    const auto stream = new_stream();
    const auto other = new_stream();
    memory.deallocate(memory.allocate(2_MiB, other), other);
    auto own = memory.begin_capture(stream).value();
    begin(stream);
    void* const lives = memory.allocate(4_MiB, stream);
    memory.deallocate(memory.allocate(1200_MiB, stream), stream);
    destroy(end(stream));
    own = {};
    void* const served = memory.try_allocate(1_GiB, other).value_or(nullptr);
    EXPECT_NE(served, nullptr) << to_string(policy);
    for (void* const each : {lives, served}) memory.deallocate(each);
  }
}

TEST_F(graph_memory_test, a_graph_that_is_gone_is_noticed_by_the_next_request) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  memory.deallocate(memory.allocate(8_MiB, stream), stream);
  const auto graph = end(stream);
  ASSERT_TRUE(own.tie_to_graph(graph));
  own = {};
  destroy(graph);
  ASSERT_EQ(memory.snapshot().pools.size(), 2u);
  void* const p = memory.allocate(4_MiB, stream);  // a miss, which looks what became of it
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(memory.stats().reserved.current, 4_MiB);
  memory.deallocate(p, stream);
}

/// Every graph that it is tied to holds a pool, and every claim's pool handle.
TEST_F(graph_memory_test, a_pool_goes_with_its_last_holder) {
  auto memory = make();
  const auto stream = new_stream();
  listener ear;
  auto observation = memory.add_observer(ear).value();
  const auto released = [&] { return ear.count(memory_event_kind::pool_released); };
  auto own = memory.begin_capture(stream).value();
  static_cast<void>(own.pool());  // a handle that comes and goes
  begin(stream);
  memory.deallocate(memory.allocate(8_MiB, stream), stream);
  EXPECT_EQ(own.pool().stats().reserved.current, 8_MiB);
  const auto graph = end(stream);
  own.end_capture();
  const auto first = instantiate(graph);
  ASSERT_TRUE(own.tie_to_graph(graph));
  auto pool = own.pool();
  EXPECT_EQ(pool.id(), pool_id{1});
  EXPECT_EQ(pool.name(), "graph");
  own = {};
  destroy(first);
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(released(), 0u);
  destroy(graph);
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(released(), 0u);
  EXPECT_EQ(memory.stats().reserved.current, 8_MiB);
  pool = {};
  EXPECT_EQ(released(), 1u);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  observation.close();
}

TEST_F(graph_memory_test, replays_on_any_stream_keep_the_memory) {
  auto memory = make();
  const auto stream = new_stream();
  const std::array others{new_stream(), new_stream()};
  for (const auto& each : others) memory.deallocate(memory.allocate(1_KiB, each), each);
  for (const auto& each : others) {
    ASSERT_TRUE(memory.empty_cache());
    auto own = memory.begin_capture(stream).value();
    begin(stream);
    void* const p = memory.allocate(8_MiB, stream);
    write(stream, p, 8_MiB);
    memory.deallocate(p, stream);
    const auto graph = end(stream);
    const auto replay = instantiate(graph);
    auto held = hold(each);
    launch(replay, each);
    destroy(replay);
    destroy(graph);
    own = {};  // the stream that freed it is idle, but the replay is under way elsewhere
    ASSERT_TRUE(memory.trim());
    EXPECT_EQ(memory.stats().reserved.current, 8_MiB);
    held.release();
    machine->run_until_idle();
    EXPECT_EQ(memory.trim().value(), 8_MiB);
    EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  }
}

TEST_F(graph_memory_test, of_a_pool_whose_blocks_left_the_capture_the_rest_goes) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  void* const stays = memory.allocate(16_MiB, stream);
  memory.deallocate(memory.allocate(12_MiB, stream), stream);
  destroy(end(stream));
  own = {};
  EXPECT_EQ(memory.trim().value(), 12_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 16_MiB);
  memory.deallocate(stays, stream);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

/// A captured stream cannot be asked for its id, and references of per-thread streams have none.
TEST_F(graph_memory_test, a_per_thread_stream_can_be_captured_without_thread_caches) {
  for (const auto& options :
       {allocator_options{.thread_cache = 0_B},
        allocator_options{.policy = placement_policy::classic}, allocator_options{}}) {
    auto memory = make(options);
    const context_scope bound{gpu()};
    const stream_ref stream = stream_ref::per_thread(gpu());
    auto own = memory.begin_capture(stream).value();
    ASSERT_EQ(machine->driver().stream_begin_capture(stream.handle(),
                                                     driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
              driver::CUDA_SUCCESS);
    const auto block = memory.try_allocate(1_MiB, stream);
    EXPECT_TRUE(block) << block.error().message();
    if (block) {
      EXPECT_EQ(own.pool().stats().blocks.current, 1u);
      EXPECT_TRUE(memory.try_deallocate(*block, stream));
    }
    driver::CUgraph graph = nullptr;
    EXPECT_EQ(machine->driver().stream_end_capture(stream.handle(), &graph), driver::CUDA_SUCCESS);
    EXPECT_EQ(machine->driver().graph_destroy(graph), driver::CUDA_SUCCESS);
  }
}

TEST_F(graph_memory_test, two_captures_at_a_time_have_two_pools) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto branch = new_stream();
  auto first = memory.begin_capture(one).value();
  auto second = memory.begin_capture(two).value();
  EXPECT_NE(first.pool().id(), second.pool().id());
  begin(one, driver::CU_STREAM_CAPTURE_MODE_RELAXED);
  begin(two, driver::CU_STREAM_CAPTURE_MODE_RELAXED);
  const auto pool_of = [&](const stream& on) {
    void* const p = memory.allocate(1_MiB, on);
    const auto pool = memory.block_at(p).value().pool;
    memory.deallocate(p, on);
    return pool;
  };
  EXPECT_EQ(pool_of(two), second.pool().id());
  EXPECT_EQ(pool_of(one), first.pool().id());
  // A stream that the second took in.
  auto fork = event::create(gpu()).value();
  auto join = event::create(gpu()).value();
  ASSERT_TRUE(fork.record(two));
  ASSERT_TRUE(branch.wait(fork));
  EXPECT_EQ(pool_of(branch), second.pool().id());
  ASSERT_TRUE(join.record(branch));
  ASSERT_TRUE(two.wait(join));
  EXPECT_EQ(code_of(memory.begin_capture(two)), errc::invalid_argument);
  destroy(end(one));
  first.end_capture();
  EXPECT_EQ(pool_of(one), pool_id{}) << "its capture is over";
  EXPECT_EQ(pool_of(two), second.pool().id());
  destroy(end(two));
  second.end_capture();
  EXPECT_EQ(pool_of(two), pool_id{});
  memory.deallocate(memory.allocate(64_KiB, one), one);
  const auto hits = memory.stats().hits;
  memory.deallocate(memory.allocate(64_KiB, one), one);
  EXPECT_EQ(memory.stats().hits, hits + 1) << "nobody asks for captures any more";
}

TEST_F(graph_memory_test, an_undeclared_capture_has_one_pool) {
  auto memory = make({.detect_captures = true});
  const auto stream = new_stream();
  begin(stream);
  void* const a = memory.allocate(1_MiB, stream);
  void* const b = memory.allocate(1_MiB, stream);
  const auto pool = memory.block_at(a).value().pool;
  EXPECT_NE(pool, pool_id{});
  EXPECT_EQ(memory.block_at(b).value().pool, pool);
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(a, stream);
  memory.deallocate(b, stream);
  const auto graph = end(stream);
  begin(stream);
  void* const c = memory.allocate(1_MiB, stream);
  EXPECT_NE(memory.block_at(c).value().pool, pool) << "another capture";
  memory.deallocate(c, stream);
  destroy(end(stream));
  destroy(graph);
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

/// A capture that failed: its stream takes no work until it is ended.
TEST_F(graph_memory_test, a_broken_capture_is_served_as_if_there_were_none) {
  auto memory = make({.detect_captures = true});
  const auto stream = new_stream();
  const auto branch = new_stream();
  begin(stream);
  auto fork = event::create(gpu()).value();
  ASSERT_TRUE(fork.record(stream));
  ASSERT_TRUE(branch.wait(fork));
  driver::CUgraph graph = nullptr;
  const context_scope bound{gpu()};
  EXPECT_NE(cuda().stream_end_capture(branch.handle(), &graph), driver::CUDA_SUCCESS);
  if (stream.ref().capture().value().status == capture_status::invalidated) {
    void* const p = memory.allocate(1_MiB, stream);
    EXPECT_EQ(memory.block_at(p).value().pool, pool_id{});
    memory.deallocate(p, stream);
  } else {
    ADD_FAILURE() << "not broken";
  }
  static_cast<void>(cuda().stream_end_capture(stream.handle(), &graph));
}

/// Ties need calls that old drivers do not have.
TEST_F(graph_memory_test, without_user_objects_nothing_is_tied_to_graphs) {
  for (const int missing : {0, 1, 2}) {
    driver::table table = machine->driver();
    if (missing == 0) table.user_object_create = nullptr;
    if (missing == 1) table.graph_retain_user_object = nullptr;
    if (missing == 2) table.user_object_release = nullptr;
    const auto old = runtime::open_table(table, "old", machine).value();
    const auto device = old->device(device_id{0}).value();
    auto memory = caching_allocator::create(device).value();
    const auto stream = stream::create(device).value();
    auto own = memory.begin_capture(stream).value();
    begin(stream);
    memory.deallocate(memory.allocate(1_MiB, stream), stream);
    const auto graph = end(stream);
    own.end_capture();
    EXPECT_EQ(code_of(own.tie_to_graph(graph)), errc::not_supported);
    destroy(graph);
    own = {};
    // A capture that nobody declared cannot be served at all.
    begin(stream);
    EXPECT_EQ(code_of(memory.try_allocate(64_MiB, stream)), errc::not_supported);
    destroy(end(stream));
    EXPECT_EQ(memory.snapshot().pools.size(), 1u);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(graph_memory_test, a_tie_that_the_driver_refuses_is_none) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  memory.deallocate(memory.allocate(8_MiB, stream), stream);
  const auto graph = end(stream);
  own.end_capture();
  const auto refusal_of = [&](driver::call call) {
    machine->fail(call, 1, driver::CUDA_ERROR_UNKNOWN);
    const auto kept = own.tie_to_graph(graph);
    return kept ? std::string{} : std::string{kept.error().call()};
  };
  EXPECT_EQ(refusal_of(driver::call::graph_retain_user_object), "cuGraphRetainUserObject");
  EXPECT_EQ(refusal_of(driver::call::user_object_create), "cuUserObjectCreate");
  own = {};
  EXPECT_EQ(memory.stats().reserved.current, 0_B) << "nobody holds it";
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  destroy(graph);
  begin(stream);
  machine->fail(driver::call::graph_retain_user_object, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(memory.try_allocate(64_MiB, stream));
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  destroy(end(stream));
  EXPECT_EQ(check(memory), "");
}

/// The claim goes while callbacks run for a request that its pool serves.
TEST_F(graph_memory_test, a_pool_outlives_the_callbacks_of_its_request) {
  auto memory = make({.limit = 64_MiB});
  const auto stream = new_stream();
  const auto other = new_stream();
  void* held = memory.allocate(60_MiB, other);
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  const auto registration = memory
                                .on_out_of_memory([&](bytes) {
                                  own = {};
                                  if (held != nullptr)
                                    memory.deallocate(std::exchange(held, nullptr), other);
                                  return true;
                                })
                                .value();
  EXPECT_EQ(code_of(memory.try_allocate(16_MiB, stream)), errc::invalid_argument);
  destroy(end(stream));
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(graph_memory_test, a_claim_says_what_became_of_its_allocator) {
  const auto stream = new_stream();
  auto memory = make();
  auto own = memory.begin_capture(stream).value();
  EXPECT_TRUE(own);
  auto moved = std::move(own);
  EXPECT_FALSE(own);
  const auto graph = reinterpret_cast<driver::CUgraph>(&memory);  // looked at by nobody
  EXPECT_EQ(code_of(own.tie_to_graph(graph)), errc::moved_from);
  EXPECT_THROW(static_cast<void>(own.pool()), failure);
  own.end_capture();
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(moved.tie_to_graph(graph)), errc::closed);
  EXPECT_FALSE(moved.pool());
  moved.end_capture();
  memory = make();
  EXPECT_EQ(code_of(moved.tie_to_graph(graph)), errc::closed) << "it is gone";
  EXPECT_FALSE(moved.pool());
  EXPECT_EQ(code_of(memory.begin_capture(stream_ref::per_thread(gpu(1)))), errc::bad_stream);
}

TEST_F(graph_memory_test, a_stream_that_cannot_be_asked_who_it_is_cannot_be_declared) {
  auto memory = make();
  const context_scope bound{gpu()};
  driver::CUstream made = nullptr;
  ASSERT_EQ(driver::CUDA_SUCCESS,
            cuda().stream_create_with_priority(&made, driver::CU_STREAM_NON_BLOCKING, 0));
  const stream_ref bare{gpu(), made};
  ASSERT_EQ(cuda().stream_begin_capture(made, driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  const auto refused = memory.begin_capture(bare);
  EXPECT_EQ(code_of(refused), errc::capture_forbidden);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(cuda().stream_end_capture(made, &graph), driver::CUDA_SUCCESS);
  destroy(graph);
  EXPECT_TRUE(memory.begin_capture(bare));
  ASSERT_EQ(cuda().stream_destroy(made), driver::CUDA_SUCCESS);
}

TEST_F(graph_memory_test, notices_are_counted) {
  auto memory = make();
  const auto stream = new_stream();
  void* const p = memory.allocate(8_MiB, stream);
  write(stream, p, 8_MiB);
  memory.deallocate(p, stream);
  machine->run_until_idle();
  auto one = memory.guard_captures().value();
  auto two = memory.guard_captures().value();
  const auto is_quiet = [&] { return memory.trim().value() == 0_B; };
  EXPECT_TRUE(is_quiet());
  two = std::move(one);  // one of the two is over
  EXPECT_TRUE(is_quiet());
  {
    const auto last = std::move(two);
    EXPECT_TRUE(is_quiet());
  }
  EXPECT_FALSE(is_quiet());
}

TEST_F(graph_memory_test, a_pool_that_is_named_serves_captures_and_that_of_a_scope_does_not) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("named").value();
  begin(stream);
  void* const named = pool.allocate(64_MiB, stream);
  EXPECT_EQ(memory.block_at(named).value().pool, pool.id());
  EXPECT_EQ(memory.snapshot().pools.size(), 2u) << "no pool was made for the capture";
  const pool_scope scope{pool};
  void* const scoped = memory.allocate(128_MiB, stream);
  EXPECT_NE(memory.block_at(scoped).value().pool, pool.id());
  EXPECT_EQ(memory.snapshot().pools.size(), 3u);
  memory.deallocate(named, stream);
  memory.deallocate(scoped, stream);
  destroy(end(stream));
}

TEST_F(graph_memory_test, an_undeclared_capture_is_noticed_by_a_miss) {
  auto memory = make();
  const auto stream = new_stream();
  void* const outside = memory.allocate(1_MiB, stream);
  begin(stream);
  void* const a = memory.allocate(64_MiB, stream);
  write(stream, a, 64_MiB);
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(a, stream);
  const auto graph = end(stream);
  const auto replay = instantiate(graph);
  destroy(graph);
  launch(replay, stream);
  machine->run_until_idle();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_GE(memory.stats().reserved.current, 64_MiB);
  destroy(replay);
  memory.deallocate(outside, stream);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(graph_memory_test, every_request_asks_where_detection_is_on) {
  allocator_options settings;
  settings.detect_captures = true;
  auto memory = make(settings);
  const auto stream = new_stream();
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  begin(stream);
  void* const a = memory.allocate(64_KiB, stream);
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(a, stream);
  const auto graph = end(stream);
  void* const b = memory.allocate(64_KiB, stream);
  EXPECT_NE(a, b);
  memory.deallocate(b, stream);
  destroy(graph);
}

TEST_F(graph_memory_test, no_call_ends_a_capture) {
  for (const auto mode :
       {driver::CU_STREAM_CAPTURE_MODE_GLOBAL, driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        driver::CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (const auto policy : {placement_policy::balanced, placement_policy::classic,
                              placement_policy::classic_expandable}) {
      allocator_options settings;
      settings.policy = policy;
      settings.limit = 512_MiB;
      auto memory = make(settings);
      const auto stream = new_stream();
      const auto other = new_stream();
      auto own = memory.begin_capture(stream).value();
      void* const shared = memory.allocate(1_MiB, other);
      ASSERT_TRUE(memory.record_stream(shared, stream));
      begin(stream, mode);
      void* const a = memory.allocate(1_MiB, stream);
      write(stream, a, 1_MiB);
      std::vector<void*> all;
      for (int i = 0; i < 4; ++i) {
        all.push_back(memory.allocate(50_MiB, other));
        write(other, all.back(), 50_MiB);
      }
      for (void* const p : all) memory.deallocate(p, other);
      memory.deallocate(shared, other);
      void* const large = memory.allocate(100_MiB, stream);
      write(stream, large, 100_MiB);
      memory.deallocate(large, stream);
      EXPECT_EQ(code_of(memory.try_allocate(1_GiB, other)), errc::out_of_memory);
      EXPECT_EQ(code_of(memory.try_allocate(1_GiB, stream)), errc::out_of_memory);
      static_cast<void>(memory.stats());
      static_cast<void>(memory.snapshot());
      static_cast<void>(memory.explain(1_GiB, stream));
      ASSERT_TRUE(memory.trim());
      ASSERT_TRUE(memory.empty_cache());
      ASSERT_TRUE(memory.release_stream(stream));
      ASSERT_TRUE(memory.release_stream(other));
      memory.deallocate(a, stream);
      const auto status = stream.ref().capture().value();
      EXPECT_EQ(status.status, capture_status::active);
      const auto graph = end(stream);
      own.end_capture();
      machine->run_until_idle();
      destroy(graph);
      EXPECT_EQ(check(memory), "");
    }
  }
}

TEST_F(graph_memory_test, blocks_that_leave_the_capture_keep_its_memory) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  void* const a = memory.allocate(16_MiB, stream);
  write(stream, a, 16_MiB);
  const auto graph = end(stream);
  destroy(graph);
  own = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().blocks.current, 1u);
  EXPECT_GE(memory.stats().reserved.current, 16_MiB);
  memory.deallocate(a, stream);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

/// A driver where somebody begins to capture a stream in the moment before an event is recorded on
/// it, and ends the capture at once or later.
class capture_race_test : public graph_test {
 protected:
  capture_race_test() {
    beneath = machine->driver();
    driver::table racing = beneath;
    racing.event_record = [](driver::CUevent event, driver::CUstream on) {
      if (on != seized) return beneath.event_record(event, on);
      seized = nullptr;
      EXPECT_EQ(beneath.stream_begin_capture(on, driver::CU_STREAM_CAPTURE_MODE_RELAXED),
                driver::CUDA_SUCCESS);
      const auto answer = beneath.event_record(event, on);
      driver::CUgraph graph = nullptr;
      if (ends_at_once) {
        EXPECT_EQ(beneath.stream_end_capture(on, &graph), driver::CUDA_SUCCESS);
        EXPECT_EQ(beneath.graph_destroy(graph), driver::CUDA_SUCCESS);
      }
      return answer;
    };
    runtime_ = runtime::open_table(racing, "racing", machine).value();
  }
  static inline driver::table beneath{};
  static inline driver::CUstream seized = nullptr;
  static inline bool ends_at_once = false;
};

TEST_F(capture_race_test, an_event_that_went_into_a_capture_is_not_used) {
  for (const bool at_once : {false, true}) {
    SCOPED_TRACE(at_once);
    auto memory = make({.limit = 16_MiB});
    const auto one = new_stream();
    const auto two = new_stream();
    void* const p = memory.allocate(16_MiB, one);
    write(one, p, 16_MiB);
    memory.deallocate(p, one);
    ends_at_once = at_once;
    seized = one.handle();
    const auto during = memory.try_allocate(16_MiB, two);
    EXPECT_EQ(seized, nullptr) << "no event was recorded";
    if (at_once) {
      ASSERT_TRUE(during) << "another event could be recorded";
      memory.deallocate(*during, two);
    } else {
      EXPECT_EQ(code_of(during), errc::out_of_memory);
    }
    EXPECT_FALSE(stream_ref{two}.is_capturing().value());
    if (!at_once) destroy(end(one));
    void* const q = memory.allocate(16_MiB, two);
    write(two, q, 16_MiB);
    memory.deallocate(q, two);
    machine->run_until_idle();
    EXPECT_EQ(check(memory), "");
  }
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: private pools, and memory of captured graphs.
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "allocator_contract/players.hpp"

namespace weir::testing_support { namespace {

class pools_and_graphs : public allocator_test {
 protected:
  /// What the driver tells late it may tell in a second: a graph's end comes from a thread of its
  /// own.
  [[nodiscard]] bool reserved_falls_to(bytes expected) {
    for (int i = 0; i < 500; ++i) {
      EXPECT_TRUE(memory().empty_cache());
      if (memory().stats().reserved.current <= expected) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    return false;
  }
};
WEIR_ALLOCATOR_CONTRACT(pools_and_graphs);

TEST_P(pools_and_graphs, a_pools_memory_is_its_own) {
  lane& on = new_lane();
  const auto pool = memory().create_pool("contract").value();
  EXPECT_EQ(pool.name(), "contract");
  const filled_block inside{pool.allocate(8_MiB, on), 8_MiB, new_value()};
  on.fill(inside.memory, inside.size, inside.value);
  EXPECT_EQ(pool.stats().requested.current, 8_MiB);
  const bytes reserved = pool.stats().reserved.current;
  finish(inside, on);
  EXPECT_EQ(pool.stats().reserved.current, reserved);

  std::set<void*> outside;
  std::vector<filled_block> live;
  for (int i = 0; i < 3; ++i) {
    live.push_back(make(8_MiB, on));
    outside.insert(live.back().memory);
  }
  EXPECT_FALSE(outside.contains(inside.memory));
  expect_books();
  expect_snapshot();
  {
    const pool_scope scope{pool};
    live.push_back(make(8_MiB, on));
  }
  EXPECT_EQ(live.back().memory, inside.memory);
  EXPECT_EQ(pool.stats().reserved.current, reserved);
  for (const auto& each : live) finish(each, on);
  expect_books();
}

TEST_P(pools_and_graphs, a_pool_goes_with_its_last_block) {
  lane& on = new_lane();
  filled_block block;
  {
    const auto pool = memory().create_pool("brief").value();
    block = {pool.allocate(32_MiB, on), 32_MiB, new_value()};
    on.fill(block.memory, block.size, block.value);
  }
  EXPECT_TRUE(memory().empty_cache());
  EXPECT_GE(memory().stats().reserved.current, 32_MiB);
  finish(block, on);
  EXPECT_TRUE(reserved_falls_to(0_B));
  EXPECT_EQ(memory().snapshot().pools.size(), 1U);
}

TEST_P(pools_and_graphs, a_graphs_memory_stays_the_graphs) {
  WEIR_NEEDS(graph_instantiate);
  WEIR_NEEDS(user_object_create);
  lane& captured = new_lane();
  lane& beside = new_lane();
  finish(make(2_MiB, captured), captured);
  finish(make(2_MiB, beside), beside);
  EXPECT_TRUE(memory().empty_cache());
  WEIR_OK(cu->ctx_synchronize());

  auto claim = memory().begin_capture(captured).value();
  WEIR_OK(cu->stream_begin_capture(captured.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  const filled_block lasting = make(4_MiB, captured);
  for (const bytes size : {4_KiB, 700_KiB, 2_MiB, 6_MiB}) {
    const filled_block passing = make(size, captured);
    // Requests of other streams go on during the capture, and do not break it.
    const filled_block other = make(size, beside);
    WEIR_OK(spin(std::chrono::microseconds{50}, captured.handle()));
    finish(passing, captured);  // in the graph: filled, time passes, checked
    finish(other, beside);
  }
  expect_books();
  CUgraph graph = nullptr;
  WEIR_OK(cu->stream_end_capture(captured.handle(), &graph));
  claim.end_capture();
  EXPECT_TRUE(claim.tie_to_graph(graph));
  EXPECT_GT(claim.pool().stats().reserved.current, 0_B);
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_instantiate(&exec, graph, 0));
  claim = {};  // the graph holds it now

  // While the graph is replayed, two threads write all the memory they can get.
  busy_neighbours others{*this};
  for (int replay = 0; replay < 20; ++replay) {
    EXPECT_EQ(CUDA_SUCCESS, cu->graph_launch(exec, captured.handle()));
    captured.check(lasting.memory, lasting.size, lasting.value);
    EXPECT_TRUE(memory().trim());
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  others.stop();
  expect_books();
  expect_snapshot();
  EXPECT_EQ(captured.mismatches(), 0U);

  EXPECT_TRUE(memory().empty_cache());
  EXPECT_GT(memory().stats().reserved.current, 4_MiB) << "a graph keeps what it freed";
  WEIR_OK(cu->graph_destroy(graph));
  WEIR_OK(cu->graph_exec_destroy(exec));
  finish(lasting, captured);
  EXPECT_TRUE(reserved_falls_to(0_B)) << "memory comes back when the graph is gone";
  expect_books();
}

TEST_P(pools_and_graphs, a_capture_that_nobody_declared_is_noticed) {
  WEIR_NEEDS(graph_instantiate);
  WEIR_NEEDS(user_object_create);
  reopen({.detect_captures = true});
  lane& captured = new_lane();
  lane& beside = new_lane();
  finish(make(2_MiB, captured), captured);
  WEIR_OK(cu->ctx_synchronize());
  WEIR_OK(cu->stream_begin_capture(captured.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  finish(make(2_MiB, captured), captured);
  CUgraph graph = nullptr;
  WEIR_OK(cu->stream_end_capture(captured.handle(), &graph));
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_instantiate(&exec, graph, 0));
  for (int replay = 0; replay < 5; ++replay) {
    WEIR_OK(cu->graph_launch(exec, captured.handle()));
    for (int i = 0; i < 4; ++i) finish(make(2_MiB, beside), beside);
  }
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_TRUE(memory().empty_cache());
  EXPECT_GT(memory().stats().reserved.current, 0_B);
  WEIR_OK(cu->graph_exec_destroy(exec));
  WEIR_OK(cu->graph_destroy(graph));
  EXPECT_TRUE(reserved_falls_to(0_B));
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: memory that is suspended and comes back.
#include "allocator_contract/effort.hpp"
#include "allocator_contract/players.hpp"

namespace weir::testing_support { namespace {

class suspending : public allocator_test {
 protected:
  const bytes large = machine_effort().largest_block;

  [[nodiscard]] filled_block make_with(tag of, bytes size, const lane& on) {
    const tag_scope scope{of};
    return make(size, on);
  }
};
WEIR_ALLOCATOR_CONTRACT(suspending);

TEST_P(suspending, contents_come_back_to_their_addresses) {
  const tag weights = tag::named("contract weights").value();
  lane& on = new_lane();
  lane& beside = new_lane();
  ASSERT_TRUE(memory().declare_suspendable(weights));
  std::vector<filled_block> blocks;
  for (const bytes size : {512_B, 100_KiB, 3_MiB, large, 1_MiB})
    blocks.push_back(make_with(weights, size, size == 3_MiB ? beside : on));
  const filled_block other = make(4_MiB, on);
  // The first time the driver takes memory of its own, for the streams that copy.
  ASSERT_TRUE(memory().suspend(weights));
  ASSERT_TRUE(memory().resume(weights));
  for (const auto to : {host_memory_kind::pinned, host_memory_kind::pageable}) {
    const bytes before = device_free();
    const auto outcome = memory().suspend(weights, {.to = to, .chunk = 5_MiB}).value();
    EXPECT_GE(outcome.saved, large + 4_MiB);
    EXPECT_EQ(memory().stats().suspended, outcome.released);
    EXPECT_EQ(device_free(), before + outcome.released) << "when the call has returned";
    EXPECT_EQ(memory().size_of(blocks[1].memory).value(), 100_KiB);
    EXPECT_EQ(memory().resume(weights).value().restored, outcome.saved);
    EXPECT_EQ(device_free(), before);
    for (const auto& each : blocks) on.check(each.memory, each.size, each.value);
    on.check(other.memory, other.size, other.value);
    expect_books();
    expect_snapshot();
  }
  WEIR_OK(cu->ctx_synchronize());
  for (const auto& each : blocks) finish(each, on);
  finish(other, on);
}

TEST_P(suspending, a_block_that_is_freed_meanwhile_stays_away) {
  const tag weights = tag::named("contract weights").value();
  lane& on = new_lane();
  ASSERT_TRUE(memory().declare_suspendable(weights));
  const filled_block kept = make_with(weights, 8_MiB, on);
  const filled_block freed = make_with(weights, 8_MiB, on);
  ASSERT_TRUE(memory().suspend(weights));
  memory().deallocate(freed.memory, on);
  EXPECT_EQ(memory().resume(weights).value(), (resume_outcome{8_MiB, 8_MiB}));
  finish(kept, on);
  finish(make_with(weights, 8_MiB, on), on);
}

TEST_P(suspending, everything_goes_and_graphs_replay_as_before) {
  if (is_classic()) GTEST_SKIP() << "segments stay";
  WEIR_NEEDS(graph_instantiate);
  WEIR_NEEDS(user_object_create);
  lane& on = new_lane();
  const filled_block plain = make(6_MiB, on);
  auto claim = memory().begin_capture(on).value();
  WEIR_OK(cu->stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  const filled_block inside = make(2_MiB, on);
  CUgraph graph = nullptr;
  WEIR_OK(cu->stream_end_capture(on.handle(), &graph));
  claim.end_capture();
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_instantiate(&exec, graph, 0));
  ASSERT_TRUE(memory().suspend());
  EXPECT_EQ(memory().stats().reserved.current, 0_B);
  EXPECT_EQ(code_of(memory().try_allocate(1_MiB, on)), errc::suspended);
  ASSERT_TRUE(memory().resume());
  WEIR_OK(cu->graph_launch(exec, on.handle()));
  on.check(inside.memory, inside.size, inside.value);
  finish(plain, on);
  memory().deallocate(inside.memory, on);
  WEIR_OK(cu->ctx_synchronize());
  WEIR_OK(cu->graph_exec_destroy(exec));
  WEIR_OK(cu->graph_destroy(graph));
}

TEST_P(suspending, what_is_evicted_comes_back) {
  const tag stash = tag::named("contract stash").value();
  lane& on = new_lane();
  reopen({.limit = 64_MiB});
  ASSERT_TRUE(memory().declare_suspendable(stash, {.evictable = true}));
  const filled_block away = make_with(stash, 32_MiB, on);
  const filled_block rival = make(50_MiB, on);
  EXPECT_TRUE(memory().is_suspended(stash));
  finish(rival, on);
  ASSERT_TRUE(memory().empty_cache());
  ASSERT_TRUE(memory().resume(stash));
  finish(away, on);
}

}  // namespace
}  // namespace weir::testing_support

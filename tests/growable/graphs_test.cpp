// SPDX-License-Identifier: Apache-2.0
// Pages that captured graphs use.
#include "growable/growable_fixture.hpp"

namespace weir::testing_support { namespace {

class growing_graphs : public growable_test {
 protected:
  /// A graph of one kernel that writes the first page.
  [[nodiscard]] driver::CUgraph capture(const growable_memory& memory, const stream& on) {
    begin(on);
    use(on, memory, 0_B, 4_MiB);
    return end(on);
  }
};

TEST_F(growing_graphs, keep_decommitted_pages_that_they_are_tied_to) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 8_MiB, on));
  const driver::CUgraph graph = capture(cache, on);
  ASSERT_TRUE(cache.tie_to_graph(graph));
  const driver::CUgraphExec replays = instantiate(graph);
  destroy(graph);
  ASSERT_TRUE(cache.decommit(0_B, 8_MiB, on));
  EXPECT_EQ(cache.stats().held, 8_MiB);
  EXPECT_EQ(cache.stats().committed, 0_B);
  EXPECT_EQ(memory.stats().allocated.current, 8_MiB);
  void* const other = memory.allocate(8_MiB, on);
  launch(replays, on);
  write(on, other, 8_MiB);
  machine->run_until_idle();
  destroy(replays);
  ASSERT_TRUE(cache.trim());  // notices it
  EXPECT_EQ(cache.stats().held, 0_B);
  EXPECT_EQ(memory.stats().allocated.current, 8_MiB);
  memory.deallocate(other, on);
}

TEST_F(growing_graphs, give_pages_to_nobody_before_the_last_replay_is_done) {
  const auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, one));
  const driver::CUgraph graph = capture(cache, one);
  auto kept = cache.hold().value();
  const driver::CUgraphExec replays = instantiate(graph);
  ASSERT_TRUE(cache.decommit(0_B, 4_MiB, one));
  launch(replays, two);  // on a stream that nobody declared
  kept.close();
  kept.close();
  EXPECT_EQ(cache.stats().held, 0_B);
  ASSERT_TRUE(memory.set_limit(4_MiB));
  void* const p = memory.allocate(4_MiB, one);
  write(one, p, 4_MiB);
  machine->run_until_idle();
  memory.deallocate(p, one);
  destroy(replays);
  destroy(graph);
}

TEST_F(growing_graphs, let_a_held_page_be_committed_again_where_it_is) {
  const auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, one));
  use(one, cache, 0_B, 4_MiB);
  const auto kept = cache.hold().value();
  ASSERT_TRUE(cache.decommit(0_B, 4_MiB, one));
  const auto calls = memory_calls();
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, two));  // waits for the first stream
  EXPECT_EQ(memory_calls(), calls);
  EXPECT_EQ(cache.stats().committed, 4_MiB);
  EXPECT_EQ(cache.stats().held, 0_B);
  use(two, cache, 0_B, 4_MiB);
  ASSERT_TRUE(cache.decommit(0_B, 4_MiB, two));
  EXPECT_EQ(cache.stats().held, 4_MiB);
  machine->run_until_idle();
}

TEST_F(growing_graphs, stay_valid_beside_commits_on_other_streams) {
  const auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, one));
  begin(one);
  use(one, cache, 0_B, 4_MiB);
  ASSERT_TRUE(cache.commit(4_MiB, 8_MiB, two));
  use(two, cache, 4_MiB, 8_MiB);
  ASSERT_TRUE(cache.decommit(4_MiB, 8_MiB, two));
  ASSERT_TRUE(cache.commit(4_MiB, 8_MiB, two));
  const driver::CUgraph graph = end(one);
  destroy(graph);
  machine->run_until_idle();
}

TEST_F(growing_graphs, end_before_the_memory_does) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, on));
  auto kept = cache.hold().value();
  EXPECT_EQ(code_of(cache.close()), errc::not_ready);
  EXPECT_TRUE(cache.is_committed(0_B, 4_MiB));
  kept = {};
  EXPECT_TRUE(cache.close());
}

TEST_F(growing_graphs, are_declared_before_a_commit_could_become_part_of_them) {
  const auto memory = make();
  const auto on = new_stream();
  const auto cache = reserve_from(memory, 64_MiB);
  auto declared = memory.begin_capture(on).value();
  begin(on);
  EXPECT_EQ(code_of(cache.commit(0_B, 4_MiB, on)), errc::capture_forbidden);
  destroy(end(on));
  declared.end_capture();
  ASSERT_TRUE(cache.commit(0_B, 4_MiB, on));
  EXPECT_EQ(code_of(cache.tie_to_graph(nullptr)), errc::invalid_argument);
}

}}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Captures over a bare core: declared ones, found ones, and graphs that keep a pool.
#include "heap/capture_pools.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "heap/bare_core.hpp"
#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using heap::graph_claim;
using heap::pool_state;
using heap::stream_slot;

/// Knows a stream by the number that it has. No block waits for streams.
class captures_host final : public heap::capture_pools_host, public heap::stream_progress_host {
 public:
  result<heap::identified_stream> identify(const stream_ref& stream) override {
    if (refusal) return *refusal;
    return heap::identified_stream{stream, can_be_asked ? stream.known_id() : stream_id{}};
  }
  void free_waited(heap::block_index, heap::stamp) noexcept override { ADD_FAILURE(); }

  std::optional<errc> refusal;
  bool can_be_asked = true;
};

class capture_pools_test : public graph_test {
 protected:
  capture_pools_test() {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.observer = &told;
  }
  [[nodiscard]] pool_state* pool_of(const graph_claim& claim) {
    const detail::mutex_lock lock{core.mutex_};
    return core.find_pool(claim.pool);
  }
  [[nodiscard]] std::size_t pools() {
    const detail::mutex_lock lock{core.mutex_};
    return core.pools_.size();
  }
  /// The pool that the stream's requests go to.
  [[nodiscard]] result<pool_state*> find_pool(const stream& of) {
    order::driver_access driver{gpu()};
    const detail::mutex_lock lock{core.mutex_};
    return part.find_pool(of, core.order_.meet(of, of.id()), driver);
  }
  [[nodiscard]] result<bool> wait_for_graphs(heap::wait_bound& bound) {
    order::driver_access driver{gpu()};
    const detail::mutex_lock lock{core.mutex_};
    return part.wait_for_graphs(*core.pools_.front(), bound, driver);
  }
  /// Waits for all work: each frees a little plain memory.
  [[nodiscard]] std::uint64_t waits() const { return machine->calls(call::mem_free); }
  bool notice_ended() {
    const detail::mutex_lock lock{core.mutex_};
    return core.notice_ended_graphs();
  }
  [[nodiscard]] bool is_paused() {
    const detail::mutex_lock lock{core.mutex_};
    return core.order_.paused();
  }
  [[nodiscard]] driver::CUgraph make_graph() {
    const stream other = new_stream();
    begin(other);
    return end(other);
  }

  listener told;
  bare_core core{gpu(), {}};
  captures_host host;
  heap::stream_progress progress{core, host};
  heap::capture_pools part{core, progress, host};
  const stream on = new_stream();
};

TEST_F(capture_pools_test, a_declared_capture_has_a_pool_that_serves_until_it_ends) {
  heap::thread_cache* const cache = [&] {
    const detail::mutex_lock lock{core.mutex_};
    return core.caches_.open();
  }();
  ASSERT_NE(cache, nullptr);
  EXPECT_FALSE(cache->asks_captures());
  const auto claim = part.begin(on).value();
  EXPECT_EQ(claim->stream, on.id());
  EXPECT_TRUE(cache->asks_captures());
  const pool_state& pool = *pool_of(*claim);
  EXPECT_TRUE(pool.of_capture && pool.takes_requests);
  EXPECT_EQ(pool.holders, 1u) << "the claim";
  EXPECT_EQ(code_of(part.begin(on)), errc::invalid_argument);
  EXPECT_EQ(find_pool(on).value()->id, pool_id{}) << "it has not begun";
  begin(on);
  EXPECT_EQ(find_pool(on).value(), &pool);
  destroy(end(on));
  part.end(*claim);
  EXPECT_FALSE(pool.takes_requests);
  EXPECT_EQ(pool.holders, 1u);
  EXPECT_FALSE(cache->asks_captures());
  part.end(*claim);
  EXPECT_EQ(told.count(memory_event_kind::capture_begin), 1u);
  EXPECT_EQ(told.count(memory_event_kind::capture_end), 1u);
  EXPECT_TRUE(part.begin(on)) << "the next one";
}

TEST_F(capture_pools_test, a_stream_is_declared_while_it_can_be_asked) {
  host.can_be_asked = false;
  EXPECT_EQ(code_of(part.begin(on)), errc::capture_forbidden);
  host.refusal = errc::bad_stream;
  EXPECT_EQ(code_of(part.begin(on)), errc::bad_stream);
  EXPECT_EQ(pools(), 1u);
}

TEST_F(capture_pools_test, a_graph_keeps_the_pool_until_it_is_gone) {
  const auto claim = part.begin(on).value();
  EXPECT_EQ(code_of(part.tie_to_graph(*claim, nullptr)), errc::invalid_argument);
  const auto graph = make_graph();
  ASSERT_TRUE(part.tie_to_graph(*claim, graph));
  pool_state& pool = *pool_of(*claim);
  EXPECT_EQ(pool.holders, 2u);
  const auto keeps_memory = [&] {
    const detail::mutex_lock lock{core.mutex_};
    return core.captures_.keeps_memory(pool);
  };
  EXPECT_TRUE(keeps_memory());
  {
    const detail::mutex_lock lock{core.mutex_};
    core.drop_holder(pool);  // as the claim does
  }
  EXPECT_FALSE(keeps_memory()) << "the graph may be gone already";
  EXPECT_FALSE(notice_ended());
  EXPECT_EQ(pool.holders, 1u);
  destroy(graph);
  machine->run_until_idle();
  EXPECT_TRUE(notice_ended());
  EXPECT_EQ(pool.holders, 0u);
  EXPECT_FALSE(notice_ended());
  EXPECT_EQ(told.count(memory_event_kind::pool_released), 1u);
  const graph_claim gone{{}, pool_id{17}, on.id()};
  const auto other = make_graph();
  EXPECT_EQ(code_of(part.tie_to_graph(gone, other)), errc::closed);
  destroy(other);
}

TEST_F(capture_pools_test, a_capture_that_nobody_declared_gets_a_pool_tied_to_its_graph) {
  EXPECT_EQ(find_pool(on).value()->id, pool_id{});
  EXPECT_EQ(pools(), 1u);
  begin(on);
  pool_state* const found = find_pool(on).value();
  EXPECT_TRUE(found->of_capture);
  EXPECT_EQ(found->holders, 1u) << "the graph";
  EXPECT_EQ(find_pool(on).value(), found);
  EXPECT_EQ(pools(), 2u);
  const auto graph = end(on);
  EXPECT_EQ(find_pool(on).value()->id, pool_id{});
  destroy(graph);
  machine->run_until_idle();
  EXPECT_TRUE(notice_ended());
  EXPECT_EQ(found->holders, 0u);
}

TEST_F(capture_pools_test, a_graph_that_cannot_be_tied_leaves_no_pool) {
  begin(on);
  machine->fail(call::user_object_create, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(code_of(find_pool(on)), errc::out_of_memory);
  EXPECT_EQ(pools(), 1u);
  const auto claim = [&] {
    const stream other = new_stream();
    return part.begin(other).value();
  }();
  machine->fail(call::user_object_create, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  const auto graph = end(on);
  EXPECT_EQ(code_of(part.tie_to_graph(*claim, graph)), errc::out_of_memory);
  EXPECT_EQ(pool_of(*claim)->holders, 1u);
  destroy(graph);
}

TEST_F(capture_pools_test, a_search_waits_once_for_graphs_that_hold_pools) {
  heap::wait_bound first;
  EXPECT_FALSE(wait_for_graphs(first).value());
  EXPECT_EQ(waits(), 0u) << "no graph holds any";
  begin(on);
  pool_state* const found = find_pool(on).value();
  const auto graph = end(on);
  EXPECT_FALSE(wait_for_graphs(first).value()) << "the graph is there";
  EXPECT_EQ(waits(), 1u);
  destroy(graph);
  EXPECT_FALSE(wait_for_graphs(first).value()) << "it waited before";
  heap::wait_bound second;
  EXPECT_TRUE(wait_for_graphs(second).value());
  EXPECT_EQ(found->holders, 0u);
  EXPECT_EQ(waits(), 2u);
  begin(on);
  ASSERT_TRUE(find_pool(on));
  heap::wait_bound third;
  machine->fail(call::mem_free, 1, driver::CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(code_of(wait_for_graphs(third)), errc::device_lost);
  destroy(end(on));
}

TEST_F(capture_pools_test, notices_are_counted) {
  part.begin_notice();
  part.begin_notice();
  part.end_notice();
  EXPECT_TRUE(is_paused());
  part.end_notice();
  EXPECT_FALSE(is_paused());
}

TEST_F(capture_pools_test, of_a_closed_heap_nothing_is_captured) {
  const auto claim = part.begin(on).value();
  core.closed_ = true;
  const auto graph = make_graph();
  EXPECT_EQ(code_of(part.begin(on)), errc::closed);
  EXPECT_EQ(code_of(part.tie_to_graph(*claim, graph)), errc::closed);
  part.end(*claim);
  EXPECT_TRUE(pool_of(*claim)->takes_requests);
  part.begin_notice();
  EXPECT_FALSE(is_paused());
  destroy(graph);
}

}}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Graphs: building and launching them, and the races in them.
#include <algorithm>
#include <atomic>

#include "graph_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

class graphs_test : public graph_fixture {};

// --- Building -----------------------------------------------------------------------------------

TEST_F(graphs_test, nodes_and_edges_with_the_count_protocol) {
  const CUgraph graph = empty_graph();
  const CUgraphNode a = empty_node(graph);
  const CUgraphNode b = empty_node(graph, {a});
  EXPECT_THAT(nodes(graph), ElementsAre(a, b));
  EXPECT_THAT(edges(graph), ElementsAre(Pair(a, b)));
  EXPECT_EQ(type_of(a), CU_GRAPH_NODE_TYPE_EMPTY);

  CUgraphNode few[1] = {};
  std::size_t count = 1;
  EXPECT_EQ(cuda.graph_get_nodes(graph, few, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(few[0], a);

  CUgraphNode many[4] = {a, a, a, a};
  count = 4;
  EXPECT_EQ(cuda.graph_get_nodes(graph, many, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_THAT(many, ElementsAre(a, b, nullptr, nullptr));

  CUgraphNode from[2] = {b, b};
  CUgraphNode to[2] = {a, a};
  count = 2;
  EXPECT_EQ(cuda.graph_get_edges(graph, from, to, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1u);
  EXPECT_THAT(from, ElementsAre(a, nullptr));
  EXPECT_THAT(to, ElementsAre(b, nullptr));
}

TEST_F(graphs_test, wrong_arguments) {
  const CUgraph graph = empty_graph();
  const CUgraph other = empty_graph();
  const CUgraphNode strange = empty_node(other);
  CUgraphNode node = nullptr;
  std::size_t count = 0;
  CUgraph made = nullptr;
  EXPECT_EQ(cuda.graph_create(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_create(&made, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_destroy(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_get_nodes(graph, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_get_edges(graph, &node, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_empty_node(&node, graph, &strange, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_empty_node(&node, graph, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  const CUgraphNode a = empty_node(graph);
  const CUgraphNode twice[2] = {a, a};
  EXPECT_EQ(cuda.graph_add_empty_node(&node, graph, twice, 2), CUDA_ERROR_INVALID_VALUE);
  CUgraphNodeType type{};
  EXPECT_EQ(cuda.graph_node_get_type(nullptr, &type), CUDA_ERROR_INVALID_VALUE);

  EXPECT_EQ(cuda.graph_destroy(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_destroy(other), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_node_get_type(strange, &type), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(graphs_test, instantiation_checks_its_flags) {
  const CUgraph graph = empty_graph();
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuda.graph_instantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_instantiate(&exec, graph, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_instantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuda.graph_instantiate(nullptr, graph, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_instantiate(&exec, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_instantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_launch(exec, stream()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_upload(exec, stream()), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(graphs_test, a_graph_being_captured_can_grow_but_not_go) {
  const CUstream s = stream();
  begin(s);
  CUstreamCaptureStatus found{};
  CUgraph graph = nullptr;
  ASSERT_EQ(cuda.stream_get_capture_info(s, &found, nullptr, &graph, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_ERROR_INVALID_VALUE);
  empty_node(graph);
  end(s);
  EXPECT_THAT(nodes(graph), SizeIs(1));
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
}

// --- Launching ----------------------------------------------------------------------------------

TEST_F(graphs_test, each_launch_does_the_work_in_order) {
  const CUstream s = stream();
  std::vector<int> done;
  begin(s);
  for (int i = 0; i < 3; ++i) work(s, {}, [&done, i] { done.push_back(i); });
  const CUgraphExec exec = executable(end(s));
  EXPECT_THAT(done, IsEmpty());
  launch(exec, s);
  launch(exec, s);
  wait_for(s);
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST_F(graphs_test, an_executable_graph_is_a_copy) {
  const CUstream s = stream();
  int done = 0;
  begin(s);
  work(s, {}, [&] { ++done; });
  const CUgraph graph = end(s);
  const CUgraphExec exec = executable(graph);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  launch(exec, s);
  EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);  // the launch still happens
  wait_for(s);
  EXPECT_EQ(done, 1);
}

TEST_F(graphs_test, an_empty_graph_orders_nothing_away) {
  const CUstream s = stream();
  const CUgraphExec exec = executable(empty_graph());
  EXPECT_EQ(cuda.graph_upload(exec, s), CUDA_SUCCESS);
  launch(exec, s);
  wait_for(s);
}

TEST_F(graphs_test, branches_interleave_and_the_join_waits_for_both) {
  std::vector<std::string> orders;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto other = sim::machine::create({.seed = seed}).value();
    const driver::table& calls = other->driver();
    CUcontext current = nullptr;
    calls.init(0);
    calls.device_primary_ctx_retain(&current, 0);
    calls.ctx_set_current(current);
    CUstream a = nullptr;
    CUstream b = nullptr;
    CUevent mark = nullptr;
    calls.stream_create(&a, CU_STREAM_NON_BLOCKING);
    calls.stream_create(&b, CU_STREAM_NON_BLOCKING);
    calls.event_create(&mark, CU_EVENT_DISABLE_TIMING);
    std::string order;
    const auto note = [&](CUstream on, char what) {
      EXPECT_TRUE(other->launch(on, "note", {}, [&order, what] { order += what; }).has_value());
    };
    calls.stream_begin_capture(a, CU_STREAM_CAPTURE_MODE_GLOBAL);
    note(a, '<');
    calls.event_record(mark, a);
    calls.stream_wait_event(b, mark, 0);
    for (int i = 0; i < 3; ++i) {
      note(a, 'a');
      note(b, 'b');
    }
    calls.event_record(mark, b);
    calls.stream_wait_event(a, mark, 0);
    note(a, '>');
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_EQ(calls.stream_end_capture(a, &graph), CUDA_SUCCESS);
    ASSERT_EQ(calls.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
    ASSERT_EQ(calls.graph_launch(exec, a), CUDA_SUCCESS);
    ASSERT_EQ(calls.stream_synchronize(a), CUDA_SUCCESS);
    ASSERT_EQ(order.size(), 8u);
    EXPECT_EQ(order.front(), '<');
    EXPECT_EQ(order.back(), '>');
    orders.push_back(order);
  }
  std::sort(orders.begin(), orders.end());
  const auto different = std::unique(orders.begin(), orders.end()) - orders.begin();
  EXPECT_GT(different, 5);  // of the 20 ways to mix three and three
}

TEST_F(graphs_test, a_launch_comes_after_the_stream_and_before_what_follows) {
  const CUstream s = stream();
  std::string order;
  begin(s);
  work(s, {}, [&] { order += 'g'; });
  const CUgraphExec exec = executable(end(s));
  work(s, {}, [&] { order += '1'; });
  launch(exec, s);
  work(s, {}, [&] { order += '2'; });
  wait_for(s);
  EXPECT_EQ(order, "1g2");
}

TEST_F(graphs_test, launches_of_one_executable_follow_each_other) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUdeviceptr p = memory(4096);
  begin(a);
  work(a, {writes(p, 4096)});
  const CUgraphExec exec = executable(end(a));
  launch(exec, a);
  launch(exec, b);  // ordered behind the first, though nothing joins the streams
  wait_for(b);
  wait_for(a);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graphs_test, legacy_stream_and_launches_order_each_other) {
  const CUstream s = stream(CU_STREAM_DEFAULT);
  const CUdeviceptr p = memory(4096);
  begin(s);
  work(s, {writes(p, 4096)});
  const CUgraphExec exec = executable(end(s));
  work(nullptr, {writes(p, 4096)});
  launch(exec, s);
  work(nullptr, {reads(p, 4096)});
  launch(exec, nullptr);
  wait_for(nullptr);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graphs_test, host_functions_are_nodes) {
  const CUstream s = stream();
  std::atomic<int> calls{0};
  begin(s);
  const auto count = [](void* of) { ++*static_cast<std::atomic<int>*>(of); };
  EXPECT_EQ(cuda.launch_host_func(s, count, &calls), CUDA_SUCCESS);
  const CUgraph graph = end(s);
  EXPECT_EQ(type_of(nodes(graph).front()), CU_GRAPH_NODE_TYPE_HOST);
  const CUgraphExec exec = executable(graph);
  launch(exec, s);
  launch(exec, s);
  wait_for(s);
  EXPECT_EQ(calls, 2);
}

TEST_F(graphs_test, upload_and_launch_respect_captures) {
  const CUstream s = stream();
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  const CUgraphExec exec = executable(empty_graph());
  begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuda.graph_launch(exec, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_launch(exec, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(failing_end(blocking), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  for (const auto call : {cuda.graph_upload, cuda.graph_launch}) {
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(call(exec, s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

// --- External events ----------------------------------------------------------------------------

TEST_F(graphs_test, external_record_tells_of_each_launch) {
  const CUstream s = stream();
  const CUstream watcher = stream();
  const CUevent mark = event();
  std::string order;
  EXPECT_EQ(cuda.event_record_with_flags(mark, s, CU_EVENT_RECORD_EXTERNAL),
            CUDA_ERROR_ILLEGAL_STATE);
  begin(s);
  work(s, {}, [&] { order += 'g'; });
  EXPECT_EQ(cuda.event_record_with_flags(mark, s, CU_EVENT_RECORD_EXTERNAL), CUDA_SUCCESS);
  const CUgraph graph = end(s);
  ASSERT_THAT(nodes(graph), SizeIs(2));
  EXPECT_EQ(type_of(nodes(graph)[1]), CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  launch(executable(graph), s);
  EXPECT_EQ(cuda.stream_wait_event(watcher, mark, 0), CUDA_SUCCESS);
  work(watcher, {}, [&] { order += 'w'; });
  wait_for(watcher);
  EXPECT_EQ(order, "gw");
}

TEST_F(graphs_test, external_wait_waits_for_work_outside) {
  const CUstream s = stream();
  const CUstream outside = stream();
  const CUevent mark = event();
  const CUdeviceptr p = memory(4096);
  EXPECT_EQ(cuda.stream_wait_event(s, mark, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE);
  begin(s);
  EXPECT_EQ(cuda.stream_wait_event(s, mark, CU_EVENT_WAIT_EXTERNAL), CUDA_SUCCESS);
  work(s, {reads(p, 4096)});
  const CUgraph graph = end(s);
  EXPECT_EQ(type_of(nodes(graph)[0]), CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  work(outside, {writes(p, 4096)});
  EXPECT_EQ(cuda.event_record(mark, outside), CUDA_SUCCESS);
  launch(executable(graph), s);
  wait_for(s);
  EXPECT_THAT(hazards(), IsEmpty());
}

// --- Hazards ------------------------------------------------------------------------------------

class graph_hazards : public graphs_test, public ::testing::WithParamInterface<bool> {};

TEST_P(graph_hazards, branches_race_unless_joined) {
  const bool joined = GetParam();
  const CUstream a = stream();
  const CUstream b = stream();
  const CUdeviceptr p = memory(4096);
  begin(a);
  order(b, a);
  work(b, {writes(p, 2048)});
  if (joined) order(a, b);
  work(a, {writes(p + 1024, 2048)});
  order(a, b);
  const CUgraphExec exec = executable(end(a));
  EXPECT_THAT(hazards(), IsEmpty());  // capturing is not doing
  launch(exec, a);
  wait_for(a);
  if (joined) {
    EXPECT_THAT(hazards(), IsEmpty());
    return;
  }
  ASSERT_THAT(hazards(), ElementsAre(sim::hazard_kind::race));
  const sim::hazard found = machine->hazards().front();
  EXPECT_EQ(found.shared.address, p + 1024);
  EXPECT_EQ(found.shared.size, 1024u);
}

TEST_P(graph_hazards, a_replay_races_with_another_stream_unless_ordered) {
  const bool ordered = GetParam();
  const CUstream s = stream();
  const CUstream other = stream();
  const CUdeviceptr p = memory(4096);
  begin(s);
  work(s, {writes(p, 4096)});
  const CUgraphExec exec = executable(end(s));
  launch(exec, s);
  if (ordered) order(other, s);
  work(other, {reads(p, 4096)});
  if (ordered) order(s, other);
  launch(exec, s);
  machine->run_until_idle();
  if (ordered) {
    EXPECT_THAT(hazards(), IsEmpty());
  } else {
    // The read is in no order with the launch before it, nor with the one after.
    EXPECT_THAT(hazards(), ElementsAre(sim::hazard_kind::race, sim::hazard_kind::race));
  }
}

INSTANTIATE_TEST_SUITE_P(, graph_hazards, ::testing::Bool(), [](const auto& p) {
  return p.param ? std::string{"ordered"} : std::string{"unordered"};
});

TEST_F(graphs_test, branches_race_also_where_they_are_long) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUdeviceptr p = memory(4096);
  begin(a);
  work(a);
  order(b, a);
  work(a);
  work(b);
  work(a, {writes(p, 1024)});
  work(b, {writes(p, 1024)});
  order(a, b);
  launch(executable(end(a)), a);
  wait_for(a);
  EXPECT_THAT(hazards(), ElementsAre(sim::hazard_kind::race));
}

TEST_F(graphs_test, a_diamond_of_many_branches_has_no_false_alarms) {
  const CUstream s = stream();
  std::vector<CUstream> branches;
  for (int i = 0; i < 6; ++i) branches.push_back(stream());
  const CUdeviceptr p = memory(6 * 1024 + 1024);
  const CUdeviceptr source = p + 6 * 1024;
  begin(s);
  work(s, {writes(source, 1024)});
  for (std::size_t i = 0; i < branches.size(); ++i) {
    order(branches[i], s);
    work(branches[i], {reads(source, 1024), writes(p + i * 1024, 1024)});
    work(branches[i], {reads(p + i * 1024, 1024)});
  }
  for (const CUstream each : branches) order(s, each);
  work(s, {reads(p, 6 * 1024), writes(source, 1024)});
  const CUgraphExec exec = executable(end(s));
  for (int i = 0; i < 3; ++i) launch(exec, s);
  work(s, {writes(p, 7 * 1024)});
  wait_for(s);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graphs_test, the_host_knows_a_launch_it_has_waited_for) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUdeviceptr p = memory(4096);
  begin(a);
  work(a, {writes(p, 4096)});
  launch(executable(end(a)), a);
  wait_for(a);
  work(b, {writes(p, 4096)});
  wait_for(b);
  EXPECT_THAT(hazards(), IsEmpty());
}

}  // namespace
}  // namespace weir::sim_tests

// SPDX-License-Identifier: Apache-2.0
// Stream capture: what becomes part of a graph, how streams join, what invalidates a capture.
#include <chrono>
#include <thread>

#include "graph_fixture.hpp"
#include "weir/observe/events.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class capture_test : public graph_fixture {
 protected:
  /// What an unsafe call answers on this thread: one that needs no capture to be wrong.
  CUresult unsafe_call() {
    CUdeviceptr made = 0;
    const CUresult answer = cuda.mem_alloc(&made, 512);
    if (answer == CUDA_SUCCESS) {
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
      EXPECT_EQ(cuda.thread_exchange_stream_capture_mode(&mode), CUDA_SUCCESS);
      EXPECT_EQ(cuda.mem_free(made), CUDA_SUCCESS);
      EXPECT_EQ(cuda.thread_exchange_stream_capture_mode(&mode), CUDA_SUCCESS);
    }
    return answer;
  }
  template <class F>
  void on_another_thread(F&& what) {
    std::thread{[&] {
      EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
      what();
    }}.join();
  }
};

// --- Begin and end ------------------------------------------------------------------------------

TEST_F(capture_test, captured_work_does_not_happen) {
  const CUstream s = stream();
  bool happened = false;
  begin(s);
  work(s, {}, [&] { happened = true; });
  const CUgraph graph = end(s);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);
  machine->run_until_idle();
  EXPECT_FALSE(happened);
  EXPECT_THAT(nodes(graph), SizeIs(1));
}

TEST_F(capture_test, each_node_depends_on_the_one_before) {
  const CUstream s = stream();
  begin(s);
  for (int i = 0; i < 3; ++i) work(s);
  const CUgraph graph = end(s);
  const auto all = nodes(graph);
  ASSERT_THAT(all, SizeIs(3));
  EXPECT_THAT(edges(graph), UnorderedElementsAre(Pair(all[0], all[1]), Pair(all[1], all[2])));
  EXPECT_EQ(type_of(all[0]), CU_GRAPH_NODE_TYPE_KERNEL);
}

TEST_F(capture_test, legacy_stream_cannot_begin) {
  EXPECT_EQ(cuda.stream_begin_capture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuda.stream_begin_capture(legacy_stream(), CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_F(capture_test, per_thread_stream_can_begin) {
  begin(per_thread_stream());
  work(per_thread_stream());
  EXPECT_THAT(nodes(end(per_thread_stream())), SizeIs(1));
}

TEST_F(capture_test, wrong_arguments) {
  const CUstream s = stream();
  EXPECT_EQ(cuda.stream_begin_capture(s, static_cast<CUstreamCaptureMode>(3)),
            CUDA_ERROR_INVALID_VALUE);
  begin(s);
  EXPECT_EQ(cuda.stream_begin_capture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(cuda.stream_is_capturing(s, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  end(s);
}

TEST_F(capture_test, a_caller_need_not_want_the_graph) {
  const CUstream s = stream();
  begin(s);
  EXPECT_EQ(cuda.stream_end_capture(s, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(capture_test, end_without_begin) {
  CUgraph graph = nullptr;
  EXPECT_EQ(cuda.stream_end_capture(stream(), &graph), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(capture_test, unknown_stream) {
  const auto nobody = reinterpret_cast<CUstream>(std::uintptr_t{0xdead0});
  CUgraph graph = nullptr;
  CUstreamCaptureStatus found{};
  EXPECT_EQ(cuda.stream_begin_capture(nobody, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda.stream_end_capture(nobody, &graph), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda.stream_is_capturing(nobody, &found), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(capture_test, only_the_beginning_thread_gets_the_graph_unless_relaxed) {
  const CUstream s = stream();
  begin(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  on_another_thread([&] { EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); });
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_NONE);  // it is over all the same

  begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  on_another_thread([&] { cuda.graph_destroy(end(s)); });
}

// --- Asking -------------------------------------------------------------------------------------

TEST_F(capture_test, capture_info_tells_id_graph_and_dependencies) {
  const CUstream s = stream();
  CUstreamCaptureStatus found{};
  ASSERT_EQ(cuda.stream_get_capture_info(s, &found, nullptr, nullptr, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(found, CU_STREAM_CAPTURE_STATUS_NONE);

  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 2; ++i) {
    begin(s);
    work(s);
    std::uint64_t id = 0;
    CUgraph graph = nullptr;
    const CUgraphNode* dependencies = nullptr;
    std::size_t count = 0;
    ASSERT_EQ(cuda.stream_get_capture_info(s, &found, &id, &graph, &dependencies, &count),
              CUDA_SUCCESS);
    EXPECT_EQ(found, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_THAT(nodes(graph), ElementsAre(dependencies[0]));
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(end(s), graph);
    ids.push_back(id);
  }
  EXPECT_NE(ids[0], ids[1]);
}

TEST_F(capture_test, dependencies_can_be_added_and_replaced) {
  const CUstream s = stream();
  CUgraphNode none[1] = {};
  EXPECT_EQ(cuda.stream_update_capture_dependencies(s, none, 0, 0), CUDA_ERROR_ILLEGAL_STATE);
  begin(s);
  work(s);
  CUstreamCaptureStatus found{};
  CUgraph graph = nullptr;
  ASSERT_EQ(cuda.stream_get_capture_info(s, &found, nullptr, &graph, nullptr, nullptr),
            CUDA_SUCCESS);
  CUgraphNode extra = nullptr;
  ASSERT_EQ(cuda.graph_add_empty_node(&extra, graph, nullptr, 0), CUDA_SUCCESS);
  ASSERT_EQ(
      cuda.stream_update_capture_dependencies(s, &extra, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES),
      CUDA_SUCCESS);
  work(s);  // behind both
  ASSERT_EQ(
      cuda.stream_update_capture_dependencies(s, &extra, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES),
      CUDA_SUCCESS);
  work(s);  // behind the empty node alone
  CUgraphNode stranger = reinterpret_cast<CUgraphNode>(std::uintptr_t{0xdead0});
  EXPECT_EQ(cuda.stream_update_capture_dependencies(s, &stranger, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.stream_update_capture_dependencies(s, &extra, 1, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(end(s), graph);  // the replaced dependency does not count as unjoined
  const auto all = nodes(graph);
  ASSERT_THAT(all, SizeIs(4));
  EXPECT_THAT(edges(graph),
              UnorderedElementsAre(Pair(all[0], all[2]), Pair(extra, all[2]), Pair(extra, all[3])));
}

// --- Forks and joins ----------------------------------------------------------------------------

TEST_F(capture_test, wait_for_a_captured_event_joins_the_stream) {
  const CUstream a = stream();
  const CUstream b = stream();
  begin(a);
  work(a);
  order(b, a);
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  work(b);
  work(a);
  order(a, b);
  work(a);
  const CUgraph graph = end(a);
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_NONE);
  const auto all = nodes(graph);
  ASSERT_THAT(all, SizeIs(4));
  EXPECT_THAT(edges(graph), UnorderedElementsAre(Pair(all[0], all[1]), Pair(all[0], all[2]),
                                                 Pair(all[1], all[3]), Pair(all[2], all[3])));
}

TEST_F(capture_test, a_fork_without_work_needs_no_join) {
  const CUstream a = stream();
  const CUstream b = stream();
  begin(a);
  work(a);
  order(b, a);
  EXPECT_THAT(nodes(end(a)), SizeIs(1));
  EXPECT_EQ(try_work(b), CUDA_SUCCESS);
}

TEST_F(capture_test, unjoined_work_fails_the_end) {
  const CUstream a = stream();
  const CUstream b = stream();
  begin(a);
  order(b, a);
  work(b);
  EXPECT_EQ(failing_end(a), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(status(a), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(capture_test, a_joined_stream_cannot_end) {
  const CUstream a = stream();
  const CUstream b = stream();
  begin(a);
  order(b, a);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuda.stream_end_capture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(failing_end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture_test, two_captures_cannot_be_merged) {
  const CUstream a = stream();
  const CUstream b = stream();
  begin(a);
  begin(b);
  const CUevent mark = event();
  EXPECT_EQ(cuda.event_record(mark, a), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_wait_event(b, mark, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  EXPECT_EQ(failing_end(b), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(failing_end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture_test, a_capture_cannot_wait_for_work_outside) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUevent mark = event();
  work(b);
  EXPECT_EQ(cuda.event_record(mark, b), CUDA_SUCCESS);
  begin(a);
  EXPECT_EQ(cuda.stream_wait_event(a, mark, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  EXPECT_EQ(status(a), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(failing_end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture_test, waiting_for_an_event_never_recorded_is_nothing) {
  const CUstream s = stream();
  begin(s);
  EXPECT_EQ(cuda.stream_wait_event(s, event(), 0), CUDA_SUCCESS);
  EXPECT_THAT(nodes(end(s)), IsEmpty());
}

TEST_F(capture_test, a_captured_event_has_no_state_outside) {
  const CUstream s = stream();
  const CUstream outside = stream();
  const CUevent mark = event();
  for (const auto call : {cuda.event_query, cuda.event_synchronize}) {
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(cuda.event_record(mark, s), CUDA_SUCCESS);
    EXPECT_EQ(call(mark), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  EXPECT_NE(cuda.stream_wait_event(outside, mark, 0), CUDA_SUCCESS);
  // Recorded outside, it is an event like any other again.
  EXPECT_EQ(cuda.event_record(mark, outside), CUDA_SUCCESS);
  EXPECT_EQ(cuda.event_synchronize(mark), CUDA_SUCCESS);
}

// --- What invalidates ---------------------------------------------------------------------------

TEST_F(capture_test, a_capturing_stream_cannot_be_waited_for) {
  const CUstream s = stream();
  for (const auto call : {cuda.stream_synchronize, cuda.stream_query}) {
    begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
    EXPECT_EQ(call(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(call(s), CUDA_SUCCESS);
  }
}

TEST_F(capture_test, an_invalidated_capture_takes_nothing_more) {
  const CUstream s = stream();
  begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  work(s);
  EXPECT_EQ(cuda.stream_query(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(try_work(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuda.event_record(event(), s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuda.stream_update_capture_dependencies(s, nullptr, 0, 0),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(try_work(s), CUDA_SUCCESS);
}

TEST_F(capture_test, the_time_of_a_captured_event_cannot_be_asked_for) {
  const CUstream s = stream();
  CUevent before = nullptr;
  CUevent captured = nullptr;
  ASSERT_EQ(cuda.event_create(&before, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(cuda.event_create(&captured, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  for (const CUevent each : {before, captured}) {
    ASSERT_EQ(cuda.event_record(each, s), CUDA_SUCCESS);
  }
  wait_for(s);
  begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(cuda.event_record(captured, s), CUDA_SUCCESS);
  float time = -1;
  EXPECT_EQ(cuda.event_elapsed_time(&time, before, captured), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(cuda.event_elapsed_time(&time, captured, before), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(time, -1) << "nothing is told of the record before the capture";
  EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_EQ(cuda.event_record(captured, s), CUDA_SUCCESS);
  wait_for(s);
  EXPECT_EQ(cuda.event_elapsed_time(&time, before, captured), CUDA_SUCCESS);
}

TEST_F(capture_test, legacy_stream_is_unusable_while_a_blocking_stream_captures) {
  const CUstream s = stream(CU_STREAM_DEFAULT);
  begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus found{};
  EXPECT_EQ(cuda.stream_is_capturing(nullptr, &found), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);  // asking did no harm
  EXPECT_EQ(try_work(nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(try_work(nullptr), CUDA_SUCCESS);
}

TEST_F(capture_test, a_wait_of_the_legacy_stream_invalidates_every_capture_of_a_blocking_stream) {
  const CUevent mark = event();
  ASSERT_EQ(cuda.event_record(mark, stream()), CUDA_SUCCESS);
  const CUstream a = stream(CU_STREAM_DEFAULT);
  const CUstream b = stream(CU_STREAM_DEFAULT);
  const CUstream free_one = stream();
  for (const CUstream each : {a, b, free_one}) begin(each, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuda.stream_wait_event(nullptr, mark, 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(failing_end(a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(failing_end(b), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  end(free_one);
  EXPECT_EQ(cuda.stream_wait_event(nullptr, mark, 0), CUDA_SUCCESS);
}

TEST_F(capture_test, legacy_stream_is_free_while_a_non_blocking_stream_captures) {
  const CUstream s = stream();
  begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(try_work(nullptr), CUDA_SUCCESS);
  end(s);
}

TEST_F(capture_test, destroying_a_capturing_stream_ends_the_capture) {
  const CUstream a = stream();
  const CUstream b = stream();
  begin(a);
  order(b, a);
  EXPECT_EQ(cuda.stream_destroy(a), CUDA_SUCCESS);
  EXPECT_EQ(status(b), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(unsafe_call(), CUDA_SUCCESS);
}

// --- The three modes ----------------------------------------------------------------------------

struct mode_case {
  CUstreamCaptureMode capture;
  CUstreamCaptureMode caller;
  bool same_thread;
  bool allowed;
};

class capture_modes : public capture_test, public ::testing::WithParamInterface<mode_case> {};

TEST_P(capture_modes, unsafe_calls) {
  const mode_case& it = GetParam();
  const CUstream s = stream();
  begin(s, it.capture);
  const auto try_it = [&] {
    CUstreamCaptureMode mode = it.caller;
    EXPECT_EQ(cuda.thread_exchange_stream_capture_mode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);  // what every thread begins with
    const CUresult wanted = it.allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    EXPECT_EQ(unsafe_call(), wanted);
    EXPECT_EQ(unsafe_call(), wanted);  // an invalidated capture forbids as an active one does
    EXPECT_EQ(cuda.thread_exchange_stream_capture_mode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, it.caller);
  };
  if (it.same_thread) {
    try_it();
  } else {
    on_another_thread(try_it);
  }
  if (it.allowed) {
    end(s);
  } else {
    EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

constexpr auto global = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

INSTANTIATE_TEST_SUITE_P(
    all, capture_modes,
    ::testing::Values(mode_case{global, global, true, false}, mode_case{global, local, true, false},
                      mode_case{global, relaxed, true, true}, mode_case{local, global, true, false},
                      mode_case{local, local, true, false}, mode_case{local, relaxed, true, true},
                      mode_case{relaxed, global, true, true}, mode_case{relaxed, local, true, true},
                      mode_case{relaxed, relaxed, true, true},
                      mode_case{global, global, false, false},
                      mode_case{global, local, false, true},
                      mode_case{global, relaxed, false, true},
                      mode_case{local, global, false, true}, mode_case{local, local, false, true},
                      mode_case{relaxed, global, false, true}));

TEST_F(capture_test, event_query_is_unsafe_even_for_a_strange_event) {
  const CUstream s = stream();
  const CUevent mark = event();
  begin(s);
  EXPECT_EQ(cuda.event_query(mark), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(capture_test, safe_calls_leave_a_capture_alone) {
  const CUstream s = stream();
  begin(s);
  CUcontext current = nullptr;
  EXPECT_EQ(cuda.ctx_get_current(&current), CUDA_SUCCESS);
  const CUstream other = stream();
  EXPECT_EQ(cuda.event_record(event(), other), CUDA_SUCCESS);
  EXPECT_EQ(try_work(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_destroy(other), CUDA_SUCCESS);
  EXPECT_EQ(status(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  end(s);
}

TEST_F(capture_test, wrong_modes_are_refused) {
  EXPECT_EQ(cuda.thread_exchange_stream_capture_mode(nullptr), CUDA_ERROR_INVALID_VALUE);
  auto mode = static_cast<CUstreamCaptureMode>(7);
  EXPECT_EQ(cuda.thread_exchange_stream_capture_mode(&mode), CUDA_ERROR_INVALID_VALUE);
}

// --- What captured work sees --------------------------------------------------------------------

TEST_F(capture_test, captured_work_is_no_access) {
  const CUstream a = stream();
  const CUstream b = stream();
  const CUdeviceptr p = memory(4096);
  work(b, {writes(p, 4096)});
  begin(a);
  work(a, {writes(p, 4096)});  // would race with b if it happened now
  end(a);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(capture_test, a_captured_use_of_a_freed_block_is_told_with_the_time_of_its_capture) {
  const auto told = machine->watch_blocks();
  const pool_id of_graph{1};
  const CUstream s = stream();
  const CUdeviceptr p = memory(4096);
  told->on_event({.kind = memory_event_kind::capture_begin, .pool = of_graph});
  for (const auto kind : {memory_event_kind::allocate, memory_event_kind::deallocate})
    told->on_event({.kind = kind, .pool = of_graph, .address = p, .size = 4096});
  begin(s);
  machine->advance(std::chrono::milliseconds{1});  // more than all calls so far took
  work(s, {writes(p, 8)});
  const sim::time_point captured = machine->now();
  end(s);
  ASSERT_THAT(hazards(), ElementsAre(sim::hazard_kind::use_after_free));
  const sim::party use = machine->hazards().front().second;
  EXPECT_EQ(use.action, sim::party_action::captured);
  EXPECT_EQ(use.queued, captured);
}

TEST_F(capture_test, what_a_pool_hands_out_on_a_captured_stream_is_the_graphs) {
  const auto told = machine->watch_blocks();
  const CUstream s = stream();
  const auto captured_use = [&](pool_id pool, CUstream of_block) {
    unsigned long long number = 0;
    EXPECT_EQ(cuda.stream_get_id(of_block, &number), CUDA_SUCCESS);
    const stream_id own{(std::uint64_t{3} << 48) | number};  // as an allocator of runtime 3 has it
    const CUdeviceptr p = memory(4096);
    begin(s);
    for (const auto kind : {memory_event_kind::allocate, memory_event_kind::deallocate})
      told->on_event({.kind = kind, .pool = pool, .stream = own, .address = p, .size = 4096});
    work(s, {writes(p, 8)});
    end(s);
    const auto found = hazards();
    machine->clear_hazards();
    return found;
  };
  EXPECT_THAT(captured_use(pool_id{1}, s), ElementsAre(sim::hazard_kind::use_after_free));
  EXPECT_THAT(captured_use(pool_id{2}, stream()), IsEmpty()) << "not of the capture";
  EXPECT_THAT(captured_use(pool_id{}, s), IsEmpty()) << "in no pool";
}

}  // namespace
}  // namespace weir::sim_tests

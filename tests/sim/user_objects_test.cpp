// SPDX-License-Identifier: Apache-2.0
// User objects: who keeps them alive, and when their destructors run.
#include <atomic>

#include "graph_fixture.hpp"

namespace weir::sim_tests { namespace {

class user_objects_test : public graph_fixture {
 protected:
  CUuserObject object(unsigned references = 1) {
    CUuserObject made = nullptr;
    const auto count = [](void* of) { ++*static_cast<std::atomic<int>*>(of); };
    EXPECT_EQ(cuda.user_object_create(&made, &destroyed, count, references, 1), CUDA_SUCCESS);
    return made;
  }
  std::atomic<int> destroyed{0};
};

TEST_F(user_objects_test, wrong_arguments) {
  CUuserObject made = nullptr;
  const auto nothing = [](void*) {};
  EXPECT_EQ(cuda.user_object_create(nullptr, nullptr, nothing, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.user_object_create(&made, nullptr, nullptr, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.user_object_create(&made, nullptr, nothing, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.user_object_create(&made, nullptr, nothing, 1, 0), CUDA_ERROR_INVALID_VALUE);
  const CUuserObject it = object();
  const CUgraph graph = empty_graph();
  EXPECT_EQ(cuda.user_object_retain(it, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.user_object_release(it, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.user_object_release(it, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_retain_user_object(graph, it, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_retain_user_object(graph, it, 1, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_retain_user_object(nullptr, it, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_release_user_object(graph, it, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(destroyed, 0);
}

TEST_F(user_objects_test, the_last_reference_destroys) {
  const CUuserObject it = object(2);
  EXPECT_EQ(cuda.user_object_retain(it, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.user_object_release(it, 2), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(cuda.user_object_release(it, 1), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 1);
  EXPECT_EQ(cuda.user_object_release(it, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(user_objects_test, a_graph_keeps_what_it_retains) {
  const CUuserObject it = object();
  const CUgraph graph = empty_graph();
  EXPECT_EQ(cuda.graph_retain_user_object(graph, it, 2, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_release_user_object(graph, it, 3), CUDA_ERROR_INVALID_VALUE)
      << "one is not the graph's";
  EXPECT_EQ(cuda.user_object_release(it, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_release_user_object(graph, it, 1), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(cuda.graph_release_user_object(graph, it, 1), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 1);
}

TEST_F(user_objects_test, moved_references_belong_to_the_graph) {
  const CUuserObject it = object();
  const CUgraph graph = empty_graph();
  EXPECT_EQ(cuda.graph_retain_user_object(graph, it, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 1);
}

TEST_F(user_objects_test, an_executable_graph_keeps_them_beyond_the_graph) {
  const CUuserObject it = object();
  const CUgraph graph = empty_graph();
  EXPECT_EQ(cuda.graph_retain_user_object(graph, it, 1, 1), CUDA_SUCCESS);
  const CUgraphExec exec = executable(graph);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(destroyed, 1);
}

TEST_F(user_objects_test, a_launch_on_its_way_keeps_them_beyond_the_executable_graph) {
  const CUstream s = stream();
  const CUuserObject it = object();
  const CUgraph graph = empty_graph();
  empty_node(graph);
  EXPECT_EQ(cuda.graph_retain_user_object(graph, it, 1, 1), CUDA_SUCCESS);
  const CUgraphExec exec = executable(graph);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  machine->hold(s);
  launch(exec, s);
  EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
  machine->run_until_idle();
  EXPECT_EQ(destroyed, 0);
  machine->release(s);
  machine->run_until_idle();
  EXPECT_EQ(destroyed, 1);
}

TEST_F(user_objects_test, a_failed_capture_gives_its_references_back) {
  const CUstream s = stream();
  const CUuserObject it = object();
  begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus found{};
  CUgraph graph = nullptr;
  ASSERT_EQ(cuda.stream_get_capture_info(s, &found, nullptr, &graph, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_retain_user_object(graph, it, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_query(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(destroyed, 0);
  EXPECT_EQ(failing_end(s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(destroyed, 1);
}

TEST_F(user_objects_test, destructors_cannot_call_the_driver) {
  struct probe {
    const driver::table* calls;
    CUresult answer;
  } inside{&cuda, CUDA_SUCCESS};
  CUuserObject it = nullptr;
  const auto call_back = [](void* data) {
    auto& in = *static_cast<probe*>(data);
    CUcontext current = nullptr;
    in.answer = in.calls->ctx_get_current(&current);
  };
  ASSERT_EQ(cuda.user_object_create(&it, &inside, call_back, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuda.user_object_release(it, 1), CUDA_SUCCESS);
  EXPECT_EQ(inside.answer, CUDA_ERROR_NOT_PERMITTED);
}

}  // namespace
}  // namespace weir::sim_tests

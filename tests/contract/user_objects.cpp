// SPDX-License-Identifier: Apache-2.0
// Contract: user objects, counted references that a graph may hold.
#include <atomic>
#include <thread>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

/// cuda.h: the object's destroy function may run on another thread, later. Required at creation.
constexpr unsigned no_destructor_sync = 1;
/// cuda.h: the graph takes the caller's references over.
constexpr unsigned graph_moves = 1;

void no_cleanup(void*) {}

class user_objects : public contract_test {
 protected:
  std::atomic<int> destroyed{0};
  CUuserObject make(unsigned references) {
    CUuserObject object = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cu->user_object_create(
                                &object, &destroyed,
                                [](void* count) { ++*static_cast<std::atomic<int>*>(count); },
                                references, no_destructor_sync));
    return object;
  }
  /// The destroy function runs on a thread of the driver's.
  bool is_destroyed() {
    for (int i = 0; i < 1000 && destroyed == 0; ++i) {
      cu->ctx_synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return destroyed == 1;
  }
};
WEIR_CONTRACT(user_objects);

const refusal_list user_objects_refusals{
    "user_objects",
    {
        {"user_object_create into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->user_object_create(nullptr, nullptr, &no_cleanup, 1, no_destructor_sync);
         }},
        {"user_object_create without a destroy function", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUuserObject object = nullptr;
           return b.cu->user_object_create(&object, nullptr, nullptr, 1, no_destructor_sync);
         }},
        {"user_object_create without references", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUuserObject object = nullptr;
           return b.cu->user_object_create(&object, nullptr, &no_cleanup, 0, no_destructor_sync);
         }},
        {"user_object_create without its flag", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUuserObject object = nullptr;
           return b.cu->user_object_create(&object, nullptr, &no_cleanup, 1, 0);
         }},
        {"user_object_retain(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->user_object_retain(nullptr, 1); }},
        {"user_object_release(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->user_object_release(nullptr, 1); }},
        {"graph_retain_user_object of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraph graph = nullptr;
           b.cu->graph_create(&graph, 0);
           const CUresult answer = b.cu->graph_retain_user_object(graph, nullptr, 1, 0);
           b.cu->graph_destroy(graph);
           return answer;
         }},
        {"graph_release_user_object of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraph graph = nullptr;
           b.cu->graph_create(&graph, 0);
           const CUresult answer = b.cu->graph_release_user_object(graph, nullptr, 1);
           b.cu->graph_destroy(graph);
           return answer;
         }},
    }};

TEST_P(user_objects, refuses) { expect_refusals(user_objects_refusals, machine); }

TEST_P(user_objects, the_last_release_destroys) {
  WEIR_NEEDS(user_object_create);
  const CUuserObject object = make(2);
  WEIR_OK(cu->user_object_retain(object, 1));
  WEIR_OK(cu->user_object_release(object, 2));
  EXPECT_EQ(0, destroyed.load());
  WEIR_OK(cu->user_object_release(object, 1));
  EXPECT_TRUE(is_destroyed());
}

TEST_P(user_objects, a_graph_keeps_what_it_holds) {
  WEIR_NEEDS(user_object_create);
  const CUuserObject object = make(1);
  CUgraph graph = nullptr;
  WEIR_OK(cu->graph_create(&graph, 0));
  WEIR_OK(cu->graph_retain_user_object(graph, object, 1, 0));
  WEIR_OK(cu->user_object_release(object, 1));
  EXPECT_EQ(0, destroyed.load());
  WEIR_OK(cu->graph_destroy(graph));
  EXPECT_TRUE(is_destroyed());
}

TEST_P(user_objects, a_graph_may_give_up_what_it_holds) {
  WEIR_NEEDS(user_object_create);
  const CUuserObject object = make(1);
  CUgraph graph = nullptr;
  WEIR_OK(cu->graph_create(&graph, 0));
  WEIR_OK(cu->graph_retain_user_object(graph, object, 1, graph_moves));
  EXPECT_EQ(0, destroyed.load());
  WEIR_OK(cu->graph_release_user_object(graph, object, 1));
  EXPECT_TRUE(is_destroyed());
  WEIR_OK(cu->graph_destroy(graph));
}

TEST_P(user_objects, an_executable_graph_keeps_what_its_graph_held) {
  WEIR_NEEDS(user_object_create);
  const CUuserObject object = make(1);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_create(&graph, 0));
  CUgraphNode node = nullptr;
  WEIR_OK(cu->graph_add_empty_node(&node, graph, nullptr, 0));
  WEIR_OK(cu->graph_retain_user_object(graph, object, 1, graph_moves));
  WEIR_OK(cu->graph_instantiate(&exec, graph, 0));
  WEIR_OK(cu->graph_destroy(graph));
  WEIR_OK(cu->graph_launch(exec, nullptr));
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_EQ(0, destroyed.load());
  WEIR_OK(cu->graph_exec_destroy(exec));
  EXPECT_TRUE(is_destroyed());
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Contract: graphs made by hand or by capture, their replay, and the memory they own.
#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class graphs : public contract_test {
 protected:
  CUgraph new_graph() {
    CUgraph graph = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cu->graph_create(&graph, 0));
    defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->graph_destroy(graph)); });
    return graph;
  }
  std::uint64_t graph_memory(CUgraphMem_attribute attribute) {
    std::uint64_t bytes = ~std::uint64_t{0};
    EXPECT_EQ(CUDA_SUCCESS, cu->device_get_graph_mem_attribute(device, attribute, &bytes));
    return bytes;
  }
  CUDA_MEM_ALLOC_NODE_PARAMS allocation(std::size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS request{};
    request.poolProps = pool_properties();
    request.bytesize = bytes;
    return request;
  }
  /// A graph that increments `words` once.
  CUgraph counting_graph(CUdeviceptr memory, std::size_t count) {
    const CUstream stream = new_stream();
    EXPECT_EQ(CUDA_SUCCESS, cu->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT_EQ(CUDA_SUCCESS, increment(memory, count, stream));
    return end_capture(stream);
  }
};
WEIR_CONTRACT(graphs);

CUgraph deferred_graph(driver_fixture& b) {
  CUgraph graph = nullptr;
  b.cu->graph_create(&graph, 0);
  b.defer([&b, graph] { b.cu->graph_destroy(graph); });
  return graph;
}

const refusal_list graphs_refusals{
    "graphs",
    {
        {"graph_create into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->graph_create(nullptr, 0); }},
        {"graph_create with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraph graph = nullptr;
           return b.cu->graph_create(&graph, 1);
         }},
        {"graph_destroy(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->graph_destroy(nullptr); }},
        {"graph_get_nodes of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::size_t count = 0;
           return b.cu->graph_get_nodes(nullptr, nullptr, &count);
         }},
        {"graph_get_nodes without a count", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->graph_get_nodes(deferred_graph(b), nullptr, nullptr);
         }},
        {"graph_get_edges of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::size_t count = 0;
           return b.cu->graph_get_edges(nullptr, nullptr, nullptr, &count);
         }},
        {"graph_node_get_type of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraphNodeType type{};
           return b.cu->graph_node_get_type(nullptr, &type);
         }},
        {"graph_add_empty_node into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->graph_add_empty_node(nullptr, deferred_graph(b), nullptr, 0);
         }},
        {"graph_add_empty_node to null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraphNode node = nullptr;
           return b.cu->graph_add_empty_node(&node, nullptr, nullptr, 0);
         }},
        {"graph_add_empty_node with the same dependency twice", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUgraph graph = deferred_graph(b);
           CUgraphNode first = nullptr;
           CUgraphNode second = nullptr;
           b.cu->graph_add_empty_node(&first, graph, nullptr, 0);
           const CUgraphNode twice[] = {first, first};
           return b.cu->graph_add_empty_node(&second, graph, twice, 2);
         }},
        {"graph_add_empty_node behind another graph's node", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraphNode first = nullptr;
           CUgraphNode second = nullptr;
           b.cu->graph_add_empty_node(&first, deferred_graph(b), nullptr, 0);
           return b.cu->graph_add_empty_node(&second, deferred_graph(b), &first, 1);
         }},
        {"graph_add_mem_alloc_node without parameters", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraphNode node = nullptr;
           return b.cu->graph_add_mem_alloc_node(&node, deferred_graph(b), nullptr, 0, nullptr);
         }},
        {"graph_add_mem_alloc_node of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUDA_MEM_ALLOC_NODE_PARAMS request{};
           request.poolProps = b.pool_properties();
           CUgraphNode node = nullptr;
           return b.cu->graph_add_mem_alloc_node(&node, deferred_graph(b), nullptr, 0, &request);
         }},
        {"graph_add_mem_free_node of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraphNode node = nullptr;
           return b.cu->graph_add_mem_free_node(&node, deferred_graph(b), nullptr, 0,
                                                b.new_memory(4096));
         }},
        {"graph_instantiate into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->graph_instantiate(nullptr, deferred_graph(b), 0); }},
        {"graph_instantiate of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraphExec exec = nullptr;
           return b.cu->graph_instantiate(&exec, nullptr, 0);
         }},
        {"graph_instantiate with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUgraphExec exec = nullptr;
           return b.cu->graph_instantiate(&exec, deferred_graph(b), 0x8000);
         }},
        {"graph_exec_destroy(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->graph_exec_destroy(nullptr); }},
        {"graph_upload of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->graph_upload(nullptr, b.new_stream()); }},
        {"graph_launch of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->graph_launch(nullptr, b.new_stream()); }},
        {"device_graph_mem_trim of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) { return b.cu->device_graph_mem_trim(1000); }},
        {"device_get_graph_mem_attribute of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           std::uint64_t bytes = 0;
           return b.cu->device_get_graph_mem_attribute(1000, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                                                       &bytes);
         }},
        {"device_set_graph_mem_attribute of the memory in use", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t bytes = 0;
           return b.cu->device_set_graph_mem_attribute(b.device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
                                                       &bytes);
         }},
    }};

TEST_P(graphs, refuses) { expect_refusals(graphs_refusals, machine); }

TEST_P(graphs, nodes_and_edges_can_be_listed) {
  const CUgraph graph = new_graph();
  CUgraphNode first = nullptr;
  CUgraphNode second = nullptr;
  CUgraphNode third = nullptr;
  WEIR_OK(cu->graph_add_empty_node(&first, graph, nullptr, 0));
  WEIR_OK(cu->graph_add_empty_node(&second, graph, &first, 1));
  const CUgraphNode both[] = {first, second};
  WEIR_OK(cu->graph_add_empty_node(&third, graph, both, 2));
  std::size_t count = 0;
  WEIR_OK(cu->graph_get_nodes(graph, nullptr, &count));
  EXPECT_EQ(3u, count);
  CUgraphNode nodes[5] = {};
  count = 5;
  WEIR_OK(cu->graph_get_nodes(graph, nodes, &count));
  EXPECT_EQ(3u, count);
  EXPECT_EQ(first, nodes[0]);
  EXPECT_EQ(nullptr, nodes[3]);
  WEIR_OK(cu->graph_get_edges(graph, nullptr, nullptr, &count));
  EXPECT_EQ(3u, count);
  CUgraphNode from[3] = {};
  CUgraphNode to[3] = {};
  WEIR_OK(cu->graph_get_edges(graph, from, to, &count));
  bool has_edge = false;
  for (int i = 0; i < 3; ++i) has_edge |= from[i] == second && to[i] == third;
  EXPECT_TRUE(has_edge);
  CUgraphNodeType type{};
  WEIR_OK(cu->graph_node_get_type(first, &type));
  EXPECT_EQ(CU_GRAPH_NODE_TYPE_EMPTY, type);
}

TEST_P(graphs, launches_keep_their_place_in_the_stream) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(4 * kib);
  const CUgraphExec exec = new_exec(counting_graph(memory, kib));
  WEIR_OK(fill(memory, 10, kib, stream));
  WEIR_OK(cu->graph_launch(exec, stream));
  WEIR_OK(increment(memory, kib, stream));
  WEIR_OK(cu->graph_launch(exec, stream));
  EXPECT_EQ(0u, mismatches(memory, 13, kib));
}

TEST_P(graphs, one_executable_graph_never_overlaps_itself) {
  const CUdeviceptr memory = new_memory(4 * kib);
  WEIR_OK(cu->memset_d32(memory, 0, kib));
  WEIR_OK(cu->ctx_synchronize());
  const CUgraphExec exec = new_exec(counting_graph(memory, kib));
  CUstream some[] = {new_stream(), new_stream(), new_stream()};
  for (int i = 0; i < 30; ++i) WEIR_OK(cu->graph_launch(exec, some[i % 3]));
  EXPECT_EQ(0u, mismatches(memory, 30, kib));
}

TEST_P(graphs, an_executable_graph_outlives_its_graph) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(64);
  WEIR_OK(fill(memory, 0, 16, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  CUgraph graph = nullptr;
  WEIR_OK(cu->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  WEIR_OK(increment(memory, 16, stream));
  WEIR_OK(cu->stream_end_capture(stream, &graph));
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_instantiate(&exec, graph, 0));
  WEIR_OK(cu->graph_destroy(graph));
  WEIR_OK(cu->graph_upload(exec, stream));
  WEIR_OK(cu->graph_launch(exec, stream));
  // Destroyed while it may still run: it runs to its end.
  WEIR_OK(cu->graph_exec_destroy(exec));
  EXPECT_EQ(0u, mismatches(memory, 1, 16));
}

TEST_P(graphs, branches_meet_again) {
  const CUstream stream = new_stream();
  const CUstream side = new_stream();
  const CUevent fork = new_event();
  const CUevent join = new_event();
  const CUdeviceptr memory = new_memory(8 * kib);
  const CUdeviceptr wrong = new_memory(sizeof(word));
  WEIR_OK(cu->memset_d32(wrong, 0, 1));
  WEIR_OK(cu->ctx_synchronize());
  WEIR_OK(cu->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  WEIR_OK(cu->event_record(fork, stream));
  WEIR_OK(cu->stream_wait_event(side, fork, 0));
  WEIR_OK(fill(memory, 3, kib, stream));
  WEIR_OK(spin(std::chrono::microseconds{100}, side));
  WEIR_OK(fill(memory + 4 * kib, 3, kib, side));
  WEIR_OK(cu->event_record(join, side));
  WEIR_OK(cu->stream_wait_event(stream, join, 0));
  WEIR_OK(check(memory, 3, 2 * kib, wrong, stream));
  WEIR_OK(cu->memset_d32_async(memory, 0, 2 * kib, stream));
  const CUgraphExec exec = new_exec(end_capture(stream));
  for (int i = 0; i < 10; ++i) WEIR_OK(cu->graph_launch(exec, stream));
  EXPECT_EQ(0u, words(wrong, 1)[0]);
}

TEST_P(graphs, memory_of_a_graph_keeps_its_address) {
  WEIR_NEEDS(graph_add_mem_alloc_node);
  const CUgraph graph = new_graph();
  auto request = allocation(4 * mib);
  CUgraphNode allocated = nullptr;
  CUgraphNode freed = nullptr;
  WEIR_OK(cu->graph_add_mem_alloc_node(&allocated, graph, nullptr, 0, &request));
  ASSERT_NE(0u, request.dptr);
  WEIR_OK(cu->graph_add_mem_free_node(&freed, graph, &allocated, 1, request.dptr));
  CUgraphNodeType type{};
  WEIR_OK(cu->graph_node_get_type(allocated, &type));
  EXPECT_EQ(CU_GRAPH_NODE_TYPE_MEM_ALLOC, type);
  WEIR_OK(cu->graph_node_get_type(freed, &type));
  EXPECT_EQ(CU_GRAPH_NODE_TYPE_MEM_FREE, type);
  const CUstream stream = new_stream();
  const CUgraphExec exec = new_exec(graph);
  for (int i = 0; i < 3; ++i) WEIR_OK(cu->graph_launch(exec, stream));
  WEIR_OK(cu->stream_synchronize(stream));
}

TEST_P(graphs, memory_left_by_a_graph_is_used_and_freed_outside) {
  WEIR_NEEDS(graph_add_mem_alloc_node);
  const CUgraph graph = new_graph();
  auto request = allocation(4 * mib);
  CUgraphNode allocated = nullptr;
  WEIR_OK(cu->graph_add_mem_alloc_node(&allocated, graph, nullptr, 0, &request));
  const CUstream stream = new_stream();
  const CUgraphExec exec = new_exec(graph);
  WEIR_OK(cu->graph_launch(exec, stream));
  WEIR_OK(fill(request.dptr, 8, mib, stream));
  EXPECT_EQ(0u, mismatches(request.dptr, 8, mib));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->graph_launch(exec, stream));
  WEIR_OK(cu->mem_free_async(request.dptr, stream));
  WEIR_OK(cu->graph_launch(exec, stream));
  WEIR_OK(cu->mem_free_async(request.dptr, stream));
  WEIR_OK(cu->stream_synchronize(stream));
}

TEST_P(graphs, auto_free_lets_a_graph_be_launched_again) {
  WEIR_NEEDS(graph_add_mem_alloc_node);
  const CUgraph graph = new_graph();
  auto request = allocation(4 * mib);
  CUgraphNode allocated = nullptr;
  WEIR_OK(cu->graph_add_mem_alloc_node(&allocated, graph, nullptr, 0, &request));
  const CUstream stream = new_stream();
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_instantiate(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
  WEIR_OK(cu->graph_launch(exec, stream));
  WEIR_OK(cu->graph_launch(exec, stream));
  WEIR_OK(cu->mem_free_async(request.dptr, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  WEIR_OK(cu->graph_exec_destroy(exec));
}

TEST_P(graphs, graph_memory_is_counted_and_trimmed) {
  WEIR_NEEDS(graph_add_mem_alloc_node);
  WEIR_OK(cu->device_graph_mem_trim(device));
  const std::uint64_t reserved_before = graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  const CUgraph graph = new_graph();
  auto request = allocation(64 * mib);
  CUgraphNode allocated = nullptr;
  WEIR_OK(cu->graph_add_mem_alloc_node(&allocated, graph, nullptr, 0, &request));
  const CUstream stream = new_stream();
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_instantiate(&exec, graph, 0));
  WEIR_OK(cu->graph_launch(exec, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(64 * mib, graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  EXPECT_GE(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 64 * mib);
  EXPECT_GE(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 64 * mib);
  WEIR_OK(cu->mem_free_async(request.dptr, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  // Freed memory counts as used until it is trimmed.
  EXPECT_EQ(64 * mib, graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  WEIR_OK(cu->graph_exec_destroy(exec));
  WEIR_OK(cu->ctx_synchronize());
  WEIR_OK(cu->device_graph_mem_trim(device));
  EXPECT_EQ(0u, graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  EXPECT_LE(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), reserved_before);
  std::uint64_t zero = 0;
  WEIR_OK(cu->device_set_graph_mem_attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
  EXPECT_EQ(0u, graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH));
}

}  // namespace
}  // namespace weir::testing_support

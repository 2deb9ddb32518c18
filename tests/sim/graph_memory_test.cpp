// SPDX-License-Identifier: Apache-2.0
// Graph memory: allocation nodes, their lifetimes, what is counted and trimmed.
#include "graph_fixture.hpp"
#include "support/this_process.hpp"

namespace weir::sim_tests { namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// What the driver takes from the device at a time.
constexpr std::size_t pool_unit = 32 * mib;

class graph_memory_test : public graph_fixture {};

TEST_F(graph_memory_test, alloc_nodes_check_their_parameters) {
  const CUgraph graph = empty_graph();
  CUgraphNode node = nullptr;
  const auto answer = [&](CUDA_MEM_ALLOC_NODE_PARAMS wanted) {
    return cuda.graph_add_mem_alloc_node(&node, graph, nullptr, 0, &wanted);
  };
  EXPECT_EQ(answer(wanting(0)), CUDA_ERROR_INVALID_VALUE);
  auto wrong = wanting(512);
  wrong.poolProps.location.id = 9;
  EXPECT_EQ(answer(wrong), CUDA_ERROR_INVALID_VALUE);
  wrong = wanting(512);
  wrong.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(answer(wrong), CUDA_ERROR_INVALID_VALUE);
  wrong = wanting(512);
  wrong.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(answer(wrong), CUDA_ERROR_INVALID_VALUE);
  wrong = wanting(512);
  wrong.accessDescCount = 1;
  EXPECT_EQ(answer(wrong), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_mem_alloc_node(&node, graph, nullptr, 0, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(nodes(graph), IsEmpty());
}

TEST_F(graph_memory_test, alloc_nodes_end_with_the_addresses) {
  const CUgraph graph = empty_graph();
  for (const std::size_t too_much : {std::size_t{1} << 60, ~std::size_t{0}}) {
    auto wanted = wanting(too_much);
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuda.graph_add_mem_alloc_node(&node, graph, nullptr, 0, &wanted),
              CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(node, nullptr);
  }
  EXPECT_THAT(nodes(graph), IsEmpty());
  EXPECT_EQ(alloc_node(graph, mib) % pool_unit, 0u) << "the first of its pool_unit";
}

TEST_F(graph_memory_test, free_nodes_free_graph_memory_once) {
  const CUgraph graph = empty_graph();
  CUgraphNode alloc = nullptr;
  CUgraphNode node = nullptr;
  const CUdeviceptr p = alloc_node(graph, 512, &alloc);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, p + 256),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, memory(512)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_mem_free_node(nullptr, graph, &alloc, 1, p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, nullptr, nullptr, 0, p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, p), CUDA_SUCCESS);
  EXPECT_EQ(type_of(alloc), CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  EXPECT_EQ(type_of(node), CU_GRAPH_NODE_TYPE_MEM_FREE);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, p), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, empty_graph(), nullptr, 0, p),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(graph_memory_test, captured_allocation_lives_inside_the_graph) {
  const CUstream s = stream();
  begin(s);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&p, 3 * mib, s), CUDA_SUCCESS);
  ASSERT_NE(p, 0u);
  work(s, {writes(p, 3 * mib)}, [=] { *reinterpret_cast<int*>(p) = 42; });
  int seen = 0;
  work(s, {reads(p, 4)}, [=, &seen] { seen = *reinterpret_cast<int*>(p); });
  ASSERT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  const CUgraphExec exec = executable(end(s));
  const bytes before = machine->used(device_id{0});
  for (int i = 0; i < 2; ++i) {
    seen = 0;
    launch(exec, s);
    wait_for(s);
    EXPECT_EQ(seen, 42);
  }
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(machine->used(device_id{0}), before + bytes{pool_unit});  // free, but cached
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), pool_unit);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), pool_unit);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), pool_unit);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), pool_unit);

  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_EQ(machine->used(device_id{0}), before);
  launch(exec, s);  // and once more, with new pages behind the old address
  wait_for(s);
  EXPECT_THAT(hazards(), IsEmpty());
}

/// Fills and copies of a capture may use memory that the graph allocates, before it has pages.
TEST_F(graph_memory_test, captured_fills_and_copies_use_memory_of_the_graph) {
  const CUstream s = stream();
  const CUdeviceptr kept = memory(mib);
  std::vector<int> from(mib / sizeof(int), 3);
  std::vector<int> seen(mib / sizeof(int));
  begin(s);
  CUdeviceptr p = 0;
  CUdeviceptr q = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&p, mib, s), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_alloc_async(&q, mib, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memset_d32_async(p, 7, mib / 4, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memset_d8_async(p, 0, 4, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memcpy_dtod_async(q, p, mib, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memcpy_htod_async(q + 8, from.data(), 4, s), CUDA_SUCCESS);
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = q;
  box.dstDevice = kept;
  box.srcPitch = box.dstPitch = box.WidthInBytes = 512;
  box.Height = mib / 512;
  EXPECT_EQ(cuda.memcpy_2d_async(&box, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memcpy_dtoh_async(seen.data(), q, 4, s), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_free_async(q, s), CUDA_SUCCESS);
  const CUgraphExec exec = executable(end(s));
  for (int i = 0; i < 2; ++i) {
    seen[0] = 9;
    launch(exec, s);
    wait_for(s);
    EXPECT_EQ(seen[0], 0);
    ASSERT_EQ(cuda.memcpy_dtoh(seen.data(), kept, mib), CUDA_SUCCESS);
    EXPECT_THAT(std::vector<int>(seen.begin(), seen.begin() + 4), ElementsAre(0, 7, 3, 7));
    EXPECT_EQ(seen.back(), 7);
  }
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, copies_outside_of_the_capture_know_no_memory_without_pages) {
  const CUstream s = stream();
  const CUstream other = stream();
  begin(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&p, mib, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memset_d8_async(p, 0, 4, other), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memcpy_dtod_async(p, memory(mib), 4, other), CUDA_ERROR_INVALID_VALUE);
  // Beyond the driver's unit there is nothing in a capture either.
  EXPECT_EQ(cuda.memset_d8_async(p, 0, pool_unit + 1, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d8_async(p + pool_unit, 0, 1, s), CUDA_ERROR_INVALID_VALUE);
  end(s);
}

TEST_F(graph_memory_test, high_marks_can_be_reset_only_to_zero) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  CUgraphNode alloc = nullptr;
  CUgraphNode node = nullptr;
  const CUdeviceptr p = alloc_node(graph, mib, &alloc);
  ASSERT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, p), CUDA_SUCCESS);
  const CUgraphExec exec = executable(graph);
  launch(exec, s);
  wait_for(s);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  std::uint64_t value = 1;
  for (const auto high : {CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH}) {
    EXPECT_EQ(cuda.device_set_graph_mem_attribute(0, high, &value), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuda.device_set_graph_mem_attribute(0, high, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuda.device_set_graph_mem_attribute(7, high, &value), CUDA_ERROR_INVALID_DEVICE);
  }
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), pool_unit);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), pool_unit);
  value = 0;
  EXPECT_EQ(cuda.device_set_graph_mem_attribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value),
            CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0u);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), pool_unit);
  EXPECT_EQ(cuda.device_set_graph_mem_attribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value),
            CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 0u);
  launch(exec, s);
  wait_for(s);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.device_set_graph_mem_attribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &value),
            CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 0u);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), pool_unit);
  EXPECT_EQ(cuda.device_set_graph_mem_attribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.device_get_graph_mem_attribute(7, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuda.device_get_graph_mem_attribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.device_graph_mem_trim(7), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(graph_memory_test, an_unfreed_allocation_lives_on_until_freed_outside) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr p = alloc_node(graph, mib);
  const CUgraphExec exec = executable(graph);
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_ERROR_INVALID_VALUE);  // not there before a launch
  launch(exec, s);
  work(s, {writes(p, mib)});
  EXPECT_EQ(cuda.graph_launch(exec, s), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_ERROR_INVALID_VALUE);
  launch(exec, s);
  wait_for(s);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);  // does not take what is in use
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), pool_unit);
  EXPECT_EQ(cuda.mem_free(p), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), pool_unit);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, a_free_node_is_not_in_what_was_instantiated_before_it) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  CUgraphNode alloc = nullptr;
  CUgraphNode node = nullptr;
  const CUdeviceptr p = alloc_node(graph, mib, &alloc);
  const CUgraphExec exec = executable(graph);
  ASSERT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, p), CUDA_SUCCESS);
  launch(exec, s);
  work(s, {writes(p, mib)});
  EXPECT_EQ(cuda.graph_launch(exec, s), CUDA_ERROR_INVALID_VALUE) << "it is not freed";
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  wait_for(s);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, auto_free_frees_before_the_next_launch) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr p = alloc_node(graph, mib);
  const CUgraphExec exec = executable(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  launch(exec, s);
  work(s, {writes(p, mib)});
  launch(exec, s);
  work(s, {writes(p, mib)});
  wait_for(s);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), pool_unit);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
}

TEST_F(graph_memory_test, auto_free_under_a_stream_that_still_reads_is_reported) {
  const CUstream s = stream();
  const CUstream other = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr p = alloc_node(graph, mib);
  const CUgraphExec exec = executable(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
  launch(exec, s);
  order(other, s);
  work(other, {reads(p, mib)});
  launch(exec, s);  // frees what `other` may still be reading
  machine->run_until_idle();
  EXPECT_THAT(hazards(), Contains(sim::hazard_kind::freed_in_use));
}

TEST_F(graph_memory_test, memory_freed_in_the_graph_is_gone_outside) {
  const CUstream s = stream();
  begin(s);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&p, mib, s), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  const CUgraphExec exec = executable(end(s));
  launch(exec, s);
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_ERROR_INVALID_VALUE);
  work(s, {reads(p, 16)});
  EXPECT_THAT(hazards(), ElementsAre(sim::hazard_kind::use_after_free));
}

TEST_F(graph_memory_test, memory_freed_by_the_host_is_gone_and_its_neighbour_is_not) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr kept = alloc_node(graph, 4096);
  const CUdeviceptr freed = alloc_node(graph, 4096);
  launch(executable(graph), s);
  wait_for(s);
  int is_managed = 9;
  EXPECT_EQ(cuda.pointer_get_attribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, freed),
            CUDA_SUCCESS);
  EXPECT_EQ(is_managed, 0);
  EXPECT_EQ(cuda.mem_free(freed), CUDA_SUCCESS);
  work(s, {writes(kept, 4096)});
  EXPECT_THAT(hazards(), IsEmpty());
  work(s, {reads(freed, 16)});
  EXPECT_THAT(hazards(), ElementsAre(sim::hazard_kind::use_after_free));
}

TEST_F(graph_memory_test, a_branch_that_does_not_wait_for_the_allocation_races_with_it) {
  const CUstream a = stream();
  const CUstream b = stream();
  begin(a);
  order(b, a);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&p, mib, a), CUDA_SUCCESS);
  work(b, {writes(p, mib)});
  order(a, b);
  ASSERT_EQ(cuda.mem_free_async(p, a), CUDA_SUCCESS);
  launch(executable(end(a)), a);
  wait_for(a);
  EXPECT_THAT(hazards(), ElementsAre(sim::hazard_kind::race));
}

TEST_F(graph_memory_test, one_graph_can_free_what_another_allocates) {
  const CUstream s = stream();
  const CUgraph making = empty_graph();
  const CUgraph freeing = empty_graph();
  const CUdeviceptr p = alloc_node(making, mib);
  CUgraphNode node = nullptr;
  ASSERT_EQ(cuda.graph_add_mem_free_node(&node, freeing, nullptr, 0, p), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, making, nullptr, 0, p), CUDA_ERROR_INVALID_VALUE);
  const CUgraphExec make = executable(making);
  const CUgraphExec free = executable(freeing);
  EXPECT_EQ(cuda.graph_launch(free, s), CUDA_ERROR_INVALID_VALUE);  // nothing to free yet
  for (int i = 0; i < 2; ++i) {
    launch(make, s);
    launch(free, s);
  }
  wait_for(s);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, a_graph_with_memory_has_one_executable_at_a_time) {
  const CUgraph graph = empty_graph();
  alloc_node(graph, mib);
  const CUgraphExec first = executable(graph);
  CUgraphExec second = nullptr;
  EXPECT_EQ(cuda.graph_instantiate(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuda.graph_exec_destroy(first), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_instantiate(&second, graph, 0), CUDA_SUCCESS);
}

TEST_F(graph_memory_test, what_was_freed_outside_gets_no_free_node_inside) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  CUgraphNode alloc = nullptr;
  CUgraphNode node = nullptr;
  const CUdeviceptr p = alloc_node(graph, mib, &alloc);
  launch(executable(graph), s);
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, p), CUDA_ERROR_INVALID_VALUE);
  wait_for(s);
}

TEST_F(graph_memory_test, small_allocations_share_a_unit_without_sharing_bytes) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr a = alloc_node(graph, 700);
  const CUdeviceptr b = alloc_node(graph, mib);
  const CUdeviceptr c = alloc_node(graph, 31 * mib);  // does not fit behind the others
  EXPECT_EQ(b, a + 1024);
  EXPECT_TRUE(c < a || c >= a + pool_unit);
  launch(executable(graph), s);
  work(s, {writes(a, 700), writes(b, mib), writes(c, 31 * mib)});
  wait_for(s);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 2 * pool_unit);
  EXPECT_EQ(cuda.mem_free_async(a, s), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free_async(c, s), CUDA_SUCCESS);
  wait_for(s);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);  // b is still there
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), pool_unit);
  work(s, {reads(b, mib)});
  EXPECT_THAT(hazards(), IsEmpty());
  work(s, {reads(a, 700)});
  EXPECT_THAT(hazards(), ElementsAre(sim::hazard_kind::use_after_free));
}

TEST_F(graph_memory_test, a_trim_leaves_pages_that_the_free_of_one_stream_still_needs) {
  const CUstream slow = stream();
  const CUstream quick = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr a = alloc_node(graph, mib);
  const CUdeviceptr b = alloc_node(graph, mib);
  launch(executable(graph), quick);
  wait_for(quick);
  machine->hold(slow);
  EXPECT_EQ(cuda.mem_free_async(a, slow), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_free_async(b, quick), CUDA_SUCCESS);
  wait_for(quick);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), pool_unit);
  machine->release(slow);
  wait_for(slow);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, an_allocation_may_take_all_that_is_left_of_a_unit) {
  const CUgraph graph = empty_graph();
  const CUdeviceptr a = alloc_node(graph, mib);
  EXPECT_EQ(alloc_node(graph, 31 * mib), a + mib);
  const CUdeviceptr c = alloc_node(graph, 1);
  EXPECT_TRUE(c < a || c >= a + pool_unit) << "nothing is left";
}

TEST_F(graph_memory_test, pages_of_destroyed_graphs_are_cached_and_used_again) {
  const CUstream s = stream();
  for (int i = 0; i < 3; ++i) {
    begin(s);
    CUdeviceptr p = 0;
    ASSERT_EQ(cuda.mem_alloc_async(&p, mib, s), CUDA_SUCCESS);
    work(s, {writes(p, mib)});
    ASSERT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
    const CUgraph graph = end(s);
    const CUgraphExec exec = executable(graph);
    launch(exec, s);
    wait_for(s);
    EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
    EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), pool_unit);
  }
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, pages_of_a_destroyed_graph_stay_until_its_launch_is_through) {
  const CUstream s = stream();
  begin(s);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuda.mem_alloc_async(&p, mib, s), CUDA_SUCCESS);
  work(s, {writes(p, mib)});
  ASSERT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  const CUgraph graph = end(s);
  const CUgraphExec exec = executable(graph);
  machine->hold(s);
  launch(exec, s);
  EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), pool_unit);
  machine->release(s);
  wait_for(s);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, what_is_not_freed_outlives_its_graph) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr p = alloc_node(graph, mib);
  const CUgraphExec exec = executable(graph);
  launch(exec, s);
  wait_for(s);
  EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  work(s, {writes(p, mib)});
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  wait_for(s);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.device_graph_mem_trim(0), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
}

TEST_F(graph_memory_test, the_end_of_one_graph_leaves_the_nodes_of_another) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  const CUgraph other = empty_graph();
  const CUdeviceptr p = alloc_node(graph, mib);
  const CUdeviceptr q = alloc_node(other, mib);
  EXPECT_EQ(cuda.graph_destroy(other), CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  EXPECT_EQ(cuda.graph_add_mem_free_node(&node, graph, nullptr, 0, q), CUDA_ERROR_INVALID_VALUE)
      << "nobody has it any more";
  launch(executable(graph), s);
  work(s, {writes(p, mib)});
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  wait_for(s);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, addresses_are_given_back_with_the_graph) {
  constexpr std::size_t gib = 1024 * mib;
  const std::uint64_t before = testing_support::mapped_bytes();
  const CUgraph graph = empty_graph();
  alloc_node(graph, 4 * gib);
  EXPECT_GE(testing_support::mapped_bytes(), before + 4 * gib);
  EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  EXPECT_LT(testing_support::mapped_bytes(), before + gib);
}

TEST_F(graph_memory_test, cached_pages_come_without_their_past) {
  const CUstream s = stream();
  const CUstream other = stream();
  const auto used_on = [&](CUstream on) {
    begin(on);
    CUdeviceptr p = 0;
    EXPECT_EQ(cuda.mem_alloc_async(&p, mib, on), CUDA_SUCCESS);
    work(on, {writes(p, mib)});
    EXPECT_EQ(cuda.mem_free_async(p, on), CUDA_SUCCESS);
    const CUgraph graph = end(on);
    const CUgraphExec exec = executable(graph);
    launch(exec, on);
    machine->run_until_idle();  // nobody waits, so that nothing but the cache joins the streams
    EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
  };
  used_on(s);
  used_on(other);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), pool_unit) << "the same pages";
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_test, cached_pages_are_used_again_where_the_size_is_the_same) {
  const CUstream s = stream();
  const auto used_by_a_graph = [&](std::size_t size) {
    const CUgraph graph = empty_graph();
    CUgraphNode alloc = nullptr;
    CUgraphNode node = nullptr;
    const CUdeviceptr p = alloc_node(graph, size, &alloc);
    EXPECT_EQ(cuda.graph_add_mem_free_node(&node, graph, &alloc, 1, p), CUDA_SUCCESS);
    const CUgraphExec exec = executable(graph);
    launch(exec, s);
    wait_for(s);
    EXPECT_EQ(cuda.graph_exec_destroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(cuda.graph_destroy(graph), CUDA_SUCCESS);
    return graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  };
  EXPECT_EQ(used_by_a_graph(2 * pool_unit), 2 * pool_unit);
  EXPECT_EQ(used_by_a_graph(pool_unit), 3 * pool_unit);
  EXPECT_EQ(used_by_a_graph(2 * pool_unit), 3 * pool_unit);
  EXPECT_EQ(used_by_a_graph(pool_unit), 3 * pool_unit);
}

TEST_F(graph_memory_test, a_launch_that_does_not_fit_fails_and_leaves_the_graph_usable) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  const CUdeviceptr p = alloc_node(graph, 64 * mib);
  const CUgraphExec exec = executable(graph);
  const bytes capacity = machine->options().devices[0].capacity;
  machine->set_capacity(device_id{0}, machine->used(device_id{0}) + bytes{8 * mib});
  EXPECT_EQ(cuda.graph_launch(exec, s), CUDA_ERROR_OUT_OF_MEMORY);
  machine->set_capacity(device_id{0}, capacity);
  launch(exec, s);
  EXPECT_EQ(cuda.mem_free_async(p, s), CUDA_SUCCESS);
  wait_for(s);
}

TEST_F(graph_memory_test, a_reset_of_the_context_takes_everything_along) {
  const CUstream s = stream();
  const CUgraph graph = empty_graph();
  alloc_node(graph, mib);
  const CUgraphExec exec = executable(graph);
  launch(exec, s);
  begin(stream());
  EXPECT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_EQ(cuda.graph_launch(exec, stream()), CUDA_ERROR_INVALID_VALUE);
  memory(512);  // nothing is captured any more, so nothing is forbidden
}

class graph_memory_of_two : public graph_fixture {
 protected:
  graph_memory_of_two() : graph_fixture{two_devices()} {
    EXPECT_EQ(cuda.device_primary_ctx_retain(&other_context, 1), CUDA_SUCCESS);
  }
  static sim::machine_options two_devices() {
    sim::machine_options options;
    options.devices.resize(2);
    for (auto& spec : options.devices) spec.context_overhead = bytes{};
    return options;
  }
  void use(CUcontext now) { EXPECT_EQ(cuda.ctx_set_current(now), CUDA_SUCCESS); }
  /// Memory of `device` that a graph made and that stays until somebody frees it.
  CUdeviceptr made_by_a_graph(int device, CUstream on) {
    const CUgraph graph = empty_graph();
    auto wanted = wanting(mib);
    wanted.poolProps.location.id = device;
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuda.graph_add_mem_alloc_node(&node, graph, nullptr, 0, &wanted), CUDA_SUCCESS);
    launch(executable(graph), on);
    wait_for(on);
    return wanted.dptr;
  }
  std::uint64_t reserved(int device) {
    std::uint64_t found = ~std::uint64_t{0};
    EXPECT_EQ(
        cuda.device_get_graph_mem_attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &found),
        CUDA_SUCCESS);
    return found;
  }

  CUcontext other_context = nullptr;
};

TEST_F(graph_memory_of_two, a_reset_leaves_the_other_device_alone) {
  const CUdeviceptr here = made_by_a_graph(0, stream());
  use(other_context);
  const CUstream other = stream();
  const CUdeviceptr there = made_by_a_graph(1, other);
  ASSERT_EQ(machine->used(device_id{0}), bytes{pool_unit});
  ASSERT_EQ(machine->used(device_id{1}), bytes{pool_unit});

  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_EQ(machine->used(device_id{0}), bytes{});
  EXPECT_EQ(reserved(0), 0u);
  EXPECT_EQ(cuda.mem_free_async(here, other), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(machine->used(device_id{1}), bytes{pool_unit});
  EXPECT_EQ(reserved(1), pool_unit);
  work(other, {writes(there, mib)});
  EXPECT_EQ(cuda.device_graph_mem_trim(1), CUDA_SUCCESS);
  EXPECT_EQ(reserved(1), pool_unit) << "still in use";
  EXPECT_EQ(cuda.mem_free_async(there, other), CUDA_SUCCESS);
  wait_for(other);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_of_two, a_unit_is_of_one_graph_and_one_device_with_the_same_rights) {
  const auto made = [&](CUgraph in, int device, std::vector<CUmemAccessDesc> also_for = {}) {
    auto wanted = wanting(mib);
    wanted.poolProps.location.id = device;
    wanted.accessDescs = also_for.data();
    wanted.accessDescCount = also_for.size();
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuda.graph_add_mem_alloc_node(&node, in, nullptr, 0, &wanted), CUDA_SUCCESS);
    return wanted.dptr;
  };
  const CUgraph graph = empty_graph();
  const CUdeviceptr first = made(graph, 0);
  const CUmemAccessDesc other{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const auto is_next_to_it = [&](CUdeviceptr p) { return p >= first && p < first + pool_unit; };
  EXPECT_FALSE(is_next_to_it(made(empty_graph(), 0)));
  EXPECT_FALSE(is_next_to_it(made(graph, 1)));
  EXPECT_FALSE(is_next_to_it(made(graph, 0, {other})));
  EXPECT_EQ(made(graph, 0), first + mib);
}

// Peers have no access to each other here: work on the wrong device would be a fault.
TEST_F(graph_memory_of_two, captured_work_is_done_by_its_streams_device) {
  const CUstream here = stream();
  const CUdeviceptr of_here = memory(mib);
  use(other_context);
  const CUstream there = stream();
  const CUdeviceptr of_there = memory(mib);
  const CUevent mark = event();
  std::string order;
  use(context);
  begin(here);
  work(here, {writes(of_here, mib)}, [&] { order += 'a'; });
  graph_fixture::order(there, here);
  work(there, {writes(of_there, mib)}, [&] { order += 'b'; });
  use(other_context);
  ASSERT_EQ(cuda.event_record(mark, there), CUDA_SUCCESS);
  use(context);
  ASSERT_EQ(cuda.stream_wait_event(here, mark, 0), CUDA_SUCCESS);
  work(here, {reads(of_here, mib)}, [&] { order += 'c'; });
  launch(executable(end(here)), here);
  wait_for(here);
  EXPECT_EQ(order, "abc");
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(graph_memory_of_two, a_captured_allocation_has_the_rights_of_its_pool_then) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuda.device_get_mem_pool(&pool, 0), CUDA_SUCCESS);
  CUmemAccessDesc peer{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(cuda.mem_pool_set_access(pool, &peer, 1), CUDA_SUCCESS);
  use(other_context);
  const CUstream there = stream();
  const auto captured = [&] {
    begin(there);
    CUdeviceptr p = 0;
    EXPECT_EQ(cuda.mem_alloc_from_pool_async(&p, mib, pool, there), CUDA_SUCCESS);
    work(there, {writes(p, mib)});
    EXPECT_EQ(cuda.mem_free_async(p, there), CUDA_SUCCESS);
    return executable(end(there));
  };
  const CUgraphExec exec = captured();
  peer.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  ASSERT_EQ(cuda.mem_pool_set_access(pool, &peer, 1), CUDA_SUCCESS);
  launch(exec, there);
  wait_for(there);
  EXPECT_THAT(hazards(), IsEmpty()) << "what the pool grants later changes nothing";
  launch(captured(), there);
  EXPECT_THAT(hazards(), ElementsAre(sim::hazard_kind::bad_access));
}

TEST_F(graph_memory_of_two, a_trim_is_of_one_device) {
  const CUstream s = stream();
  const CUdeviceptr here = made_by_a_graph(0, s);
  EXPECT_EQ(cuda.mem_free_async(here, s), CUDA_SUCCESS);
  wait_for(s);
  use(other_context);
  const CUstream other = stream();
  const CUdeviceptr there = made_by_a_graph(1, other);
  EXPECT_EQ(cuda.mem_free_async(there, other), CUDA_SUCCESS);
  wait_for(other);
  EXPECT_EQ(reserved(0), pool_unit);
  EXPECT_EQ(reserved(1), pool_unit);
  EXPECT_EQ(cuda.device_graph_mem_trim(1), CUDA_SUCCESS);
  EXPECT_EQ(reserved(0), pool_unit);
  EXPECT_EQ(reserved(1), 0u);
  EXPECT_EQ(machine->used(device_id{0}), bytes{pool_unit});
  EXPECT_EQ(machine->used(device_id{1}), bytes{});
}

TEST_F(graph_memory_of_two, devices_share_no_unit_though_both_may_use_it) {
  const CUgraph graph = empty_graph();
  for (const int device : {0, 1}) {
    auto wanted = wanting(mib);
    wanted.poolProps.location.id = device;
    const CUmemAccessDesc peer{{CU_MEM_LOCATION_TYPE_DEVICE, 1 - device},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    wanted.accessDescs = &peer;
    wanted.accessDescCount = 1;
    CUgraphNode node = nullptr;
    ASSERT_EQ(cuda.graph_add_mem_alloc_node(&node, graph, nullptr, 0, &wanted), CUDA_SUCCESS);
  }
  launch(executable(graph), stream());
  EXPECT_EQ(reserved(0), pool_unit);
  EXPECT_EQ(reserved(1), pool_unit);
}

}  // namespace
}  // namespace weir::sim_tests

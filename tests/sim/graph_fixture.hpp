// SPDX-License-Identifier: Apache-2.0
// What the tests of captures, graphs and modules share: a machine with a current context.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/sizes.hpp"
#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace weir::sim_tests {

using namespace driver;  // NOLINT(google-build-using-namespace): the calls under test
using sim::reads;
using sim::writes;

using testing_support::mib;

class graph_fixture : public ::testing::Test {
 protected:
  explicit graph_fixture(sim::machine_options options = {})
      : machine{sim::machine::create(std::move(options)).value()}, cuda{machine->driver()} {
    EXPECT_EQ(cuda.init(0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  }

  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream made = nullptr;
    EXPECT_EQ(cuda.stream_create(&made, flags), CUDA_SUCCESS);
    return made;
  }
  CUevent event() {
    CUevent made = nullptr;
    EXPECT_EQ(cuda.event_create(&made, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return made;
  }
  CUdeviceptr memory(std::size_t bytes) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda.mem_alloc(&made, bytes), CUDA_SUCCESS);
    return made;
  }
  void work(CUstream on, std::vector<sim::access> accesses = {}, std::function<void()> body = {}) {
    const auto queued = machine->launch(on, "work", std::move(accesses), std::move(body));
    EXPECT_TRUE(queued.has_value());
  }
  CUresult try_work(CUstream on) {
    const auto queued = machine->launch(on, "work", {});
    return queued ? CUDA_SUCCESS : static_cast<CUresult>(queued.error().native());
  }
  /// What `on` does from now on comes after what `other` has been given so far.
  void order(CUstream on, CUstream other) {
    CUevent mark = event();
    EXPECT_EQ(cuda.event_record(mark, other), CUDA_SUCCESS);
    EXPECT_EQ(cuda.stream_wait_event(on, mark, 0), CUDA_SUCCESS);
  }
  CUstreamCaptureStatus status(CUstream of) {
    CUstreamCaptureStatus found{};
    EXPECT_EQ(cuda.stream_is_capturing(of, &found), CUDA_SUCCESS);
    return found;
  }
  void begin(CUstream on, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    EXPECT_EQ(cuda.stream_begin_capture(on, mode), CUDA_SUCCESS);
  }
  CUgraph end(CUstream on) {
    CUgraph made = nullptr;
    EXPECT_EQ(cuda.stream_end_capture(on, &made), CUDA_SUCCESS);
    EXPECT_NE(made, nullptr);
    return made;
  }
  /// Ends a capture that cannot succeed.
  CUresult failing_end(CUstream on) {
    CUgraph made = reinterpret_cast<CUgraph>(std::uintptr_t{1});
    const CUresult answer = cuda.stream_end_capture(on, &made);
    EXPECT_EQ(made, nullptr);
    return answer;
  }
  CUgraphExec executable(CUgraph of, unsigned long long flags = 0) {
    CUgraphExec made = nullptr;
    EXPECT_EQ(cuda.graph_instantiate(&made, of, flags), CUDA_SUCCESS);
    return made;
  }
  std::vector<CUgraphNode> nodes(CUgraph of) {
    std::size_t count = 0;
    EXPECT_EQ(cuda.graph_get_nodes(of, nullptr, &count), CUDA_SUCCESS);
    std::vector<CUgraphNode> found(count);
    EXPECT_EQ(cuda.graph_get_nodes(of, found.data(), &count), CUDA_SUCCESS);
    return found;
  }
  std::vector<std::pair<CUgraphNode, CUgraphNode>> edges(CUgraph of) {
    std::size_t count = 0;
    EXPECT_EQ(cuda.graph_get_edges(of, nullptr, nullptr, &count), CUDA_SUCCESS);
    std::vector<CUgraphNode> from(count);
    std::vector<CUgraphNode> to(count);
    EXPECT_EQ(cuda.graph_get_edges(of, from.data(), to.data(), &count), CUDA_SUCCESS);
    std::vector<std::pair<CUgraphNode, CUgraphNode>> found;
    for (std::size_t i = 0; i < count; ++i) found.emplace_back(from[i], to[i]);
    return found;
  }
  CUgraphNodeType type_of(CUgraphNode node) {
    CUgraphNodeType found{};
    EXPECT_EQ(cuda.graph_node_get_type(node, &found), CUDA_SUCCESS);
    return found;
  }
  std::uint64_t graph_memory(CUgraphMem_attribute which) {
    std::uint64_t found = ~std::uint64_t{0};
    EXPECT_EQ(cuda.device_get_graph_mem_attribute(0, which, &found), CUDA_SUCCESS);
    return found;
  }
  CUgraph empty_graph() {
    CUgraph made = nullptr;
    EXPECT_EQ(cuda.graph_create(&made, 0), CUDA_SUCCESS);
    return made;
  }
  CUgraphNode empty_node(CUgraph to, std::vector<CUgraphNode> after = {}) {
    CUgraphNode made = nullptr;
    EXPECT_EQ(cuda.graph_add_empty_node(&made, to, after.data(), after.size()), CUDA_SUCCESS);
    return made;
  }
  static CUDA_MEM_ALLOC_NODE_PARAMS wanting(std::size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    wanted.bytesize = bytes;
    return wanted;
  }
  CUdeviceptr alloc_node(CUgraph to, std::size_t bytes, CUgraphNode* node = nullptr) {
    auto wanted = wanting(bytes);
    CUgraphNode made = nullptr;
    EXPECT_EQ(cuda.graph_add_mem_alloc_node(&made, to, nullptr, 0, &wanted), CUDA_SUCCESS);
    if (node != nullptr) *node = made;
    return wanted.dptr;
  }
  void launch(CUgraphExec exec, CUstream on) {
    EXPECT_EQ(cuda.graph_launch(exec, on), CUDA_SUCCESS);
  }
  std::vector<sim::hazard_kind> hazards() {
    std::vector<sim::hazard_kind> kinds;
    for (const auto& found : machine->hazards()) kinds.push_back(found.kind);
    return kinds;
  }
  void wait_for(CUstream on) { EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS); }

  std::shared_ptr<sim::machine> machine;
  const driver::table& cuda;
  CUcontext context = nullptr;
};

}  // namespace weir::sim_tests

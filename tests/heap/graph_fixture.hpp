// SPDX-License-Identifier: Apache-2.0
// What tests of captured graphs do with the driver.
#pragma once

#include "heap/heap_fixture.hpp"

namespace weir::testing_support {

/// Captures on the simulated GPU.
class graph_test : public heap_test {
 protected:
  void begin(const stream& on,
             driver::CUstreamCaptureMode mode = driver::CU_STREAM_CAPTURE_MODE_GLOBAL) {
    const context_scope bound{gpu()};
    ASSERT_EQ(cuda().stream_begin_capture(on.handle(), mode), driver::CUDA_SUCCESS);
  }
  [[nodiscard]] driver::CUgraph end(const stream& on) {
    const context_scope bound{gpu()};
    driver::CUgraph graph = nullptr;
    EXPECT_EQ(cuda().stream_end_capture(on.handle(), &graph), driver::CUDA_SUCCESS);
    EXPECT_NE(graph, nullptr);
    return graph;
  }
  [[nodiscard]] driver::CUgraphExec instantiate(driver::CUgraph graph) {
    const context_scope bound{gpu()};
    driver::CUgraphExec made = nullptr;
    EXPECT_EQ(cuda().graph_instantiate(&made, graph, 0), driver::CUDA_SUCCESS);
    return made;
  }
  void launch(driver::CUgraphExec graph, const stream& on) {
    const context_scope bound{gpu()};
    ASSERT_EQ(cuda().graph_launch(graph, on.handle()), driver::CUDA_SUCCESS);
  }
  void destroy(driver::CUgraph graph) {
    const context_scope bound{gpu()};
    ASSERT_EQ(cuda().graph_destroy(graph), driver::CUDA_SUCCESS);
  }
  void destroy(driver::CUgraphExec graph) {
    const context_scope bound{gpu()};
    ASSERT_EQ(cuda().graph_exec_destroy(graph), driver::CUDA_SUCCESS);
  }
  [[nodiscard]] const driver::table& cuda() const { return machine->driver(); }
};

}  // namespace weir::testing_support

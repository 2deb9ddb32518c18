// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: captures stay valid whatever the allocator does beside them, and what
// a graph uses stays where it is.
#include <array>
#include <chrono>
#include <thread>

#include "allocator_contract/players.hpp"

namespace weir::testing_support { namespace {

class captures : public allocator_test {
 protected:
  enum class captured_stream { of_weir, non_blocking, blocking, per_thread };
  static constexpr std::array kinds{captured_stream::of_weir, captured_stream::non_blocking,
                                    captured_stream::blocking, captured_stream::per_thread};
  static constexpr std::array modes{CU_STREAM_CAPTURE_MODE_GLOBAL,
                                    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                    CU_STREAM_CAPTURE_MODE_RELAXED};

  [[nodiscard]] CUstream stream_of(captured_stream kind, const lane& own) {
    CUstream made = nullptr;
    switch (kind) {
      case captured_stream::of_weir:
        return own.handle();
      case captured_stream::per_thread:
        return driver::per_thread_stream();
      case captured_stream::non_blocking:
        EXPECT_EQ(cu->stream_create(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        return made;
      case captured_stream::blocking:
        EXPECT_EQ(cu->stream_create(&made, CU_STREAM_DEFAULT), CUDA_SUCCESS);
        return made;
    }
    return made;
  }
  void destroy(captured_stream kind, CUstream stream) {
    if (kind == captured_stream::of_weir || kind == captured_stream::per_thread) return;
    WEIR_OK(cu->stream_destroy(stream));
  }

  /// Everything that may wait, unmap or look at streams, beside somebody's capture.
  void disturb(const lane& on, const lane& other) {
    const filled_block kept = make(3_MiB, on);
    WEIR_OK(spin(std::chrono::microseconds{200}, other.handle()));
    finish(make(24_MiB, other), other);
    const filled_block shared = make(2_MiB, on);
    EXPECT_TRUE(memory().record_stream(shared.memory, other));
    finish(shared, on);
    EXPECT_TRUE(memory().trim());
    EXPECT_TRUE(memory().empty_cache());
    EXPECT_TRUE(memory().shrink(0_B));
    {
      auto brief = caching_allocator::create(where(), {.policy = policy()}).value();
      const auto gone = stream::create(where()).value();
      void* const block = brief.allocate(20_MiB, gone);
      WEIR_OK(spin(std::chrono::microseconds{200}, gone.handle()));
      brief.deallocate(block, gone);
      EXPECT_TRUE(brief.close());
    }
    {
      const auto pool = memory().create_pool("brief").value();
      memory().deallocate(pool.allocate(4_MiB, other), other);
      EXPECT_TRUE(pool.empty_cache());
    }
    std::thread{[&] {
      const context_scope bound{where()};
      const stream_ref own = stream_ref::per_thread(where());
      const auto block = memory().try_allocate(1_MiB, own);
      // Nothing can be learned about this thread's default stream while it is part of a capture.
      if (block) memory().deallocate(*block, own);
    }}.join();
    EXPECT_TRUE(memory().empty_cache());
    finish(kept, on);
  }
};
WEIR_ALLOCATOR_CONTRACT(captures);

TEST_P(captures, nothing_that_the_allocator_does_breaks_a_capture) {
  lane& own = new_lane();
  lane& on = new_lane();
  lane& other = new_lane();
  for (const captured_stream kind : kinds) {
    for (const CUstreamCaptureMode mode : modes) {
      SCOPED_TRACE(std::to_string(static_cast<int>(kind)) + " mode " + std::to_string(mode));
      const CUstream captured = stream_of(kind, own);
      WEIR_OK(cu->stream_begin_capture(captured, mode));
      disturb(on, other);
      if (!is_classic()) {
        // Refused where the capture can be seen, and harmless where it cannot.
        const auto suspended = memory().suspend();
        EXPECT_EQ(suspended ? errc::capture_forbidden : suspended.code(), errc::capture_forbidden);
        EXPECT_TRUE(memory().resume());
      }
      CUgraph graph = nullptr;
      EXPECT_EQ(cu->stream_end_capture(captured, &graph), CUDA_SUCCESS) << "the capture was broken";
      EXPECT_TRUE(graph == nullptr || cu->graph_destroy(graph) == CUDA_SUCCESS);
      destroy(kind, captured);
    }
  }
}

/// A block that grows inside a capture must not take the place of one that the graph writes.
TEST_P(captures, memory_of_a_graph_is_never_moved) {
  if (is_classic()) GTEST_SKIP() << "segments cannot be suspended";
  WEIR_NEEDS(graph_instantiate);
  WEIR_NEEDS(user_object_create);
  lane& on = new_lane();
  auto claim = memory().begin_capture(on).value();
  WEIR_OK(cu->stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  const filled_block first = make(20_MiB, on);
  const filled_block beside = make(2_MiB, on);
  finish(first, on);
  const filled_block larger = make(40_MiB, on);
  finish(larger, on);
  finish(beside, on);
  CUgraph graph = nullptr;
  WEIR_OK(cu->stream_end_capture(on.handle(), &graph));
  claim.end_capture();
  CUgraphExec exec = nullptr;
  WEIR_OK(cu->graph_instantiate(&exec, graph, 0));
  EXPECT_EQ(memory().stats().handles_moved, 0U);
  for (int replay = 0; replay < 3; ++replay) {
    WEIR_OK(cu->graph_launch(exec, on.handle()));
    ASSERT_TRUE(memory().suspend());
    EXPECT_EQ(memory().stats().reserved.current, 0_B);
    ASSERT_TRUE(memory().resume());
  }
  WEIR_OK(cu->graph_launch(exec, on.handle()));
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_EQ(on.mismatches(), 0U);
  WEIR_OK(cu->graph_exec_destroy(exec));
  WEIR_OK(cu->graph_destroy(graph));
}

/// An ordinary pool may serve a capture. Other streams' memory in it cannot be waited for there.
TEST_P(captures, a_request_of_a_captured_stream_to_a_named_pool_queues_no_wait) {
  lane& busy = new_lane();
  lane& captured = new_lane();
  const auto pool = memory().create_pool("named").value();
  const filled_block freed{pool.allocate(40_MiB, busy), 40_MiB, new_value()};
  busy.fill(freed.memory, freed.size, freed.value);
  WEIR_OK(spin(std::chrono::milliseconds{2}, busy.handle()));
  finish(freed, busy);
  EXPECT_TRUE(memory().trim());  // marks what was freed
  WEIR_OK(cu->stream_begin_capture(captured.handle(), CU_STREAM_CAPTURE_MODE_RELAXED));
  void* const served = pool.allocate(64_MiB, captured);
  CUgraph graph = nullptr;
  EXPECT_EQ(cu->stream_end_capture(captured.handle(), &graph), CUDA_SUCCESS);
  std::size_t nodes = 99;
  if (cu->graph_get_nodes != nullptr) {
    WEIR_OK(cu->graph_get_nodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 0U);
  }
  WEIR_OK(cu->graph_destroy(graph));
  memory().deallocate(served, captured);
}

/// The work of a captured stream from before its capture, and of a stream that never named the
/// allocator, may still use what close() gives back.
TEST_P(captures, close_waits_for_work_that_may_use_the_memory) {
  lane& captured = new_lane();
  lane& undeclared = new_lane();
  auto brief = caching_allocator::create(where(), {.policy = policy()}).value();
  char* const block = static_cast<char*>(brief.allocate(16_MiB, captured));
  CUstream foreign = nullptr;
  WEIR_OK(cu->stream_create(&foreign, CU_STREAM_NON_BLOCKING));
  WEIR_OK(spin(std::chrono::milliseconds{5}, foreign));
  WEIR_OK(cu->memset_d32_async(reinterpret_cast<CUdeviceptr>(block), 7, 1 << 20, foreign));
  WEIR_OK(spin(std::chrono::milliseconds{5}, captured.handle()));
  captured.fill(block + (8 << 20), 8_MiB, 5);
  WEIR_OK(spin(std::chrono::milliseconds{5}, undeclared.handle()));
  undeclared.fill(block + (4 << 20), 1_MiB, 6);
  brief.deallocate(block, captured);
  WEIR_OK(cu->stream_begin_capture(captured.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_TRUE(brief.close());
  CUgraph graph = nullptr;
  EXPECT_EQ(cu->stream_end_capture(captured.handle(), &graph), CUDA_SUCCESS);
  WEIR_OK(cu->graph_destroy(graph));
  EXPECT_EQ(cu->ctx_synchronize(), CUDA_SUCCESS) << "a kernel lost its memory";
  WEIR_OK(cu->stream_destroy(foreign));
}

}  // namespace
}  // namespace weir::testing_support

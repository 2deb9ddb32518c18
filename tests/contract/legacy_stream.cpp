// SPDX-License-Identifier: Apache-2.0
// Contract: what the host waits for when it waits for the legacy stream.
#include <chrono>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

using std::chrono::milliseconds;

class legacy_stream_tests : public contract_test {
 protected:
  /// Queues work on `stream` that takes a while and then writes `value` to `marker`.
  void queue_marker(CUstream stream, word* marker, word value) {
    EXPECT_EQ(CUDA_SUCCESS, spin(milliseconds{20}, stream));
    EXPECT_EQ(CUDA_SUCCESS, fill(reinterpret_cast<std::uintptr_t>(marker), value, 1, stream));
  }
};
WEIR_CONTRACT(legacy_stream_tests);

TEST_P(legacy_stream_tests, SynchronizeWaitsForBlockingStreams) {
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  volatile word* const markers = new_pinned(64);
  queue_marker(blocking, const_cast<word*>(markers), 5);
  WEIR_OK(cu->stream_synchronize(nullptr));
  EXPECT_EQ(5u, markers[0]);
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(blocking));
}

TEST_P(legacy_stream_tests, SynchronizeWaitsForThePerThreadStream) {
  volatile word* const markers = new_pinned(64);
  queue_marker(per_thread_stream(), const_cast<word*>(markers), 6);
  WEIR_OK(cu->stream_synchronize(legacy_stream()));
  EXPECT_EQ(6u, markers[0]);
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(per_thread_stream()));
}

TEST_P(legacy_stream_tests, SynchronizeWaitsForNoNonBlockingStream) {
  const CUstream free_one = new_stream(CU_STREAM_NON_BLOCKING);
  auto held = occupy(free_one);
  WEIR_OK(cu->stream_synchronize(nullptr));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(free_one));
  held->finish();
  WEIR_OK(cu->stream_synchronize(free_one));
}

TEST_P(legacy_stream_tests, QueryIsNotReadyWhileABlockingStreamIsBusy) {
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  auto held = occupy(blocking);
  EXPECT_TRUE(stays_busy(nullptr));
  held->finish();
  WEIR_OK(cu->stream_synchronize(blocking));
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(nullptr));
}

}  // namespace
}  // namespace weir::testing_support

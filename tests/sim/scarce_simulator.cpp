// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out inside the simulator: the call fails, and nothing else does.
#include <functional>
#include <string>

#include "memory_fixture.hpp"
#include "support/scarce_memory.hpp"

namespace weir::sim_tests { namespace {

using testing_support::scarce_memory;

class scarce_simulator : public memory_fixture {
 protected:
  scarce_simulator() : memory_fixture{small_machine(64 * mib)} {}

  /// Makes the call with one of its host allocations after the other failing, each time on another
  /// stream. Afterwards the stream does its work, and the device can be waited for.
  void sweep(const std::function<CUresult(CUstream)>& call) {
    bool failed = true;
    for (long enough = 0; failed; ++enough) {
      ASSERT_LT(enough, 1000);
      SCOPED_TRACE("after " + std::to_string(enough) + " allocations");
      const CUstream on = stream();
      CUresult answer = CUDA_SUCCESS;
      {
        const scarce_memory scarce{enough};
        answer = call(on);
        failed = scarce_memory::take_failure();
      }
      EXPECT_TRUE(answer == CUDA_SUCCESS || (failed && answer == CUDA_ERROR_OUT_OF_MEMORY))
          << answer;
      machine->run_until_idle();
      EXPECT_EQ(cuda.stream_query(on), CUDA_SUCCESS) << "what is queued gets its turn";
      EXPECT_EQ(cuda.memset_d8_async(memory, 1, 64, on), CUDA_SUCCESS);
      machine->run_until_idle();
      ASSERT_EQ(cuda.stream_query(on), CUDA_SUCCESS) << "and so does what is queued later";
      EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
      EXPECT_EQ(cuda.stream_destroy(on), CUDA_SUCCESS);
    }
  }

  CUdeviceptr memory = plain(4096);
};

TEST_F(scarce_simulator, AFillIsQueuedOrRefused) {
  sweep([&](CUstream on) { return cuda.memset_d8_async(memory, 0, 4096, on); });
}

TEST_F(scarce_simulator, ACopyIsQueuedOrRefused) {
  sweep([&](CUstream on) { return cuda.memcpy_dtod_async(memory, memory + 2048, 100, on); });
}

TEST_F(scarce_simulator, ARecordedEventIsQueuedOrRefused) {
  for (const unsigned flags : {CU_EVENT_DEFAULT, CU_EVENT_DISABLE_TIMING}) {
    CUevent event = nullptr;
    ASSERT_EQ(cuda.event_create(&event, flags), CUDA_SUCCESS);
    sweep([&](CUstream on) { return cuda.event_record(event, on); });
    EXPECT_EQ(cuda.event_destroy(event), CUDA_SUCCESS);
  }
}

TEST_F(scarce_simulator, AWaitForAnEventIsQueuedOrRefused) {
  CUevent event = nullptr;
  ASSERT_EQ(cuda.event_create(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  const CUstream busy = stream();
  sweep([&](CUstream on) {
    if (const CUresult answer = cuda.memset_d8_async(memory, 0, 64, busy)) return answer;
    if (const CUresult answer = cuda.event_record(event, busy)) return answer;
    return cuda.stream_wait_event(on, event, 0);
  });
}

TEST_F(scarce_simulator, PlainMemoryIsFreedOrCanBeFreedAgain) {
  sweep([&](CUstream) {
    CUdeviceptr made = 0;
    const CUresult answer = cuda.mem_alloc(&made, 4096);
    if (answer != CUDA_SUCCESS) return answer;
    const CUresult freed = cuda.mem_free(made);
    return freed == CUDA_SUCCESS ? freed : cuda.mem_free(made);
  });
}

}  // namespace
}  // namespace weir::sim_tests

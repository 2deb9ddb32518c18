// SPDX-License-Identifier: Apache-2.0
// Waiting for work that is behind a device which faulted: the calls answer instead of hanging.
#include <chrono>
#include <future>
#include <utility>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;

/// Two devices. Device 0 is about to fault, and `waiting`, a blocking stream of device 1, waits for
/// an event that was recorded behind the fault.
class faulted_peer : public memory_fixture {
 protected:
  faulted_peer() : memory_fixture{small_machine(64 * mib, 2)} {
    EXPECT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
    faulting = stream();
    mark = event();
    work(faulting, {writes(nowhere, 16)});
    EXPECT_EQ(cuda.event_record(mark, faulting), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
    EXPECT_EQ(cuda.stream_create(&waiting, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    work(waiting, {}, [this] { ++done; });
    EXPECT_EQ(cuda.stream_wait_event(waiting, mark, 0), CUDA_SUCCESS);
    work(waiting, {}, [this] { done += 10; });
  }

  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent made = nullptr;
    EXPECT_EQ(cuda.event_create(&made, flags), CUDA_SUCCESS);
    return made;
  }
  CUevent behind(CUstream on) {
    const CUevent made = event();
    EXPECT_EQ(cuda.event_record(made, on), CUDA_SUCCESS);
    return made;
  }
  /// What `call` answers in the context of device 1. A call that does not return within ten
  /// seconds is ended by shutting the machine down, so that the test fails instead of hanging.
  template <class Call>
  CUresult answer_of(Call call) {
    auto answer = std::async(std::launch::async, [&] {
      EXPECT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
      return call();
    });
    if (answer.wait_for(std::chrono::seconds{10}) == std::future_status::timeout) {
      machine->shut_down();
    }
    return answer.get();
  }

  CUcontext other = nullptr;
  CUstream faulting = nullptr;
  CUevent mark = nullptr;
  CUstream waiting = nullptr;
  int done = 0;
};

TEST_F(faulted_peer, SynchronizingTheStreamAnswersTheFault) {
  EXPECT_EQ(answer_of([&] { return cuda.stream_synchronize(waiting); }),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(done, 1) << "what was queued before the wait has happened, and nothing else";
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

TEST_F(faulted_peer, SynchronizingAnEventOfTheStreamAnswersTheFault) {
  const CUevent last = behind(waiting);
  EXPECT_EQ(answer_of([&] { return cuda.event_synchronize(last); }), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(faulted_peer, SynchronizingTheContextAnswersTheFault) {
  EXPECT_EQ(answer_of([&] { return cuda.ctx_synchronize(); }), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(faulted_peer, CallsThatWaitForTheDeviceAnswerTheFault) {
  const CUdeviceptr memory = plain(64);
  void* const host = pinned(64);
  char pageable[64] = {};
  EXPECT_EQ(answer_of([&] { return cuda.memcpy_dtoh(pageable, memory, 64); }),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(answer_of([&] { return cuda.mem_free(memory); }), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(answer_of([&] { return cuda.mem_free_host(host); }), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(faulted_peer, QueriesAnswerTheFaultOnceItHasHappened) {
  const CUevent last = behind(waiting);
  EXPECT_EQ(cuda.stream_query(waiting), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda.event_query(last), CUDA_ERROR_NOT_READY);
  machine->run_until_idle();
  EXPECT_EQ(cuda.stream_query(waiting), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.event_query(last), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.stream_query(stream()), CUDA_SUCCESS) << "device 1 itself is well";
}

TEST_F(faulted_peer, StreamsBehindTheWaitingStreamAnswerTheFaultToo) {
  const CUstream last = stream();
  ASSERT_EQ(cuda.stream_wait_event(last, behind(waiting), 0), CUDA_SUCCESS);
  EXPECT_EQ(answer_of([&] { return cuda.stream_synchronize(last); }), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(faulted_peer, AGraphThatWaitsForTheEventAnswersTheFault) {
  const CUstream captured = stream();
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuda.stream_begin_capture(captured, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_wait_event(captured, mark, CU_EVENT_WAIT_EXTERNAL), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_end_capture(captured, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuda.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.graph_launch(exec, captured), CUDA_SUCCESS);
  EXPECT_EQ(answer_of([&] { return cuda.stream_synchronize(captured); }),
            CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(faulted_peer, ALostDeviceIsAnsweredTheSameWay) {
  machine->lose_device(device_id{0});
  EXPECT_EQ(answer_of([&] { return cuda.stream_synchronize(waiting); }), CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(faulted_peer, InterprocessEventsAnswerTheFault) {
  const CUstream behind_it = stream();
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  const CUevent shared = event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  ASSERT_EQ(cuda.event_record(shared, faulting), CUDA_SUCCESS);
  EXPECT_EQ(cuda.event_query(shared), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuda.stream_wait_event(behind_it, shared, 0), CUDA_SUCCESS);
  EXPECT_EQ(answer_of([&] { return cuda.event_synchronize(shared); }), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(answer_of([&] { return cuda.stream_synchronize(behind_it); }),
            CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(faulted_peer, AResetOfTheFaultedDeviceLetsTheStreamGoOn) {
  EXPECT_EQ(answer_of([&] { return cuda.stream_synchronize(waiting); }),
            CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_EQ(answer_of([&] { return cuda.stream_synchronize(waiting); }), CUDA_SUCCESS);
  EXPECT_EQ(done, 11);
}

TEST_F(faulted_peer, AResetOfTheWaitingDeviceReturns) {
  machine->run_until_idle();
  EXPECT_EQ(answer_of([&] { return cuda.device_primary_ctx_reset(1); }), CUDA_SUCCESS);
  EXPECT_EQ(done, 1) << "what is behind the fault is given up";
}

}  // namespace
}  // namespace weir::sim_tests

// SPDX-License-Identifier: Apache-2.0
// Managed memory that is attached to streams or to the host, on a device without concurrent managed
// access.
#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class attachment : public memory_fixture {
 protected:
  explicit attachment(bool concurrent = false) : memory_fixture{options(concurrent)} {}
  static sim::machine_options options(bool concurrent) {
    auto wanted = small_machine(64 * mib);
    wanted.devices[0].concurrent_managed_access = concurrent;
    return wanted;
  }

  void attach(CUstream to, CUdeviceptr memory, unsigned flags) {
    EXPECT_EQ(cuda.stream_attach_mem_async(to, memory, 0, flags), CUDA_SUCCESS);
  }
  /// `behind` goes on after what is queued on `ahead` so far.
  void order(CUstream ahead, CUstream behind) {
    CUevent mark = nullptr;
    EXPECT_EQ(cuda.event_create(&mark, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(cuda.event_record(mark, ahead), CUDA_SUCCESS);
    EXPECT_EQ(cuda.stream_wait_event(behind, mark, 0), CUDA_SUCCESS);
  }
  void host_read(CUdeviceptr memory) { machine->host_read(at<void>(memory), 64); }

  CUstream on = stream();
};

// --- An attachment counts for the work behind it -------------------------------------------------

TEST_F(attachment, ToTheHostLeavesWorkThatWasQueuedBeforeAlone) {
  const CUdeviceptr memory = managed(4096);
  bool done = false;
  work(on, {writes(memory, 64)}, [&] { done = true; });
  attach(on, memory, CU_MEM_ATTACH_HOST);
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_TRUE(done);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, ToTheHostLeavesWorkOfAnotherStreamAloneThatIsInOrder) {
  const CUdeviceptr memory = managed(4096);
  const CUstream other = stream();
  work(other, {writes(memory, 64)});
  order(other, on);
  attach(on, memory, CU_MEM_ATTACH_HOST);
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_synchronize(other), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, ToTheHostUnderWorkOfAnotherStreamIsReported) {
  const CUdeviceptr memory = managed(4096);
  work(stream(), {writes(memory, 64)});
  attach(on, memory, CU_MEM_ATTACH_HOST);
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
  const sim::hazard reported = machine->hazards()[0];
  EXPECT_EQ(reported.first.label, "work");
  EXPECT_EQ(reported.second.label, "attach memory");
  EXPECT_EQ(reported.shared.address, memory);
}

TEST_F(attachment, ToTheHostRefusesTheWorkBehindIt) {
  const CUdeviceptr memory = managed(4096);
  attach(on, memory, CU_MEM_ATTACH_HOST);
  work(on, {writes(memory, 64)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(attachment, ToAllStreamsCountsForTheWorkBehindItBeforeItHasHappened) {
  const CUdeviceptr memory = managed(4096, CU_MEM_ATTACH_HOST);
  bool done = false;
  attach(on, memory, CU_MEM_ATTACH_GLOBAL);
  work(on, {writes(memory, 64)}, [&] { done = true; });
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_TRUE(done);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, GoesBackAndForthInOneStream) {
  const CUdeviceptr memory = managed(4096);
  int done = 0;
  for (int round = 0; round < 3; ++round) {
    work(on, {writes(memory, 64)}, [&] { ++done; });
    attach(on, memory, CU_MEM_ATTACH_HOST);
    attach(on, memory, CU_MEM_ATTACH_GLOBAL);
  }
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(done, 3);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, ToTheHostLeavesQueuedCopiesAndFillsAlone) {
  const CUdeviceptr memory = managed(4096);
  const CUdeviceptr from = plain(64);
  EXPECT_EQ(cuda.memset_d8_async(memory, 1, 64, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memcpy_dtod_async(memory + 64, from, 64, on), CUDA_SUCCESS);
  attach(on, memory, CU_MEM_ATTACH_HOST);
  EXPECT_EQ(cuda.memset_d8_async(memory, 1, 64, on), CUDA_ERROR_INVALID_VALUE)
      << "what comes behind the attachment is refused";
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, ToOneStreamIsReportedWhereAnotherStreamUsesTheMemory) {
  const CUdeviceptr memory = managed(4096);
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  const CUstream other = stream();
  work(other, {reads(memory + 128, 64)});
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
  EXPECT_EQ(machine->hazards()[0].shared.address, memory + 128);
  EXPECT_EQ(cuda.stream_synchronize(other), CUDA_SUCCESS) << "undefined, but not a fault";
  machine->clear_hazards();
  attach(on, memory, CU_MEM_ATTACH_GLOBAL);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(run(other, {reads(memory, 64)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, ToOneStreamCoversTheGraphsThatAreLaunchedOnIt) {
  const CUdeviceptr memory = managed(4096);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  ASSERT_EQ(cuda.stream_begin_capture(on, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  work(on, {writes(memory, 64)});
  ASSERT_EQ(cuda.stream_end_capture(on, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuda.graph_instantiate(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.graph_launch(exec, on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  ASSERT_EQ(cuda.graph_launch(exec, stream()), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

class concurrent_attachment : public attachment {
 protected:
  concurrent_attachment() : attachment{true} {}
};

TEST_F(concurrent_attachment, TakesNothingAway) {
  const CUdeviceptr memory = managed(4096);
  work(stream(), {reads(memory, 64)});
  attach(on, memory, CU_MEM_ATTACH_HOST);
  work(on, {reads(memory, 64)});
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  work(stream(), {reads(memory, 64)});
  EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

// --- The stream of an attachment ends ------------------------------------------------------------

TEST_F(attachment, ToAStreamThatIsDestroyedRevertsToThatOfTheAllocation) {
  const CUdeviceptr memory = managed(4096);
  const CUstream other = stream();
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  work(other, {});
  host_read(memory);
  EXPECT_THAT(hazards(), IsEmpty()) << "only the stream it is attached to matters";
  ASSERT_EQ(cuda.stream_destroy(on), CUDA_SUCCESS);
  host_read(memory);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access))
      << "attached to all streams, of which one is busy";
  machine->clear_hazards();
  ASSERT_EQ(cuda.stream_synchronize(other), CUDA_SUCCESS);
  host_read(memory);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, RevertsOnlyOnceTheWorkOfTheDestroyedStreamIsComplete) {
  const CUdeviceptr memory = managed(4096, CU_MEM_ATTACH_HOST);
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  bool done = false;
  work(on, {writes(memory, 64)}, [&] { done = true; });
  ASSERT_EQ(cuda.stream_destroy(on), CUDA_SUCCESS);
  host_read(memory);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race, hazard_kind::bad_access))
      << "it is the stream's until the stream has finished";
  machine->clear_hazards();
  machine->run_until_idle();
  EXPECT_TRUE(done);
  work(stream(), {});
  machine->host_write(at<void>(memory + 1024), 64);
  EXPECT_THAT(hazards(), IsEmpty()) << "it is the host's again, whatever the device does";
}

TEST_F(attachment, OfMemoryAllocatedForTheHostIsTheHostsAgainAfterTheStreamsEnd) {
  const CUdeviceptr memory = managed(4096, CU_MEM_ATTACH_HOST);
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  EXPECT_EQ(run(on, {writes(memory, 64)}), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_destroy(on), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {reads(memory, 64)}), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

TEST_F(attachment, MadeAfterTheStreamsEndBeganStays) {
  const CUdeviceptr memory = managed(4096);
  const CUstream other = stream();
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  order(on, other);
  ASSERT_EQ(cuda.stream_destroy(on), CUDA_SUCCESS);
  attach(other, memory, CU_MEM_ATTACH_SINGLE);
  machine->run_until_idle();
  work(stream(), {});
  host_read(memory);
  EXPECT_THAT(hazards(), IsEmpty()) << "attached to a stream that is idle";
}

TEST_F(attachment, OfOtherMemoryIsUntouchedByTheStreamsEnd) {
  const CUdeviceptr memory = managed(4096);
  const CUdeviceptr elsewhere = managed(4096);
  const CUstream other = stream();
  attach(on, memory, CU_MEM_ATTACH_SINGLE);
  attach(other, elsewhere, CU_MEM_ATTACH_SINGLE);
  ASSERT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_destroy(on), CUDA_SUCCESS);
  work(stream(), {});
  host_read(elsewhere);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(attachment, ToAllStreamsOutlivesTheStreamItWasQueuedOn) {
  const CUdeviceptr memory = managed(4096, CU_MEM_ATTACH_HOST);
  attach(on, memory, CU_MEM_ATTACH_GLOBAL);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_destroy(on), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(memory, 64)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

// --- Whom memory can be attached to --------------------------------------------------------------

TEST_F(attachment, ToTheLegacyStreamAloneIsRefusedByEitherOfItsHandles) {
  const CUdeviceptr memory = managed(4096);
  for (const CUstream legacy : {CUstream{nullptr}, legacy_stream()}) {
    EXPECT_EQ(cuda.stream_attach_mem_async(legacy, memory, 0, CU_MEM_ATTACH_SINGLE),
              CUDA_ERROR_INVALID_VALUE);
    attach(legacy, memory, CU_MEM_ATTACH_GLOBAL);
  }
  attach(per_thread_stream(), memory, CU_MEM_ATTACH_SINGLE);
  EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
}

}  // namespace
}  // namespace weir::sim_tests

// SPDX-License-Identifier: Apache-2.0
// What the host waits for, and learns, when it waits for the legacy stream or asks about it.
#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class legacy_wait : public memory_fixture {
 protected:
  legacy_wait() : memory_fixture{small_machine(64 * mib, 2)} {}

  CUstream blocking_stream() {
    CUstream made = nullptr;
    EXPECT_EQ(cuda.stream_create(&made, CU_STREAM_DEFAULT), CUDA_SUCCESS);
    return made;
  }
  /// Work on `on` that writes `memory`.
  void write(CUstream on) {
    work(on, {writes(to_address(memory), 64)}, [this] { ++done; });
  }
  static CUdeviceptr to_address(void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

  void* memory = pinned(64);
  int done = 0;
};

TEST_F(legacy_wait, SynchronizeWaitsForBlockingStreams) {
  write(blocking_stream());
  EXPECT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(done, 1);
  machine->host_read(memory, 64);
  EXPECT_THAT(hazards(), IsEmpty()) << "the host has waited for the write";
}

TEST_F(legacy_wait, SynchronizeWaitsForPerThreadStreams) {
  write(per_thread_stream());
  EXPECT_EQ(cuda.stream_synchronize(legacy_stream()), CUDA_SUCCESS);
  EXPECT_EQ(done, 1);
  machine->host_read(memory, 64);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(legacy_wait, SynchronizeCoversBlockingStreamsThatAreGone) {
  const CUstream gone = blocking_stream();
  write(gone);
  ASSERT_EQ(cuda.stream_destroy(gone), CUDA_SUCCESS);
  machine->run_until_idle();
  EXPECT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS);
  machine->host_read(memory, 64);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(legacy_wait, NeitherCoversNonBlockingStreamsThatAreGone) {
  const CUstream gone = stream();
  write(gone);
  ASSERT_EQ(cuda.stream_destroy(gone), CUDA_SUCCESS);
  machine->run_until_idle();
  EXPECT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_SUCCESS);
  machine->host_read(memory, 64);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(legacy_wait, QueryCoversBlockingStreamsThatAreGone) {
  const CUstream gone = blocking_stream();
  write(gone);
  ASSERT_EQ(cuda.stream_destroy(gone), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_ERROR_NOT_READY) << "its work is not done yet";
  machine->run_until_idle();
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_SUCCESS);
  machine->host_read(memory, 64);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(legacy_wait, SynchronizeWaitsForNoNonBlockingStream) {
  write(stream());
  EXPECT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(done, 0);
  machine->run_until_idle();
  EXPECT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS);
  machine->host_read(memory, 64);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race)) << "the host has not waited for it";
}

TEST_F(legacy_wait, SynchronizeWaitsForNoStreamOfAnotherDevice) {
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  write(blocking_stream());
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_synchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(done, 0);
}

TEST_F(legacy_wait, QueryIsNotReadyWhileABlockingStreamIsBusy) {
  const CUstream busy = blocking_stream();
  write(busy);
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda.stream_query(legacy_stream()), CUDA_ERROR_NOT_READY);
  machine->run_until_idle();
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_SUCCESS);
  machine->host_read(memory, 64);
  EXPECT_THAT(hazards(), IsEmpty()) << "the answer says that the write is complete";
}

TEST_F(legacy_wait, QueryIgnoresNonBlockingStreams) {
  write(stream());
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(done, 0);
}

TEST_F(legacy_wait, ABlockingStreamThatFaultsIsAnsweredByBoth) {
  work(blocking_stream(), {writes(nowhere, 16)});
  EXPECT_EQ(cuda.stream_synchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuda.stream_query(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace weir::sim_tests

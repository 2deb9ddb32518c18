// SPDX-License-Identifier: Apache-2.0
// Waiting for values in memory and writing them, where the memory cannot be used.
#include <cstdint>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

/// A machine with a mapping that nobody may use yet.
class flags_in_memory : public memory_fixture {
 protected:
  explicit flags_in_memory(sim::machine_options options = small_machine(64 * mib))
      : memory_fixture{std::move(options)} {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuda.mem_create(&handle, unit, &properties, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_address_reserve(&mapping, unit, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_map(mapping, unit, 0, handle, 0), CUDA_SUCCESS);
  }
  void grant(CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
    EXPECT_EQ(cuda.mem_set_access(mapping, unit, &access, 1), CUDA_SUCCESS);
  }
  CUresult wait_for(CUdeviceptr flag, std::uint32_t value) {
    const CUstream on = stream();
    EXPECT_EQ(cuda.stream_wait_value32(on, flag, value, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
    return cuda.stream_synchronize(on);
  }
  CUresult write(CUdeviceptr flag, std::uint32_t value) {
    const CUstream on = stream();
    EXPECT_EQ(cuda.stream_write_value32(on, flag, value, 0), CUDA_SUCCESS);
    return cuda.stream_synchronize(on);
  }

  CUdeviceptr mapping = 0;
};

class flags_in_unbacked_memory : public flags_in_memory {
 protected:
  flags_in_unbacked_memory()
      : flags_in_memory{[] {
          auto options = small_machine(64 * mib);
          options.back_memory = false;
          return options;
        }()} {}
};

TEST_F(flags_in_memory, AreWrittenAndWaitedFor) {
  grant(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(write(mapping, 7), CUDA_SUCCESS);
  EXPECT_EQ(wait_for(mapping, 7), CUDA_SUCCESS);
}

TEST_F(flags_in_memory, AreNotWrittenWithoutRights) {
  EXPECT_EQ(write(mapping, 7), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(flags_in_memory, AreNotWaitedForWithoutRights) {
  EXPECT_EQ(wait_for(mapping, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(flags_in_memory, AreOnlyReadWithRightsToRead) {
  grant(CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(wait_for(mapping, 0), CUDA_SUCCESS);
  EXPECT_EQ(write(mapping, 7), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(flags_in_memory, AreNotTouchedOnceTheyAreUnmapped) {
  grant(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUstream on = stream();
  EXPECT_EQ(cuda.stream_write_value32(on, mapping, 7, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_unmap(mapping, unit), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(flags_in_memory, AreNotWatchedOnceTheyAreUnmapped) {
  grant(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUstream on = stream();
  EXPECT_EQ(cuda.stream_wait_value32(on, mapping, 7, CU_STREAM_WAIT_VALUE_EQ), CUDA_SUCCESS);
  machine->run_until_idle();
  EXPECT_EQ(cuda.stream_query(on), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuda.mem_unmap(mapping, unit), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(flags_in_unbacked_memory, AreNotWritten) {
  EXPECT_EQ(write(plain(64), 7), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(flags_in_unbacked_memory, AreNotWaitedFor) {
  EXPECT_EQ(wait_for(plain(64), 0), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace weir::sim_tests

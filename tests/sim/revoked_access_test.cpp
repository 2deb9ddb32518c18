// SPDX-License-Identifier: Apache-2.0
// Access that is taken away while queued or finished work may still need it, or has not been waited
// for.
#include <utility>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto no_rights = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr auto read_only = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto read_write = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

/// Two devices; both may read and write `range`, a mapping of memory of device 0.
class revoked_access : public memory_fixture {
 protected:
  revoked_access() : memory_fixture{small_machine(64 * mib, 2)} {
    EXPECT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuda.mem_create(&handle, unit, &properties, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_address_reserve(&range, unit, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(set_access(0, read_write), CUDA_SUCCESS);
    EXPECT_EQ(set_access(1, read_write), CUDA_SUCCESS);
  }

  CUresult set_access(int device, CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return cuda.mem_set_access(range, unit, &access, 1);
  }
  CUstream stream_of_other() {
    EXPECT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
    const CUstream made = stream();
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
    return made;
  }
  /// Lets device 1 use memory of device 0, or no longer.
  CUresult peer_access(bool enabled) {
    EXPECT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
    const CUresult answer =
        enabled ? cuda.ctx_enable_peer_access(context, 0) : cuda.ctx_disable_peer_access(context);
    EXPECT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
    return answer;
  }

  CUcontext other = nullptr;
  CUdeviceptr range = 0;
};

// --- Mappings ------------------------------------------------------------------------------------

TEST_F(revoked_access, UnderQueuedWorkIsReported) {
  const CUstream on = stream();
  work(on, {writes(range + 64, 64)});
  EXPECT_EQ(set_access(0, no_rights), CUDA_SUCCESS);
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
  const sim::hazard reported = machine->hazards()[0];
  EXPECT_EQ(reported.first.label, "work");
  EXPECT_EQ(reported.first.extent.address, range + 64);
  EXPECT_EQ(reported.second.label, "mem_set_access");
  EXPECT_EQ(reported.shared.address, range);
  EXPECT_EQ(reported.shared.size, unit);
  EXPECT_EQ(reported.remedy(), "wait for stream " + std::to_string(reported.first.stream.number()) +
                                   " before the memory is removed");
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use)) << "reported once";
}

TEST_F(revoked_access, UnderWorkThatHappenedButNobodyWaitedForIsReported) {
  work(stream(), {writes(range, 64)});
  machine->run_until_idle();
  EXPECT_EQ(set_access(0, no_rights), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(revoked_access, AfterAWaitIsFine) {
  EXPECT_EQ(run(stream(), {writes(range, 64)}), CUDA_SUCCESS);
  EXPECT_EQ(run(stream_of_other(), {writes(range, 64)}), CUDA_SUCCESS);
  EXPECT_EQ(set_access(0, no_rights), CUDA_SUCCESS);
  EXPECT_EQ(set_access(1, no_rights), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(revoked_access, OfAnotherDeviceThanTheOneAtWorkIsFine) {
  work(stream(), {writes(range, 64)});
  EXPECT_EQ(set_access(1, no_rights), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
}

TEST_F(revoked_access, OfADeviceWhoseWorkIsFollowedByAnotherDevicesIsReported) {
  const CUstream here = stream();
  const CUstream there = stream_of_other();
  CUevent mark = nullptr;
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  ASSERT_EQ(cuda.event_create(&mark, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  work(there, {writes(range, 64)});
  ASSERT_EQ(cuda.event_record(mark, there), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_wait_event(here, mark, 0), CUDA_SUCCESS);
  work(here, {writes(range, 64)});
  EXPECT_EQ(set_access(1, no_rights), CUDA_SUCCESS);
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(revoked_access, OfADeviceWhoseWorkWasWaitedForIsFineWhileAnotherWorks) {
  EXPECT_EQ(run(stream_of_other(), {writes(range, 64)}), CUDA_SUCCESS);
  work(stream(), {writes(range, 64)});
  EXPECT_EQ(set_access(1, no_rights), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(revoked_access, ToWriteIsReportedUnderWritesAndFineUnderReads) {
  work(stream(), {reads(range, 64)});
  EXPECT_EQ(set_access(0, read_only), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(set_access(0, read_write), CUDA_SUCCESS);
  work(stream(), {writes(range, 64)});
  EXPECT_EQ(set_access(0, read_only), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(revoked_access, ToWriteIsReportedThoughAReadFollowedTheWrite) {
  const CUstream on = stream();
  work(on, {writes(range, 64)});
  work(on, {reads(range, 64)});
  EXPECT_EQ(set_access(0, read_only), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

TEST_F(revoked_access, GrantedAgainOrExtendedIsFine) {
  work(stream(), {writes(range, 64)});
  EXPECT_EQ(set_access(0, read_write), CUDA_SUCCESS);
  work(stream(), {reads(range + 64, 64)});
  EXPECT_EQ(set_access(0, read_write), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(revoked_access, UnderACopyCountsForTheOwnerOfTheMemory) {
  void* const host = pinned(64);
  const CUstream there = stream_of_other();
  ASSERT_EQ(cuda.memcpy_htod_async(range, host, 64, there), CUDA_SUCCESS);
  EXPECT_EQ(set_access(1, no_rights), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty()) << "device 0 owns the memory and does the copy";
  EXPECT_EQ(set_access(0, no_rights), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
}

// --- Peers ---------------------------------------------------------------------------------------

TEST_F(revoked_access, OfAPeerUnderItsWorkIsReported) {
  const CUdeviceptr memory = plain(mib);
  ASSERT_EQ(peer_access(true), CUDA_SUCCESS);
  const CUstream on = stream_of_other();
  work(on, {writes(memory, 64)});
  EXPECT_EQ(peer_access(false), CUDA_SUCCESS);
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
  EXPECT_EQ(machine->hazards()[0].second.label, "ctx_disable_peer_access");
  EXPECT_EQ(machine->hazards()[0].shared.address, memory);
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(revoked_access, OfAPeerAfterAWaitIsFine) {
  const CUdeviceptr memory = plain(mib);
  ASSERT_EQ(peer_access(true), CUDA_SUCCESS);
  EXPECT_EQ(run(stream_of_other(), {writes(memory, 64)}), CUDA_SUCCESS);
  work(stream(), {writes(memory, 64)});
  EXPECT_EQ(peer_access(false), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(revoked_access, OfAPeerLeavesMappingsAndHostMemoryAlone) {
  const auto host = reinterpret_cast<std::uintptr_t>(pinned(64));
  ASSERT_EQ(peer_access(true), CUDA_SUCCESS);
  const CUstream on = stream_of_other();
  work(on, {writes(range, 64), writes(host, 64)});
  EXPECT_EQ(peer_access(false), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
}

// --- Pools ---------------------------------------------------------------------------------------

TEST_F(revoked_access, ToAPoolUnderWorkOfAPeerIsReported) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuda.device_get_default_mem_pool(&pool, 0), CUDA_SUCCESS);
  const auto set_pool_access = [&](CUmemAccess_flags flags) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, flags};
    return cuda.mem_pool_set_access(pool, &access, 1);
  };
  ASSERT_EQ(set_pool_access(read_write), CUDA_SUCCESS);
  const CUstream here = stream();
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuda.mem_alloc_from_pool_async(&memory, mib, pool, here), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(here), CUDA_SUCCESS);
  const CUstream there = stream_of_other();
  EXPECT_EQ(run(there, {writes(memory, 64)}), CUDA_SUCCESS);
  work(here, {writes(memory, 64)});
  EXPECT_EQ(set_pool_access(no_rights), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty()) << "the peer's work was waited for";
  ASSERT_EQ(cuda.stream_synchronize(here), CUDA_SUCCESS);

  ASSERT_EQ(set_pool_access(read_write), CUDA_SUCCESS);
  work(there, {writes(memory, 64)});
  EXPECT_EQ(set_pool_access(no_rights), CUDA_SUCCESS);
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
  EXPECT_EQ(machine->hazards()[0].second.label, "mem_pool_set_access");
}

class unwatched_access : public memory_fixture {
 protected:
  unwatched_access() : memory_fixture{options()} {}
  static sim::machine_options options() {
    auto wanted = small_machine(64 * mib, 2);
    wanted.check_hazards = false;
    return wanted;
  }
};

TEST_F(unwatched_access, IsTakenAwayWithoutAReport) {
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUdeviceptr memory = plain(mib);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_enable_peer_access(context, 0), CUDA_SUCCESS);
  const CUstream on = stream();
  work(on, {writes(memory, 64)});
  EXPECT_EQ(cuda.ctx_disable_peer_access(context), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace weir::sim_tests

// SPDX-License-Identifier: Apache-2.0
// Contract: two devices: peer access, copies and rights between them. Skipped where there is one.
#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class peers : public contract_test {
 protected:
  void SetUp() override {
    contract_test::SetUp();
    if (cu == nullptr || HasFatalFailure()) return;
    int count = 0;
    WEIR_OK(cu->device_get_count(&count));
    if (count < 2) GTEST_SKIP() << "this machine has one device";
    int can = 0;
    WEIR_OK(cu->device_can_access_peer(&can, device, other));
    if (can == 0) GTEST_SKIP() << "the devices cannot reach each other";
    WEIR_OK(cu->device_primary_ctx_retain(&other_context, other));
    defer([this] { EXPECT_EQ(CUDA_SUCCESS, cu->device_primary_ctx_release(other)); });
  }
  /// Memory on the other device.
  CUdeviceptr far_memory(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_push_current(other_context));
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_alloc(&address, bytes));
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_pop_current(nullptr));
    defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_free(address)); });
    return address;
  }
  CUdevice other = 1;
  CUcontext other_context = nullptr;
};
WEIR_CONTRACT(peers);

class one_device : public contract_test {};
WEIR_CONTRACT(one_device);

const refusal_list peers_refusals{
    "peers",
    {
        {"ctx_enable_peer_access to null", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) { return b.cu->ctx_enable_peer_access(nullptr, 0); }},
        {"ctx_enable_peer_access to itself", CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
         [](driver_fixture& b) { return b.cu->ctx_enable_peer_access(b.context, 0); }},
        {"ctx_disable_peer_access to null", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) { return b.cu->ctx_disable_peer_access(nullptr); }},
        {"ctx_disable_peer_access to itself", CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
         [](driver_fixture& b) { return b.cu->ctx_disable_peer_access(b.context); }},
    }};

TEST_P(one_device, refuses_to_be_its_own_peer) { expect_refusals(peers_refusals, machine); }

TEST_P(peers, attributes_say_that_access_works) {
  int supported = -1;
  WEIR_OK(cu->device_get_p2p_attribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device,
                                       other));
  EXPECT_EQ(1, supported);
  int rank = -1;
  WEIR_OK(
      cu->device_get_p2p_attribute(&rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, device, other));
  EXPECT_GE(rank, 0);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cu->device_get_p2p_attribute(nullptr, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device,
                                         other));
}

TEST_P(peers, access_is_enabled_once_and_disabled_once) {
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->ctx_enable_peer_access(other_context, 1));
  WEIR_OK(cu->ctx_enable_peer_access(other_context, 0));
  EXPECT_EQ(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cu->ctx_enable_peer_access(other_context, 0));
  WEIR_OK(cu->ctx_disable_peer_access(other_context));
  EXPECT_EQ(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cu->ctx_disable_peer_access(other_context));
}

TEST_P(peers, a_kernel_reaches_the_other_device_once_enabled) {
  const CUdeviceptr far = far_memory(4 * kib);
  WEIR_OK(cu->ctx_enable_peer_access(other_context, 0));
  const CUstream stream = new_stream();
  WEIR_OK(fill(far, 17, kib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, mismatches(far, 17, kib));
  WEIR_OK(cu->ctx_disable_peer_access(other_context));
}

TEST_P(peers, copies_need_no_access) {
  const CUstream stream = new_stream();
  const CUdeviceptr near = new_memory(4 * kib);
  const CUdeviceptr back = new_memory(4 * kib);
  const CUdeviceptr far = far_memory(4 * kib);
  WEIR_OK(fill(near, 18, kib, stream));
  WEIR_OK(cu->memcpy_peer_async(far, other_context, near, context, 4 * kib, stream));
  WEIR_OK(cu->memcpy_async(back, far, 4 * kib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, mismatches(back, 18, kib));
}

TEST_P(peers, pointers_know_their_device) {
  const CUdeviceptr far = far_memory(4 * kib);
  int ordinal = -1;
  WEIR_OK(cu->pointer_get_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, far));
  EXPECT_EQ(other, ordinal);
  CUcontext its_context = nullptr;
  WEIR_OK(cu->pointer_get_attribute(&its_context, CU_POINTER_ATTRIBUTE_CONTEXT, far));
  EXPECT_EQ(other_context, its_context);
}

TEST_P(peers, each_device_counts_its_own_memory) {
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  WEIR_OK(cu->mem_get_info(&before, &total));
  [[maybe_unused]] const CUdeviceptr far = far_memory(64 * mib);
  WEIR_OK(cu->mem_get_info(&after, &total));
  EXPECT_EQ(before, after);
}

TEST_P(peers, a_mapping_grants_each_device_its_own_rights) {
  const std::size_t unit = granularity();
  const CUdeviceptr range = new_range(unit);
  const auto handle = new_handle(unit);
  WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
  const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, other};
  const CUmemAccessDesc access[] = {{here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                    {there, CU_MEM_ACCESS_FLAGS_PROT_READ}};
  WEIR_OK(cu->mem_set_access(range, unit, access, 2));
  unsigned long long flags = 0;
  WEIR_OK(cu->mem_get_access(&flags, &there, range));
  EXPECT_EQ(static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READ), flags);
  WEIR_OK(cu->mem_unmap(range, unit));
}

TEST_P(peers, a_pool_is_opened_to_the_other_device) {
  const CUmemoryPool pool = new_pool();
  CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, other};
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  WEIR_OK(cu->mem_pool_get_access(&flags, pool, &there));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_NONE, flags);
  const CUmemAccessDesc access{there, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  WEIR_OK(cu->mem_pool_set_access(pool, &access, 1));
  WEIR_OK(cu->mem_pool_get_access(&flags, pool, &there));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, flags);
}

TEST_P(peers, an_event_joins_streams_of_two_devices) {
  const CUdeviceptr far = far_memory(4 * kib);
  const CUdeviceptr near = new_memory(4 * kib);
  CUstream far_stream = nullptr;
  CUevent written = nullptr;
  WEIR_OK(cu->ctx_push_current(other_context));
  WEIR_OK(cu->stream_create(&far_stream, CU_STREAM_NON_BLOCKING));
  WEIR_OK(cu->event_create(&written, CU_EVENT_DISABLE_TIMING));
  WEIR_OK(cu->memset_d32_async(far, 19, kib, far_stream));
  WEIR_OK(cu->event_record(written, far_stream));
  WEIR_OK(cu->ctx_pop_current(nullptr));
  const CUstream stream = new_stream();
  WEIR_OK(cu->stream_wait_event(stream, written, 0));
  WEIR_OK(cu->memcpy_peer_async(near, context, far, other_context, 4 * kib, stream));
  EXPECT_EQ(0u, mismatches(near, 19, kib));
  // An event belongs to the device it was made on.
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cu->event_record(written, stream));
  WEIR_OK(cu->event_destroy(written));
  WEIR_OK(cu->stream_destroy(far_stream));
}

}  // namespace
}  // namespace weir::testing_support

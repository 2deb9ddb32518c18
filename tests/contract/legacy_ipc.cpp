// SPDX-License-Identifier: Apache-2.0
// Contract: the older way of sharing memory and events between processes.
#include <array>

#include "support/child_process.hpp"
#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class legacy_ipc : public contract_test {};
WEIR_CONTRACT(legacy_ipc);

constexpr unsigned shared_event = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;

const refusal_list legacy_ipc_refusals{
    "legacy_ipc",
    {
        {"ipc_get_mem_handle into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->ipc_get_mem_handle(nullptr, b.new_memory(4096)); }},
        {"ipc_get_mem_handle of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUipcMemHandle handle{};
           return b.cu->ipc_get_mem_handle(&handle, 0);
         }},
        {"ipc_get_mem_handle of mapped memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUipcMemHandle handle{};
           return b.cu->ipc_get_mem_handle(&handle, b.new_mapping(b.granularity()));
         }},
        {"ipc_get_mem_handle of pool memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr memory = 0;
           b.cu->mem_alloc_async(&memory, 4096, nullptr);
           CUipcMemHandle handle{};
           const CUresult answer = b.cu->ipc_get_mem_handle(&handle, memory);
           b.cu->mem_free_async(memory, nullptr);
           return answer;
         }},
        {"ipc_get_mem_handle of managed memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUipcMemHandle handle{};
           return b.cu->ipc_get_mem_handle(&handle, b.new_managed(4096));
         }},
        {"ipc_open_mem_handle in the process it came from", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           CUipcMemHandle handle{};
           b.cu->ipc_get_mem_handle(&handle, b.new_memory(4096));
           CUdeviceptr memory = 0;
           return b.cu->ipc_open_mem_handle(&memory, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
         }},
        {"ipc_open_mem_handle into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUipcMemHandle handle{};
           b.cu->ipc_get_mem_handle(&handle, b.new_memory(4096));
           return b.cu->ipc_open_mem_handle(nullptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
         }},
        {"ipc_close_mem_handle of memory that was not opened", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->ipc_close_mem_handle(b.new_memory(4096)); }},
        {"ipc_get_event_handle into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->ipc_get_event_handle(nullptr, b.new_event(shared_event));
         }},
        {"ipc_get_event_handle of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUipcEventHandle handle{};
           return b.cu->ipc_get_event_handle(&handle, nullptr);
         }},
        {"ipc_get_event_handle of an event not made for it", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           CUipcEventHandle handle{};
           return b.cu->ipc_get_event_handle(&handle, b.new_event());
         }},
        {"ipc_open_event_handle in the process it came from", CUDA_ERROR_INVALID_CONTEXT,
         [](driver_fixture& b) {
           CUipcEventHandle handle{};
           b.cu->ipc_get_event_handle(&handle, b.new_event(shared_event));
           CUevent event = nullptr;
           return b.cu->ipc_open_event_handle(&event, handle);
         }},
        {"ipc_open_mem_handle without its flag", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUipcMemHandle handle{};
           b.cu->ipc_get_mem_handle(&handle, b.new_memory(4096));
           CUdeviceptr memory = 0;
           return b.cu->ipc_open_mem_handle(&memory, handle, 0);
         }},
        {"ipc_open_event_handle into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUipcEventHandle handle{};
           b.cu->ipc_get_event_handle(&handle, b.new_event(shared_event));
           return b.cu->ipc_open_event_handle(nullptr, handle);
         }},
    }};

TEST_P(legacy_ipc, refuses) { expect_refusals(legacy_ipc_refusals, machine); }

struct message {
  CUipcMemHandle memory;
  CUipcEventHandle written;
  std::uint64_t offset;
};

/// Waits on the parent's event, then changes the parent's memory.
WEIR_CHILD(open_legacy) {
  const table& cu = machine.driver();
  message from_parent{};
  WEIR_CHILD_EXPECT(true, parent.receive(from_parent));
  CUdeviceptr memory = 0;
  CUevent written = nullptr;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ipc_open_mem_handle(&memory, from_parent.memory,
                                                         CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ipc_open_event_handle(&written, from_parent.written));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.event_synchronize(written));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.event_query(written));
  std::array<word, 16> seen{};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memcpy_dtoh(seen.data(), memory, sizeof(seen)));
  WEIR_CHILD_EXPECT(71u, seen[0]);
  WEIR_CHILD_EXPECT(71u, seen[15]);
  CUstream stream = nullptr;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.stream_create(&stream, CU_STREAM_NON_BLOCKING));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.stream_wait_event(stream, written, 0));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32_async(memory, 72, 16, stream));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.event_record(written, stream));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.event_synchronize(written));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.event_destroy(written));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.stream_destroy(stream));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ipc_close_mem_handle(memory));
  WEIR_CHILD_EXPECT(true, parent.meet());
  return 0;
}

TEST_P(legacy_ipc, two_processes_share_memory_and_an_event) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(4 * mib);
  const CUevent written = new_event(shared_event);
  message to_child{};
  WEIR_OK(cu->ipc_get_mem_handle(&to_child.memory, memory));
  WEIR_OK(cu->ipc_get_event_handle(&to_child.written, written));
  WEIR_OK(fill(memory, 71, mib, stream));
  WEIR_OK(cu->event_record(written, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  child_process child{"open_legacy", GetParam()};
  EXPECT_TRUE(child.link().send(to_child));
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(0, child.wait());
  EXPECT_EQ(0u, mismatches(memory, 72, 16));
  EXPECT_EQ(0u, mismatches(memory + 64, 71, mib - 16));
}

/// Refuses what is no handle.
WEIR_CHILD(open_nonsense) {
  const table& cu = machine.driver();
  CUipcMemHandle nothing{};
  CUdeviceptr memory = 0;
  CUipcEventHandle no_event{};
  CUevent event = nullptr;
  const CUresult of_memory =
      cu.ipc_open_mem_handle(&memory, nothing, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  const CUresult of_event = cu.ipc_open_event_handle(&event, no_event);
  parent.send(of_memory);
  parent.send(of_event);
  return 0;
}

TEST_P(legacy_ipc, a_handle_of_zeros_is_refused) {
  child_process child{"open_nonsense", GetParam()};
  CUresult of_memory = CUDA_SUCCESS;
  CUresult of_event = CUDA_SUCCESS;
  ASSERT_TRUE(child.link().receive(of_memory));
  ASSERT_TRUE(child.link().receive(of_event));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, of_memory);
  EXPECT_EQ(CUDA_ERROR_MAP_FAILED, of_event);
  EXPECT_EQ(0, child.wait());
}

}  // namespace
}  // namespace weir::testing_support

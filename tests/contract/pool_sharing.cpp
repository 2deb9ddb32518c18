// SPDX-License-Identifier: Apache-2.0
// Contract: driver pools shared between processes.
#include <unistd.h>

#include <array>

#include "support/child_process.hpp"
#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

void* as_shareable(int descriptor) { return reinterpret_cast<void*>(std::intptr_t{descriptor}); }

class pool_sharing : public contract_test {};
WEIR_CONTRACT(pool_sharing);

const refusal_list pool_sharing_refusals{
    "pool_sharing",
    {
        {"mem_pool_export_to_shareable_handle of a pool not made for it", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int descriptor = -1;
           return b.cu->mem_pool_export_to_shareable_handle(&descriptor, b.new_pool(), posix_fd, 0);
         }},
        {"mem_pool_export_to_shareable_handle of the default pool", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemoryPool pool = nullptr;
           b.cu->device_get_default_mem_pool(&pool, b.device);
           int descriptor = -1;
           return b.cu->mem_pool_export_to_shareable_handle(&descriptor, pool, posix_fd, 0);
         }},
        {"mem_pool_export_to_shareable_handle into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_pool_export_to_shareable_handle(nullptr, b.new_pool(posix_fd), posix_fd,
                                                            0);
         }},
        {"mem_pool_export_to_shareable_handle with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int descriptor = -1;
           return b.cu->mem_pool_export_to_shareable_handle(&descriptor, b.new_pool(posix_fd),
                                                            posix_fd, 1);
         }},
        {"mem_pool_import_from_shareable_handle of no descriptor", CUDA_ERROR_UNKNOWN,
         [](driver_fixture& b) {
           CUmemoryPool pool = nullptr;
           return b.cu->mem_pool_import_from_shareable_handle(&pool, as_shareable(-1), posix_fd, 0);
         }},
        {"mem_pool_export_pointer into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_pool_export_pointer(nullptr, b.new_memory(4096));
         }},
        {"mem_pool_export_pointer of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemPoolPtrExportData data{};
           return b.cu->mem_pool_export_pointer(&data, b.new_memory(4096));
         }},
        {"mem_pool_export_pointer from a pool that is not shared", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemoryPool pool = b.new_pool();
           CUdeviceptr memory = 0;
           b.cu->mem_alloc_from_pool_async(&memory, 4096, pool, nullptr);
           CUmemPoolPtrExportData data{};
           const CUresult answer = b.cu->mem_pool_export_pointer(&data, memory);
           b.cu->mem_free_async(memory, nullptr);
           return answer;
         }},
        {"mem_pool_export_pointer from a pool that was not exported itself",
         CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemoryPool pool = b.new_pool(posix_fd);
           CUdeviceptr memory = 0;
           b.cu->mem_alloc_from_pool_async(&memory, 4096, pool, nullptr);
           CUmemPoolPtrExportData data{};
           const CUresult answer = b.cu->mem_pool_export_pointer(&data, memory);
           b.cu->mem_free_async(memory, nullptr);
           return answer;
         }},
        {"mem_alloc_from_pool_async in a capture, from a pool that can be exported",
         CUDA_ERROR_NOT_SUPPORTED,
         [](driver_fixture& b) {
           const CUmemoryPool pool = b.new_pool(posix_fd);
           const CUstream stream = b.new_stream();
           b.cu->stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
           CUdeviceptr memory = 0;
           const CUresult answer = b.cu->mem_alloc_from_pool_async(&memory, 4096, pool, stream);
           CUgraph graph = nullptr;
           b.cu->stream_end_capture(stream, &graph);
           if (graph != nullptr) b.cu->graph_destroy(graph);
           return answer;
         }},
        {"mem_pool_import_pointer into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemPoolPtrExportData data{};
           return b.cu->mem_pool_import_pointer(nullptr, b.new_pool(posix_fd), &data);
         }},
        {"mem_pool_import_pointer into a pool that was not imported", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemPoolPtrExportData data{};
           CUdeviceptr memory = 0;
           return b.cu->mem_pool_import_pointer(&memory, b.new_pool(posix_fd), &data);
         }},
    }};

TEST_P(pool_sharing, refuses) { expect_refusals(pool_sharing_refusals, machine); }

struct exported {
  CUmemPoolPtrExportData data;
  word expected;
  word answer;
};

/// Imports the parent's pool and one pointer of it, checks the bytes and writes its own; learns
/// that an imported pool hands out nothing.
WEIR_CHILD(import_pool) {
  const table& cu = machine.driver();
  const int descriptor = parent.receive_descriptor();
  exported message{};
  WEIR_CHILD_EXPECT(true, parent.receive(message));
  CUmemoryPool pool = nullptr;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_pool_import_from_shareable_handle(
                                      &pool, as_shareable(descriptor), posix_fd, 0));
  ::close(descriptor);
  CUdeviceptr memory = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_pool_import_pointer(&memory, pool, &message.data));
  std::array<word, 64> seen{};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memcpy_dtoh(seen.data(), memory, sizeof(seen)));
  WEIR_CHILD_EXPECT(message.expected, seen[0]);
  WEIR_CHILD_EXPECT(message.expected, seen[63]);
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32(memory, message.answer, 64));
  CUdeviceptr more = 0;
  const CUresult allocated = cu.mem_alloc_from_pool_async(&more, 4096, pool, nullptr);
  WEIR_CHILD_EXPECT(CUDA_ERROR_INVALID_VALUE, allocated);
  // The importer frees first.
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_free_async(memory, nullptr));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ctx_synchronize());
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_pool_destroy(pool));
  WEIR_CHILD_EXPECT(true, parent.meet());
  return 0;
}

TEST_P(pool_sharing, two_processes_share_an_allocation) {
  const CUstream stream = new_stream();
  const CUmemoryPool pool = new_pool(posix_fd);
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 4 * mib, pool, stream));
  WEIR_OK(fill(memory, 61, mib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  int descriptor = -1;
  WEIR_OK(cu->mem_pool_export_to_shareable_handle(&descriptor, pool, posix_fd, 0));
  exported message{{}, 61, 62};
  WEIR_OK(cu->mem_pool_export_pointer(&message.data, memory));
  child_process child{"import_pool", GetParam()};
  EXPECT_TRUE(child.link().send_descriptor(descriptor));
  ::close(descriptor);
  EXPECT_TRUE(child.link().send(message));
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(0, child.wait());
  EXPECT_EQ(0u, mismatches(memory, 62, 64));
  EXPECT_EQ(0u, mismatches(memory + 256, 61, mib - 64));
  WEIR_OK(cu->mem_free_async(memory, stream));
}

}  // namespace
}  // namespace weir::testing_support

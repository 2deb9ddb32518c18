// SPDX-License-Identifier: Apache-2.0
// Making, launching and undoing, for tests.
#include "support/driver_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace weir { inline namespace v0 { namespace driver {

void PrintTo(CUresult value, std::ostream* out) {
  *out << result_name(value) << " (" << static_cast<int>(value) << ")";
}

}}}  // namespace weir::v0::driver

namespace weir::testing_support {

void driver_fixture::open(std::shared_ptr<machine_under_test> opened) {
  machine = std::move(opened);
  cu = &machine->driver();
  device = machine->device();
  context = machine->context();
}

void driver_fixture::clean_up() {
  if (cu == nullptr) return;
  cu->ctx_set_current(context);
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
  while (!undo_.empty()) {
    undo_.back()();
    undo_.pop_back();
  }
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
}

CUstream driver_fixture::new_stream(unsigned flags) {
  CUstream stream = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_create(&stream, flags));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->stream_destroy(stream)); });
  return stream;
}

CUevent driver_fixture::new_event(unsigned flags) {
  CUevent event = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, cu->event_create(&event, flags));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->event_destroy(event)); });
  return event;
}

CUdeviceptr driver_fixture::new_memory(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_alloc(&address, bytes));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_free(address)); });
  return address;
}

CUdeviceptr driver_fixture::new_managed(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_alloc_managed(&address, bytes, CU_MEM_ATTACH_GLOBAL));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_free(address)); });
  return address;
}

word* driver_fixture::new_pinned(std::size_t bytes) {
  void* pointer = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_host_alloc(&pointer, bytes, host_alloc_portable));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_free_host(pointer)); });
  std::fill_n(static_cast<char*>(pointer), bytes, char{0});
  return static_cast<word*>(pointer);
}

CUmemoryPool driver_fixture::new_pool(CUmemAllocationHandleType type) {
  const CUmemPoolProps request = pool_properties(type);
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_pool_create(&pool, &request));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_pool_destroy(pool)); });
  return pool;
}

CUdeviceptr driver_fixture::new_range(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_address_reserve(&address, bytes, 0, 0, 0));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_address_free(address, bytes)); });
  return address;
}

CUmemGenericAllocationHandle driver_fixture::new_handle(std::size_t bytes,
                                                        CUmemAllocationHandleType type) {
  const CUmemAllocationProp request = properties(type);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_create(&handle, bytes, &request, 0));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_release(handle)); });
  return handle;
}

CUdeviceptr driver_fixture::new_mapping(std::size_t bytes) {
  const CUdeviceptr address = new_range(bytes);
  const CUmemGenericAllocationHandle handle = new_handle(bytes);
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_map(address, bytes, 0, handle, 0));
  defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->mem_unmap(address, bytes)); });
  const CUmemAccessDesc access{here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_set_access(address, bytes, &access, 1));
  return address;
}

CUgraph driver_fixture::end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_end_capture(stream, &graph));
  if (graph != nullptr) defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->graph_destroy(graph)); });
  return graph;
}

CUgraphExec driver_fixture::new_exec(CUgraph graph) {
  CUgraphExec exec = nullptr;
  EXPECT_EQ(CUDA_SUCCESS, cu->graph_instantiate(&exec, graph, 0));
  if (exec != nullptr) defer([=, this] { EXPECT_EQ(CUDA_SUCCESS, cu->graph_exec_destroy(exec)); });
  return exec;
}

CUmemAllocationProp driver_fixture::properties(CUmemAllocationHandleType type) const {
  CUmemAllocationProp request{};
  request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  request.requestedHandleTypes = type;
  request.location = here();
  return request;
}

CUmemPoolProps driver_fixture::pool_properties(CUmemAllocationHandleType type) const {
  CUmemPoolProps request{};
  request.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  request.handleTypes = type;
  request.location = here();
  return request;
}

std::size_t driver_fixture::granularity() const {
  const CUmemAllocationProp request = properties();
  std::size_t bytes = 0;
  EXPECT_EQ(CUDA_SUCCESS,
            cu->mem_get_allocation_granularity(&bytes, &request, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return bytes;
}

CUresult driver_fixture::launch(CUfunction function, std::uint64_t count, CUstream stream,
                                void** parameters) {
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::uint64_t>((count + 255) / 256, 1, 1024));
  return cu->launch_kernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr);
}

CUresult driver_fixture::fill(CUdeviceptr address, word value, std::uint64_t count,
                              CUstream stream) {
  void* parameters[] = {&address, &value, &count};
  return launch(machine->kernels().fill, count, stream, parameters);
}

CUresult driver_fixture::increment(CUdeviceptr address, std::uint64_t count, CUstream stream) {
  void* parameters[] = {&address, &count};
  return launch(machine->kernels().increment, count, stream, parameters);
}

CUresult driver_fixture::copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t count,
                              CUstream stream) {
  void* parameters[] = {&to, &from, &count};
  return launch(machine->kernels().copy, count, stream, parameters);
}

CUresult driver_fixture::check(CUdeviceptr address, word expected, std::uint64_t count,
                               CUdeviceptr wrong_words, CUstream stream) {
  void* parameters[] = {&address, &expected, &count, &wrong_words};
  return launch(machine->kernels().check, count, stream, parameters);
}

CUresult driver_fixture::spin(std::chrono::nanoseconds time, CUstream stream) {
  auto nanoseconds = static_cast<std::uint64_t>(time.count());
  void* parameters[] = {&nanoseconds};
  return cu->launch_kernel(machine->kernels().spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                           nullptr);
}

bool driver_fixture::comes_to_rest(CUstream stream) {
  for (int i = 0; i < 1000; ++i) {
    if (cu->stream_query(stream) == CUDA_SUCCESS) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return false;
}

bool driver_fixture::stays_busy(CUstream stream) {
  for (int i = 0; i < 20; ++i) {
    if (cu->stream_query(stream) != CUDA_ERROR_NOT_READY) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return true;
}

std::vector<word> driver_fixture::words(CUdeviceptr address, std::size_t count) {
  std::vector<word> host(count);
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
  EXPECT_EQ(CUDA_SUCCESS, cu->memcpy_dtoh(host.data(), address, count * sizeof(word)));
  return host;
}

std::size_t driver_fixture::mismatches(CUdeviceptr address, word expected, std::size_t count) {
  const auto host = words(address, count);
  return count - static_cast<std::size_t>(std::count(host.begin(), host.end(), expected));
}

}  // namespace weir::testing_support

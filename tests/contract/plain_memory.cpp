// SPDX-License-Identifier: Apache-2.0
// Contract: plain device memory.
#include <set>
#include <thread>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class plain_memory : public contract_test {};
WEIR_CONTRACT(plain_memory);

const refusal_list plain_memory_refusals{
    "plain_memory",
    {
        {"mem_alloc of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc(&address, 0);
         }},
        {"mem_alloc into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_alloc(nullptr, 16); }},
        {"mem_alloc of more than there is", CUDA_ERROR_OUT_OF_MEMORY,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc(&address, std::size_t{1} << 44);
         }},
        {"mem_alloc of all the address space", CUDA_ERROR_OUT_OF_MEMORY,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc(&address, ~std::size_t{0});
         }},
        {"mem_alloc_pitch into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_alloc_pitch(nullptr, nullptr, 100, 10, 4); }},
        {"mem_alloc_pitch with elements of 3 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           std::size_t pitch = 0;
           return b.cu->mem_alloc_pitch(&address, &pitch, 99, 10, 3);
         }},
        {"mem_alloc_pitch of no width", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           std::size_t pitch = 0;
           return b.cu->mem_alloc_pitch(&address, &pitch, 0, 10, 4);
         }},
        {"mem_alloc_pitch of no height", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           std::size_t pitch = 0;
           return b.cu->mem_alloc_pitch(&address, &pitch, 100, 0, 4);
         }},
        {"mem_free of what was freed", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           b.cu->mem_alloc(&address, 4096);
           b.cu->mem_free(address);
           return b.cu->mem_free(address);
         }},
        {"mem_free inside an allocation", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_free(b.new_memory(4096) + 512); }},
        {"mem_free of a host address", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           static char host = 0;
           return b.cu->mem_free(reinterpret_cast<std::uintptr_t>(&host));
         }},
        {"mem_free of mapped memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_free(b.new_mapping(b.granularity())); }},
        {"mem_free of pinned memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_free(reinterpret_cast<std::uintptr_t>(b.new_pinned(4096)));
         }},
        {"mem_get_address_range of no allocation", CUDA_ERROR_NOT_FOUND,
         [](driver_fixture& b) {
           CUdeviceptr base = 0;
           std::size_t bytes = 0;
           static char host = 0;
           return b.cu->mem_get_address_range(&base, &bytes,
                                              reinterpret_cast<std::uintptr_t>(&host));
         }},
        {"mem_get_address_range of null", CUDA_ERROR_NOT_FOUND,
         [](driver_fixture& b) {
           CUdeviceptr base = 0;
           std::size_t bytes = 0;
           return b.cu->mem_get_address_range(&base, &bytes, 0);
         }},
    }};

TEST_P(plain_memory, refuses) { expect_refusals(plain_memory_refusals, machine); }

TEST_P(plain_memory, allocations_are_aligned_and_apart) {
  std::set<std::pair<CUdeviceptr, CUdeviceptr>> ranges;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{511}, std::size_t{513}, 4 * kib, 3 * mib, 20 * mib + 1}) {
    const CUdeviceptr address = new_memory(bytes);
    EXPECT_EQ(0u, address % 512) << bytes;
    for (const auto& [begin, end] : ranges) EXPECT_TRUE(address >= end || address + bytes <= begin);
    ranges.emplace(address, address + bytes);
  }
}

TEST_P(plain_memory, an_allocation_knows_its_exact_range) {
  for (const std::size_t bytes : {std::size_t{1000}, 3 * mib}) {
    const CUdeviceptr address = new_memory(bytes);
    CUdeviceptr base = 0;
    std::size_t size = 0;
    WEIR_OK(cu->mem_get_address_range(&base, &size, address + bytes / 2));
    EXPECT_EQ(address, base);
    EXPECT_EQ(bytes, size);
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_get_address_range(nullptr, &size, address));
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_get_address_range(&base, nullptr, address));
  }
}

TEST_P(plain_memory, freeing_null_is_fine) { EXPECT_EQ(CUDA_SUCCESS, cu->mem_free(0)); }

TEST_P(plain_memory, memory_in_use_is_not_free) {
  std::size_t before = 0;
  std::size_t during = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  WEIR_OK(cu->mem_get_info(&before, &total));
  EXPECT_LE(before, total);
  CUdeviceptr address = 0;
  WEIR_OK(cu->mem_alloc(&address, 64 * mib));
  WEIR_OK(cu->mem_get_info(&during, &total));
  WEIR_OK(cu->mem_free(address));
  WEIR_OK(cu->mem_get_info(&after, &total));
  EXPECT_EQ(64 * mib, before - during);
  EXPECT_EQ(before, after);
}

TEST_P(plain_memory, a_pitch_covers_the_width_and_is_aligned) {
  for (const unsigned element : {4u, 8u, 16u}) {
    CUdeviceptr address = 0;
    std::size_t pitch = 0;
    WEIR_OK(cu->mem_alloc_pitch(&address, &pitch, 1000, 7, element));
    EXPECT_GE(pitch, 1000u);
    EXPECT_EQ(0u, pitch % 512);
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    WEIR_OK(cu->mem_get_address_range(&base, &bytes, address));
    EXPECT_GE(bytes, pitch * 7);
    WEIR_OK(cu->mem_free(address));
  }
}

TEST_P(plain_memory, freeing_waits_for_the_work_that_runs) {
  const CUstream stream = new_stream();
  CUdeviceptr used = 0;
  WEIR_OK(cu->mem_alloc(&used, 4 * kib));
  auto held = occupy(stream);
  WEIR_OK(fill(used, 1, kib, stream));
  std::thread later{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{30});
    held->finish();
  }};
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_free(used));
  EXPECT_EQ(CUDA_SUCCESS, cu->stream_query(stream));
  later.join();
}

TEST_P(plain_memory, memory_keeps_what_was_written) {
  const CUdeviceptr first = new_memory(4 * mib);
  const CUdeviceptr second = new_memory(4 * mib);
  WEIR_OK(fill(first, 0x11111111, mib, nullptr));
  WEIR_OK(fill(second, 0x22222222, mib, nullptr));
  EXPECT_EQ(0u, mismatches(first, 0x11111111, mib));
  EXPECT_EQ(0u, mismatches(second, 0x22222222, mib));
}

TEST_P(plain_memory, any_thread_may_free) {
  CUdeviceptr address = 0;
  WEIR_OK(cu->mem_alloc(&address, 4096));
  CUresult freed = CUDA_ERROR_UNKNOWN;
  std::thread{[&] {
    EXPECT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
    freed = cu->mem_free(address);
  }}.join();
  EXPECT_EQ(CUDA_SUCCESS, freed);
}

}  // namespace
}  // namespace weir::testing_support

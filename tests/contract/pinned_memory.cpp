// SPDX-License-Identifier: Apache-2.0
// Contract: host memory that is pinned or registered.
#include <cstdlib>
#include <memory>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class pinned_memory : public contract_test {};
WEIR_CONTRACT(pinned_memory);

/// Page-aligned memory of the host's own.
std::shared_ptr<void> pages(std::size_t bytes) {
  return {std::aligned_alloc(4096, bytes), [](void* pointer) { std::free(pointer); }};
}

const refusal_list pinned_memory_refusals{
    "pinned_memory",
    {
        {"mem_host_alloc into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_host_alloc(nullptr, 16, 0); }},
        {"mem_host_alloc with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           void* pointer = nullptr;
           return b.cu->mem_host_alloc(&pointer, 16, 0x80);
         }},
        {"mem_free_host of what was freed", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           void* pointer = nullptr;
           b.cu->mem_host_alloc(&pointer, 4096, 0);
           b.cu->mem_free_host(pointer);
           return b.cu->mem_free_host(pointer);
         }},
        {"mem_free_host inside an allocation", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_free_host(b.new_pinned(4096) + 16); }},
        {"mem_free_host of other host memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           static char host = 0;
           return b.cu->mem_free_host(&host);
         }},
        {"mem_free_host of device memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_free_host(
               reinterpret_cast<void*>(static_cast<std::uintptr_t>(b.new_memory(4096))));
         }},
        {"mem_host_get_device_pointer into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_host_get_device_pointer(nullptr, b.new_pinned(4096), 0);
         }},
        {"mem_host_get_device_pointer with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_host_get_device_pointer(&address, b.new_pinned(4096), 1);
         }},
        {"mem_host_get_device_pointer of other host memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           static char host = 0;
           CUdeviceptr address = 0;
           return b.cu->mem_host_get_device_pointer(&address, &host, 0);
         }},
        {"mem_host_get_flags into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_host_get_flags(nullptr, b.new_pinned(4096)); }},
        {"mem_host_get_flags of other host memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           static char host = 0;
           unsigned flags = 0;
           return b.cu->mem_host_get_flags(&flags, &host);
         }},
        {"mem_host_register of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_host_register(nullptr, 4096, 0); }},
        {"mem_host_register of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto host = pages(4096);
           return b.cu->mem_host_register(host.get(), 0, 0);
         }},
        {"mem_host_register with unknown flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto host = pages(4096);
           return b.cu->mem_host_register(host.get(), 4096, 0x80);
         }},
        {"mem_host_register twice", CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
         [](driver_fixture& b) {
           const auto host = pages(8192);
           b.cu->mem_host_register(host.get(), 8192, 0);
           const CUresult answer = b.cu->mem_host_register(host.get(), 8192, 0);
           b.cu->mem_host_unregister(host.get());
           return answer;
         }},
        {"mem_host_register of pinned memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_host_register(b.new_pinned(8192), 4096, 0); }},
        {"mem_host_unregister of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_host_unregister(nullptr); }},
        {"mem_host_unregister of what was not registered", CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
         [](driver_fixture& b) {
           const auto host = pages(4096);
           return b.cu->mem_host_unregister(host.get());
         }},
        {"mem_host_unregister inside a registration", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto host = pages(8192);
           b.cu->mem_host_register(host.get(), 8192, 0);
           const CUresult answer = b.cu->mem_host_unregister(static_cast<char*>(host.get()) + 4096);
           b.cu->mem_host_unregister(host.get());
           return answer;
         }},
    }};

TEST_P(pinned_memory, refuses) { expect_refusals(pinned_memory_refusals, machine); }

TEST_P(pinned_memory, both_sides_see_the_same_bytes) {
  const CUstream stream = new_stream();
  word* const host = new_pinned(4 * kib);
  CUdeviceptr address = 0;
  WEIR_OK(cu->mem_host_get_device_pointer(&address, host, 0));
  // One address space: the device's address is the host's.
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host), address);
  WEIR_OK(fill(address, 31, kib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(31u, host[0]);
  EXPECT_EQ(31u, host[kib - 1]);
  host[7] = 100;
  WEIR_OK(increment(address, kib, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(101u, host[7]);
  EXPECT_EQ(32u, host[8]);
}

TEST_P(pinned_memory, flags_can_be_read_back) {
  for (const unsigned flags :
       {0u, host_alloc_portable, host_alloc_device_map, host_alloc_write_combined, 7u}) {
    void* pointer = nullptr;
    WEIR_OK(cu->mem_host_alloc(&pointer, 4096, flags));
    unsigned its_flags = 0;
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_host_get_flags(&its_flags, pointer));
    // With one address space every allocation is mapped, whether asked for or not.
    EXPECT_EQ(flags | host_alloc_device_map, its_flags);
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_free_host(pointer));
  }
}

TEST_P(pinned_memory, nothing_can_be_allocated_and_freed) {
  void* pointer = &pointer;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_host_alloc(&pointer, 0, 0));
  EXPECT_EQ(nullptr, pointer);
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_free_host(nullptr));
}

TEST_P(pinned_memory, an_allocation_knows_its_range) {
  word* const host = new_pinned(10 * kib);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  WEIR_OK(cu->mem_get_address_range(&base, &bytes, reinterpret_cast<std::uintptr_t>(host) + 100));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host), base);
  EXPECT_EQ(10 * kib, bytes);
}

TEST_P(pinned_memory, registered_memory_is_seen_by_the_device) {
  const auto host = pages(64 * kib);
  auto* const its_words = static_cast<word*>(host.get());
  std::fill_n(its_words, 16 * kib, word{3});
  WEIR_OK(cu->mem_host_register(host.get(), 64 * kib,
                                host_register_portable | host_register_device_map));
  CUdeviceptr address = 0;
  WEIR_OK(cu->mem_host_get_device_pointer(&address, host.get(), 0));
  WEIR_OK(increment(address, 16 * kib, nullptr));
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_EQ(4u, its_words[0]);
  EXPECT_EQ(4u, its_words[16 * kib - 1]);
  WEIR_OK(cu->mem_host_unregister(host.get()));
  // Still the host's own, and open to a new registration.
  its_words[0] = 5;
  WEIR_OK(cu->mem_host_register(host.get(), 64 * kib, 0));
  WEIR_OK(cu->mem_host_unregister(host.get()));
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Contract: what a pointer tells of itself, for every kind of memory.
#include <array>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

class pointer_attributes : public contract_test {
 protected:
  template <class T>
  T attribute(CUpointer_attribute name, CUdeviceptr address) {
    T value{};
    EXPECT_EQ(CUDA_SUCCESS, cu->pointer_get_attribute(&value, name, address)) << name;
    return value;
  }
  int kind(CUdeviceptr address) {
    return attribute<int>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  }
  int ordinal(CUdeviceptr address) {
    return attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  }
  bool legacy_shareable(CUdeviceptr address) {
    return attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) != 0;
  }
  bool managed(CUdeviceptr address) {
    return attribute<int>(CU_POINTER_ATTRIBUTE_IS_MANAGED, address) != 0;
  }
};
WEIR_CONTRACT(pointer_attributes);

const refusal_list pointer_attributes_refusals{
    "pointer_attributes",
    {
        {"pointer_get_attribute into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->pointer_get_attribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                              b.new_memory(64));
         }},
        {"pointer_get_attribute of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->pointer_get_attribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0);
         }},
        {"pointer_get_attribute of a host address", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           static char host = 0;
           int value = 0;
           return b.cu->pointer_get_attribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                              reinterpret_cast<std::uintptr_t>(&host));
         }},
        {"pointer_get_attribute of no attribute", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t value = 0;
           return b.cu->pointer_get_attribute(&value, static_cast<CUpointer_attribute>(999),
                                              b.new_memory(64));
         }},
        {"pointer_get_attribute of freed memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr memory = 0;
           b.cu->mem_alloc(&memory, 4 * mib);
           b.cu->mem_free(memory);
           int value = 0;
           return b.cu->pointer_get_attribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory);
         }},
        {"pointer_get_attributes of none", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->pointer_get_attributes(0, nullptr, nullptr, b.new_memory(64));
         }},
        {"pointer_get_attributes of no attribute", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t value = 0;
           void* data[] = {&value};
           CUpointer_attribute names[] = {static_cast<CUpointer_attribute>(999)};
           return b.cu->pointer_get_attributes(1, names, data, b.new_memory(64));
         }},
    }};

TEST_P(pointer_attributes, refuses) { expect_refusals(pointer_attributes_refusals, machine); }

TEST_P(pointer_attributes, plain_memory) {
  const CUdeviceptr memory = new_memory(10000);
  EXPECT_EQ(CU_MEMORYTYPE_DEVICE, kind(memory + 100));
  EXPECT_EQ(device, ordinal(memory));
  EXPECT_EQ(context, attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, memory));
  EXPECT_EQ(memory + 8, attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, memory + 8));
  EXPECT_EQ(memory, attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 8));
  EXPECT_EQ(10000u, attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory + 8));
  EXPECT_EQ(nullptr, attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
  EXPECT_TRUE(legacy_shareable(memory));
  EXPECT_FALSE(managed(memory));
  void* host = nullptr;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cu->pointer_get_attribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, memory));
}

TEST_P(pointer_attributes, each_allocation_has_its_own_id) {
  const CUdeviceptr first = new_memory(4096);
  const CUdeviceptr second = new_memory(4096);
  const auto id = [&](CUdeviceptr address) {
    return attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, address);
  };
  EXPECT_EQ(id(first), id(first + 100));
  EXPECT_NE(id(first), id(second));
}

TEST_P(pointer_attributes, pool_memory) {
  const CUmemoryPool pool = new_pool();
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 4 * mib, pool, nullptr));
  EXPECT_EQ(CU_MEMORYTYPE_DEVICE, kind(memory));
  EXPECT_EQ(device, ordinal(memory));
  EXPECT_EQ(pool, attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory));
  EXPECT_EQ(memory, attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 8));
  EXPECT_EQ(4 * mib, attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory));
  EXPECT_FALSE(legacy_shareable(memory));
  EXPECT_FALSE(managed(memory));
  WEIR_OK(cu->mem_free_async(memory, nullptr));
}

TEST_P(pointer_attributes, mapped_memory) {
  const std::size_t unit = granularity();
  const CUdeviceptr range = new_range(3 * unit);
  const auto handle = new_handle(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  WEIR_OK(cu->mem_map(range + unit, unit, 0, handle, 0));
  const CUmemAccessDesc access{here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  WEIR_OK(cu->mem_set_access(range + unit, unit, &access, 1));
  const CUdeviceptr memory = range + unit + 4096;
  EXPECT_EQ(CU_MEMORYTYPE_DEVICE, kind(memory));
  EXPECT_EQ(device, ordinal(memory));
  // The range is the reservation, the mapping is the handle's place in it.
  EXPECT_EQ(range, attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory));
  EXPECT_EQ(3 * unit, attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory));
  EXPECT_EQ(range + unit, attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, memory));
  EXPECT_EQ(unit, attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, memory));
  EXPECT_EQ(nullptr, attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, memory));
  EXPECT_EQ(1, attribute<int>(CU_POINTER_ATTRIBUTE_MAPPED, memory));
  EXPECT_EQ(std::uint64_t{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
            attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, memory));
  EXPECT_FALSE(legacy_shareable(memory));
  EXPECT_FALSE(managed(memory));
  WEIR_OK(cu->mem_unmap(range + unit, unit));
}

TEST_P(pointer_attributes, pinned_memory) {
  word* const host = new_pinned(4096);
  const CUdeviceptr memory = reinterpret_cast<std::uintptr_t>(host);
  EXPECT_EQ(CU_MEMORYTYPE_HOST, kind(memory));
  EXPECT_EQ(static_cast<void*>(host), attribute<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, memory));
  EXPECT_EQ(memory, attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, memory));
  EXPECT_FALSE(legacy_shareable(memory));
  EXPECT_FALSE(managed(memory));
}

TEST_P(pointer_attributes, managed_memory) {
  const CUdeviceptr memory = new_managed(4096);
  EXPECT_TRUE(managed(memory));
  EXPECT_EQ(CU_MEMORYTYPE_DEVICE, kind(memory));
  EXPECT_EQ(memory, attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, memory));
  EXPECT_EQ(reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory)),
            attribute<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, memory));
  EXPECT_FALSE(legacy_shareable(memory));
}

TEST_P(pointer_attributes, several_at_once) {
  const CUdeviceptr memory = new_memory(10000);
  int memory_type = 0;
  int its_ordinal = -1;
  std::size_t size = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* data[] = {&memory_type, &its_ordinal, &size};
  WEIR_OK(cu->pointer_get_attributes(3, names, data, memory));
  EXPECT_EQ(CU_MEMORYTYPE_DEVICE, memory_type);
  EXPECT_EQ(device, its_ordinal);
  EXPECT_EQ(10000u, size);
}

TEST_P(pointer_attributes, several_at_once_of_a_foreign_pointer_are_empty) {
  static char host = 0;
  int memory_type = 99;
  int is_managed = 99;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* data[] = {&memory_type, &is_managed};
  WEIR_OK(cu->pointer_get_attributes(2, names, data, reinterpret_cast<std::uintptr_t>(&host)));
  EXPECT_EQ(0, memory_type);
  EXPECT_EQ(0, is_managed);
}

}  // namespace
}  // namespace weir::testing_support

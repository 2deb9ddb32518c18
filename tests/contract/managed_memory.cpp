// SPDX-License-Identifier: Apache-2.0
// Contract: managed memory, its prefetch and advice, and what a range tells of them.
#include <array>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

constexpr CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};

class managed_memory : public contract_test {
 protected:
  int range_number(CUmem_range_attribute attribute, CUdeviceptr address, std::size_t bytes) {
    int value = -99;
    EXPECT_EQ(CUDA_SUCCESS,
              cu->mem_range_get_attribute(&value, sizeof(value), attribute, address, bytes));
    return value;
  }
  static word* words_at(CUdeviceptr address) {
    return reinterpret_cast<word*>(static_cast<std::uintptr_t>(address));
  }
};
WEIR_CONTRACT(managed_memory);

const refusal_list managed_memory_refusals{
    "managed_memory",
    {
        {"mem_alloc_managed into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_alloc_managed(nullptr, 16, CU_MEM_ATTACH_GLOBAL);
         }},
        {"mem_alloc_managed of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc_managed(&address, 0, CU_MEM_ATTACH_GLOBAL);
         }},
        {"mem_alloc_managed without flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc_managed(&address, 16, 0);
         }},
        {"mem_alloc_managed attached to one stream", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc_managed(&address, 16, CU_MEM_ATTACH_SINGLE);
         }},
        {"mem_prefetch_async of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_prefetch_async(b.new_memory(4096), 4096, b.here(), 0, nullptr);
         }},
        {"mem_prefetch_async of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_prefetch_async(b.new_managed(4096), 0, b.here(), 0, nullptr);
         }},
        {"mem_prefetch_async past the end", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_prefetch_async(b.new_managed(4096), 64 * mib, b.here(), 0, nullptr);
         }},
        {"mem_prefetch_async to no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           const CUmemLocation nowhere{CU_MEM_LOCATION_TYPE_DEVICE, 1000};
           return b.cu->mem_prefetch_async(b.new_managed(4096), 4096, nowhere, 0, nullptr);
         }},
        {"mem_prefetch_async with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_prefetch_async(b.new_managed(4096), 4096, b.here(), 1, nullptr);
         }},
        {"mem_prefetch_async_v1 of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_prefetch_async_v1(b.new_memory(4096), 4096, b.device, nullptr);
         }},
        {"mem_prefetch_async_v1 to no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           return b.cu->mem_prefetch_async_v1(b.new_managed(4096), 4096, 1000, nullptr);
         }},
        {"mem_advise of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_advise(b.new_memory(4096), 4096, CU_MEM_ADVISE_SET_READ_MOSTLY,
                                   b.here());
         }},
        {"mem_advise of no advice", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_advise(b.new_managed(4096), 4096, static_cast<CUmem_advise>(99),
                                   b.here());
         }},
        {"mem_advise of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_advise(b.new_managed(4096), 0, CU_MEM_ADVISE_SET_READ_MOSTLY, b.here());
         }},
        {"mem_advise with no device", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemLocation nowhere{CU_MEM_LOCATION_TYPE_DEVICE, 1000};
           return b.cu->mem_advise(b.new_managed(4096), 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                                   nowhere);
         }},
        {"mem_advise_v1 of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_advise_v1(b.new_memory(4096), 4096, CU_MEM_ADVISE_SET_READ_MOSTLY,
                                      b.device);
         }},
        {"mem_advise_v1 with no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           return b.cu->mem_advise_v1(b.new_managed(4096), 4096,
                                      CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1000);
         }},
        {"mem_range_get_attribute into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_range_get_attribute(nullptr, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                                b.new_managed(4096), 4096);
         }},
        {"mem_range_get_attribute with a wrong size", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           char value[16];
           return b.cu->mem_range_get_attribute(value, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                                b.new_managed(4096), 4096);
         }},
        {"mem_range_get_attribute of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->mem_range_get_attribute(
               &value, sizeof(value), CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, b.new_memory(4096), 4096);
         }},
        {"mem_range_get_attribute of no attribute", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int value = 0;
           return b.cu->mem_range_get_attribute(&value, sizeof(value),
                                                static_cast<CUmem_range_attribute>(99),
                                                b.new_managed(4096), 4096);
         }},
    }};

TEST_P(managed_memory, refuses) { expect_refusals(managed_memory_refusals, machine); }

TEST_P(managed_memory, both_sides_see_the_same_bytes) {
  const CUdeviceptr address = new_managed(mib);
  word* const host_side = words_at(address);
  std::fill_n(host_side, mib / sizeof(word), word{9});
  WEIR_OK(increment(address, mib / sizeof(word), nullptr));
  WEIR_OK(cu->ctx_synchronize());
  EXPECT_EQ(10u, host_side[0]);
  EXPECT_EQ(10u, host_side[mib / sizeof(word) - 1]);
}

TEST_P(managed_memory, host_attached_memory_can_be_made) {
  CUdeviceptr address = 0;
  WEIR_OK(cu->mem_alloc_managed(&address, 4096, CU_MEM_ATTACH_HOST));
  words_at(address)[0] = 1;
  WEIR_OK(cu->mem_free(address));
}

TEST_P(managed_memory, a_range_is_unadvised_at_first) {
  const CUdeviceptr address = new_managed(mib);
  EXPECT_EQ(0, range_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, mib));
  // -2 is "no location".
  EXPECT_EQ(-2, range_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, mib));
  EXPECT_EQ(-2, range_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, mib));
}

TEST_P(managed_memory, prefetch_is_remembered_and_changes_no_bytes) {
  WEIR_NEEDS(mem_prefetch_async);
  const CUstream stream = new_stream();
  const CUdeviceptr address = new_managed(2 * mib);
  std::fill_n(words_at(address), 2 * mib / sizeof(word), word{4});
  WEIR_OK(cu->mem_prefetch_async(address, 2 * mib, here(), 0, stream));
  WEIR_OK(increment(address, 2 * mib / sizeof(word), stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(device, range_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 2 * mib));
  WEIR_OK(cu->mem_prefetch_async(address, 2 * mib, host, 0, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(cpu_device,
            range_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 2 * mib));
  EXPECT_EQ(5u, words_at(address)[0]);
  EXPECT_EQ(5u, words_at(address)[2 * mib / sizeof(word) - 1]);
}

TEST_P(managed_memory, half_a_prefetched_range_has_no_one_location) {
  const CUstream stream = new_stream();
  const CUdeviceptr address = new_managed(4 * mib);
  WEIR_OK(cu->mem_prefetch_async_v1(address, 2 * mib, device, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(device, range_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 2 * mib));
  EXPECT_EQ(-2, range_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 4 * mib));
}

TEST_P(managed_memory, the_older_prefetch_takes_a_device_number) {
  const CUstream stream = new_stream();
  const CUdeviceptr address = new_managed(2 * mib);
  WEIR_OK(cu->mem_prefetch_async_v1(address, 2 * mib, device, stream));
  WEIR_OK(fill(address, 6, 2 * mib / sizeof(word), stream));
  WEIR_OK(cu->mem_prefetch_async_v1(address, 2 * mib, cpu_device, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(cpu_device,
            range_number(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 2 * mib));
  EXPECT_EQ(6u, words_at(address)[100]);
}

TEST_P(managed_memory, advice_is_remembered_and_can_be_taken_back) {
  WEIR_NEEDS(mem_advise);
  const CUdeviceptr address = new_managed(2 * mib);
  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_SET_READ_MOSTLY, here()));
  EXPECT_EQ(1, range_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 2 * mib));
  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_UNSET_READ_MOSTLY, here()));
  EXPECT_EQ(0, range_number(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 2 * mib));

  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here()));
  EXPECT_EQ(device, range_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 2 * mib));
  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  EXPECT_EQ(cpu_device, range_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 2 * mib));
  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, here()));
  EXPECT_EQ(-2, range_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 2 * mib));
}

TEST_P(managed_memory, accessors_are_listed_and_the_rest_is_marked) {
  WEIR_NEEDS(mem_advise);
  const CUdeviceptr address = new_managed(2 * mib);
  std::array<int, 4> listed{99, 99, 99, 99};
  const auto list = [&] {
    return cu->mem_range_get_attribute(listed.data(), sizeof(listed),
                                       CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, 2 * mib);
  };
  WEIR_OK(list());
  EXPECT_EQ((std::array{-2, -2, -2, -2}), listed);
  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_SET_ACCESSED_BY, here()));
  WEIR_OK(list());
  EXPECT_EQ((std::array{device, -2, -2, -2}), listed);
  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_UNSET_ACCESSED_BY, here()));
  WEIR_OK(list());
  EXPECT_EQ((std::array{-2, -2, -2, -2}), listed);
}

TEST_P(managed_memory, the_older_advice_takes_a_device_number) {
  const CUdeviceptr address = new_managed(2 * mib);
  WEIR_OK(cu->mem_advise_v1(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, cpu_device));
  EXPECT_EQ(cpu_device, range_number(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 2 * mib));
}

TEST_P(managed_memory, locations_have_a_type_and_an_id) {
  WEIR_NEEDS(mem_advise);
  const CUdeviceptr address = new_managed(2 * mib);
  const auto type = CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE;
  const auto id = CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID;
  EXPECT_EQ(CU_MEM_LOCATION_TYPE_INVALID, range_number(type, address, 2 * mib));
  WEIR_OK(cu->mem_advise(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here()));
  EXPECT_EQ(CU_MEM_LOCATION_TYPE_DEVICE, range_number(type, address, 2 * mib));
  EXPECT_EQ(device, range_number(id, address, 2 * mib));
}

TEST_P(managed_memory, prefetch_runs_in_stream_order) {
  const CUstream stream = new_stream();
  const CUdeviceptr address = new_managed(2 * mib);
  auto held = occupy(stream);
  WEIR_OK(fill(address, 8, 2 * mib / sizeof(word), stream));
  WEIR_OK(cu->mem_prefetch_async_v1(address, 2 * mib, cpu_device, stream));
  EXPECT_TRUE(stays_busy(stream));
  held->finish();
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(8u, words_at(address)[0]);
}

}  // namespace
}  // namespace weir::testing_support

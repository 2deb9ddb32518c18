// SPDX-License-Identifier: Apache-2.0
// Contract: stream-ordered pools: order, reuse, attributes, thresholds, trim, access.
#include <limits>
#include <thread>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

using std::chrono::milliseconds;

class pools : public contract_test {
 protected:
  std::uint64_t number(CUmemoryPool pool, CUmemPool_attribute attribute) {
    std::uint64_t value = ~std::uint64_t{0};
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_pool_get_attribute(pool, attribute, &value));
    return value;
  }
  int flag(CUmemoryPool pool, CUmemPool_attribute attribute) {
    int value = -1;
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_pool_get_attribute(pool, attribute, &value));
    return value;
  }
  std::uint64_t used(CUmemoryPool pool) { return number(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT); }
  std::uint64_t reserved(CUmemoryPool pool) {
    return number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  }
  CUresult set_number(CUmemoryPool pool, CUmemPool_attribute attribute, std::uint64_t value) {
    return cu->mem_pool_set_attribute(pool, attribute, &value);
  }
  CUresult set_flag(CUmemoryPool pool, CUmemPool_attribute attribute, int value) {
    return cu->mem_pool_set_attribute(pool, attribute, &value);
  }
  /// A pool that keeps all its memory.
  CUmemoryPool new_keeping_pool() {
    const CUmemoryPool pool = new_pool();
    EXPECT_EQ(CUDA_SUCCESS, set_number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                       std::numeric_limits<std::uint64_t>::max()));
    return pool;
  }
};
WEIR_CONTRACT(pools);

const refusal_list pools_refusals{
    "pools",
    {
        {"device_get_default_mem_pool into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_get_default_mem_pool(nullptr, b.device); }},
        {"device_get_default_mem_pool of no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           CUmemoryPool pool = nullptr;
           return b.cu->device_get_default_mem_pool(&pool, 1000);
         }},
        {"device_get_mem_pool into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_get_mem_pool(nullptr, b.device); }},
        {"device_get_mem_pool of no device", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemoryPool pool = nullptr;
           return b.cu->device_get_mem_pool(&pool, 1000);
         }},
        {"device_set_mem_pool(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_set_mem_pool(b.device, nullptr); }},
        {"device_set_mem_pool of no device", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->device_set_mem_pool(1000, b.new_pool()); }},
        {"mem_pool_create into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto request = b.pool_properties();
           return b.cu->mem_pool_create(nullptr, &request);
         }},
        {"mem_pool_create of nothing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemoryPool pool = nullptr;
           return b.cu->mem_pool_create(&pool, nullptr);
         }},
        {"mem_pool_create without a type", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           auto request = b.pool_properties();
           request.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
           CUmemoryPool pool = nullptr;
           return b.cu->mem_pool_create(&pool, &request);
         }},
        {"mem_pool_create on no device", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           auto request = b.pool_properties();
           request.location.id = 1000;
           CUmemoryPool pool = nullptr;
           return b.cu->mem_pool_create(&pool, &request);
         }},
        {"mem_pool_create with a reserved byte set", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           auto request = b.pool_properties();
           request.reserved[5] = 1;
           CUmemoryPool pool = nullptr;
           return b.cu->mem_pool_create(&pool, &request);
         }},
        {"mem_pool_destroy(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_pool_destroy(nullptr); }},
        {"mem_pool_destroy of the default pool", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemoryPool pool = nullptr;
           b.cu->device_get_default_mem_pool(&pool, b.device);
           return b.cu->mem_pool_destroy(pool);
         }},
        {"mem_pool_get_attribute(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t value = 0;
           return b.cu->mem_pool_get_attribute(nullptr, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
         }},
        {"mem_pool_get_attribute into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_pool_get_attribute(b.new_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                               nullptr);
         }},
        {"mem_pool_get_attribute of no attribute", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t value = 0;
           return b.cu->mem_pool_get_attribute(b.new_pool(), static_cast<CUmemPool_attribute>(99),
                                               &value);
         }},
        {"mem_pool_set_attribute of the memory in use", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t value = 0;
           return b.cu->mem_pool_set_attribute(b.new_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
                                               &value);
         }},
        {"mem_pool_set_attribute of the memory reserved", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t value = 0;
           return b.cu->mem_pool_set_attribute(b.new_pool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                               &value);
         }},
        {"mem_pool_set_attribute of a high mark to 1", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::uint64_t value = 1;
           return b.cu->mem_pool_set_attribute(b.new_pool(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value);
         }},
        {"mem_pool_trim_to(null)", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_pool_trim_to(nullptr, 0); }},
        {"mem_pool_set_access without a list", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_pool_set_access(b.new_pool(), nullptr, 1); }},
        {"mem_pool_set_access for no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1000},
                                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
           return b.cu->mem_pool_set_access(b.new_pool(), &access, 1);
         }},
        {"mem_pool_set_access that shuts the owner out", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           const CUmemAccessDesc access{b.here(), CU_MEM_ACCESS_FLAGS_PROT_NONE};
           return b.cu->mem_pool_set_access(b.new_pool(), &access, 1);
         }},
        {"mem_pool_get_access into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemLocation here = b.here();
           return b.cu->mem_pool_get_access(nullptr, b.new_pool(), &here);
         }},
        {"mem_alloc_async into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_alloc_async(nullptr, 16, b.new_stream()); }},
        {"mem_alloc_async of more than there is", CUDA_ERROR_OUT_OF_MEMORY,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc_async(&address, std::size_t{1} << 43, b.new_stream());
         }},
        {"mem_alloc_from_pool_async from no pool", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_alloc_from_pool_async(&address, 16, nullptr, b.new_stream());
         }},
        {"mem_alloc_from_pool_async past the pool's limit", CUDA_ERROR_OUT_OF_MEMORY,
         [](driver_fixture& b) {
           auto request = b.pool_properties();
           request.maxSize = 64 * mib;
           CUmemoryPool pool = nullptr;
           b.cu->mem_pool_create(&pool, &request);
           CUdeviceptr address = 0;
           const CUresult answer =
               b.cu->mem_alloc_from_pool_async(&address, 128 * mib, pool, b.new_stream());
           b.cu->mem_pool_destroy(pool);
           return answer;
         }},
        {"mem_free_async of what was freed", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUstream stream = b.new_stream();
           CUdeviceptr address = 0;
           b.cu->mem_alloc_async(&address, 4096, stream);
           b.cu->mem_free_async(address, stream);
           b.cu->stream_synchronize(stream);
           return b.cu->mem_free_async(address, stream);
         }},
        {"mem_free_async inside an allocation", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUstream stream = b.new_stream();
           CUdeviceptr address = 0;
           b.cu->mem_alloc_async(&address, 4096, stream);
           const CUresult answer = b.cu->mem_free_async(address + 512, stream);
           b.cu->mem_free_async(address, stream);
           return answer;
         }},
        {"mem_free_async of managed memory", CUDA_ERROR_NOT_SUPPORTED,
         [](driver_fixture& b) {
           return b.cu->mem_free_async(b.new_managed(4096), b.new_stream());
         }},
        {"mem_free_async of mapped memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_free_async(b.new_mapping(b.granularity()), b.new_stream());
         }},
        {"mem_free_async of a host address", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           static char host = 0;
           return b.cu->mem_free_async(reinterpret_cast<std::uintptr_t>(&host), b.new_stream());
         }},
    }};

TEST_P(pools, refuses) { expect_refusals(pools_refusals, machine); }

TEST_P(pools, the_default_pool_is_current_until_another_is_set) {
  CUmemoryPool standard = nullptr;
  CUmemoryPool current = nullptr;
  WEIR_OK(cu->device_get_default_mem_pool(&standard, device));
  WEIR_OK(cu->device_get_mem_pool(&current, device));
  EXPECT_EQ(standard, current);
  const CUmemoryPool own_pool = new_pool();
  WEIR_OK(cu->device_set_mem_pool(device, own_pool));
  WEIR_OK(cu->device_get_mem_pool(&current, device));
  EXPECT_EQ(own_pool, current);
  const CUstream stream = new_stream();
  CUdeviceptr address = 0;
  WEIR_OK(cu->mem_alloc_async(&address, mib, stream));
  EXPECT_EQ(mib, used(own_pool));
  WEIR_OK(cu->mem_free_async(address, stream));
  WEIR_OK(cu->device_set_mem_pool(device, standard));
}

TEST_P(pools, destroying_the_current_pool_makes_the_default_one_current) {
  CUmemoryPool standard = nullptr;
  CUmemoryPool current = nullptr;
  WEIR_OK(cu->device_get_default_mem_pool(&standard, device));
  const auto request = pool_properties();
  CUmemoryPool own_pool = nullptr;
  WEIR_OK(cu->mem_pool_create(&own_pool, &request));
  WEIR_OK(cu->device_set_mem_pool(device, own_pool));
  WEIR_OK(cu->mem_pool_destroy(own_pool));
  WEIR_OK(cu->device_get_mem_pool(&current, device));
  EXPECT_EQ(standard, current);
  WEIR_OK(cu->device_set_mem_pool(device, standard));
}

TEST_P(pools, a_new_pool_has_the_documented_attributes) {
  const CUmemoryPool pool = new_pool();
  EXPECT_EQ(1, flag(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES));
  EXPECT_EQ(1, flag(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC));
  EXPECT_EQ(1, flag(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES));
  EXPECT_EQ(0u, number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
  EXPECT_EQ(0u, reserved(pool));
  EXPECT_EQ(0u, number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
  EXPECT_EQ(0u, used(pool));
  EXPECT_EQ(0u, number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
}

TEST_P(pools, attributes_can_be_set_and_read_back) {
  const CUmemoryPool pool = new_pool();
  for (const auto attribute :
       {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
    WEIR_OK(set_flag(pool, attribute, 0));
    EXPECT_EQ(0, flag(pool, attribute));
    WEIR_OK(set_flag(pool, attribute, 1));
    EXPECT_EQ(1, flag(pool, attribute));
  }
  WEIR_OK(set_number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 123456789));
  EXPECT_EQ(123456789u, number(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
}

TEST_P(pools, usage_counts_when_the_call_is_made) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream stream = new_stream();
  auto held = occupy(stream);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&first, 3 * mib, pool, stream));
  EXPECT_EQ(3 * mib, used(pool));
  WEIR_OK(cu->mem_alloc_from_pool_async(&second, 5 * mib, pool, stream));
  EXPECT_EQ(8 * mib, used(pool));
  EXPECT_GE(reserved(pool), 8 * mib);
  WEIR_OK(cu->mem_free_async(first, stream));
  WEIR_OK(cu->mem_free_async(second, stream));
  EXPECT_EQ(0u, used(pool));
  held->finish();
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, used(pool));
  EXPECT_EQ(8 * mib, number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
}

TEST_P(pools, small_allocations_are_aligned_and_counted_exactly) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream stream = new_stream();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{512}, std::size_t{513}}) {
    CUdeviceptr address = 0;
    const std::uint64_t before = used(pool);
    WEIR_OK(cu->mem_alloc_from_pool_async(&address, bytes, pool, stream));
    EXPECT_EQ(0u, address % 512);
    // Counted as asked for, not as rounded.
    EXPECT_EQ(bytes, used(pool) - before);
    WEIR_OK(cu->mem_free_async(address, stream));
  }
}

TEST_P(pools, high_marks_can_be_reset) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream stream = new_stream();
  CUdeviceptr address = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&address, 4 * mib, pool, stream));
  WEIR_OK(cu->mem_free_async(address, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(4 * mib, number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  WEIR_OK(set_number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0));
  WEIR_OK(set_number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0));
  // A mark falls to what there is now.
  EXPECT_EQ(used(pool), number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  EXPECT_EQ(reserved(pool), number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
}

TEST_P(pools, memory_freed_on_a_stream_is_reused_on_it_at_once) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream stream = new_stream();
  auto held = occupy(stream);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&first, 4 * mib, pool, stream));
  WEIR_OK(fill(first, 1, mib, stream));
  WEIR_OK(cu->mem_free_async(first, stream));
  WEIR_OK(cu->mem_alloc_from_pool_async(&second, 4 * mib, pool, stream));
  EXPECT_EQ(first, second);
  WEIR_OK(fill(second, 2, mib, stream));
  held->finish();
  EXPECT_EQ(0u, mismatches(second, 2, mib));
  WEIR_OK(cu->mem_free_async(second, stream));
}

TEST_P(pools, memory_freed_on_a_busy_stream_is_not_reused_on_another) {
  const CUmemoryPool pool = new_keeping_pool();
  WEIR_OK(set_flag(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0));
  const CUstream busy = new_stream();
  const CUstream other = new_stream();
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&first, 4 * mib, pool, busy));
  WEIR_OK(cu->stream_synchronize(busy));
  auto held = occupy(busy);
  WEIR_OK(cu->mem_free_async(first, busy));
  WEIR_OK(cu->mem_alloc_from_pool_async(&second, 4 * mib, pool, other));
  EXPECT_TRUE(second >= first + 4 * mib || second + 4 * mib <= first);
  held->finish();
  WEIR_OK(cu->mem_free_async(second, other));
}

TEST_P(pools, memory_whose_free_has_happened_is_reused_opportunistically) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream first_stream = new_stream();
  const CUstream second_stream = new_stream();
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&first, 32 * mib, pool, first_stream));
  WEIR_OK(cu->mem_free_async(first, first_stream));
  WEIR_OK(cu->stream_synchronize(first_stream));
  WEIR_OK(cu->mem_alloc_from_pool_async(&second, 32 * mib, pool, second_stream));
  EXPECT_EQ(first, second);
  WEIR_OK(cu->mem_free_async(second, second_stream));
}

TEST_P(pools, memory_is_reused_behind_an_event) {
  const CUmemoryPool pool = new_keeping_pool();
  WEIR_OK(set_flag(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0));
  WEIR_OK(set_flag(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0));
  const CUstream first_stream = new_stream();
  const CUstream second_stream = new_stream();
  const CUevent freed = new_event();
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&first, 32 * mib, pool, first_stream));
  WEIR_OK(cu->stream_synchronize(first_stream));
  auto held = occupy(first_stream);
  WEIR_OK(fill(first, 1, mib, first_stream));
  WEIR_OK(cu->mem_free_async(first, first_stream));
  WEIR_OK(cu->event_record(freed, first_stream));
  WEIR_OK(cu->stream_wait_event(second_stream, freed, 0));
  WEIR_OK(cu->mem_alloc_from_pool_async(&second, 32 * mib, pool, second_stream));
  EXPECT_EQ(first, second);
  WEIR_OK(fill(second, 2, mib, second_stream));
  held->finish();
  EXPECT_EQ(0u, mismatches(second, 2, mib));
  WEIR_OK(cu->mem_free_async(second, second_stream));
}

TEST_P(pools, memory_moving_between_streams_is_never_torn) {
  const CUmemoryPool pool = new_keeping_pool();
  constexpr std::size_t count = 64 * kib;
  const CUdeviceptr wrong = new_memory(8 * sizeof(word));
  WEIR_OK(cu->memset_d32(wrong, 0, 8));
  WEIR_OK(cu->ctx_synchronize());
  CUstream some[4] = {new_stream(), new_stream(), new_stream(CU_STREAM_DEFAULT), new_stream()};
  for (word round = 0; round < 60; ++round) {
    const std::size_t index = (round * 7 + round / 4) % 4;
    const CUstream stream = some[index];
    CUdeviceptr memory = 0;
    WEIR_OK(cu->mem_alloc_from_pool_async(&memory, count * sizeof(word), pool, stream));
    WEIR_OK(fill(memory, round + 1, count, stream));
    const std::chrono::microseconds pause{round % 3 == 0 ? 100 : 0};
    WEIR_OK(spin(pause, stream));
    WEIR_OK(check(memory, round + 1, count, wrong + index * sizeof(word), stream));
    WEIR_OK(cu->mem_free_async(memory, stream));
  }
  for (const word count_wrong : words(wrong, 4)) EXPECT_EQ(0u, count_wrong);
}

TEST_P(pools, an_allocation_may_be_freed_on_another_stream_after_a_wait) {
  const CUmemoryPool pool = new_pool();
  const CUstream making = new_stream();
  const CUstream freeing = new_stream();
  const CUevent used_up = new_event();
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 4 * mib, pool, making));
  WEIR_OK(fill(memory, 1, mib, making));
  WEIR_OK(cu->event_record(used_up, making));
  WEIR_OK(cu->stream_wait_event(freeing, used_up, 0));
  WEIR_OK(cu->mem_free_async(memory, freeing));
  WEIR_OK(cu->stream_synchronize(freeing));
  EXPECT_EQ(0u, used(pool));
}

TEST_P(pools, plain_free_takes_pool_memory_too) {
  const CUmemoryPool pool = new_pool();
  const CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 4 * mib, pool, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  WEIR_OK(cu->mem_free(memory));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->mem_free(memory));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->mem_free_async(memory, stream));
  // Such a free is never subtracted from the count, but the memory does go back.
  EXPECT_EQ(4 * mib, used(pool));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, reserved(pool));
}

TEST_P(pools, nothing_can_be_allocated_and_freed) {
  const CUmemoryPool pool = new_pool();
  const CUstream stream = new_stream();
  CUdeviceptr memory = 1;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_alloc_from_pool_async(&memory, 0, pool, stream));
  EXPECT_EQ(0u, memory);
  memory = 1;
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_alloc_async(&memory, 0, stream));
  EXPECT_EQ(0u, memory);
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_free_async(0, stream));
  EXPECT_EQ(0u, reserved(pool));
}

TEST_P(pools, async_free_takes_plain_memory_too) {
  const CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc(&memory, 4 * mib));
  WEIR_OK(fill(memory, 1, mib, stream));
  WEIR_OK(cu->mem_free_async(memory, stream));
  WEIR_OK(cu->stream_synchronize(stream));
}

TEST_P(pools, without_a_threshold_a_synchronize_gives_memory_back) {
  const CUmemoryPool pool = new_pool();
  const CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 64 * mib, pool, stream));
  EXPECT_GE(reserved(pool), 64 * mib);
  WEIR_OK(cu->mem_free_async(memory, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_EQ(0u, reserved(pool));
}

TEST_P(pools, a_threshold_keeps_memory_through_a_synchronize) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 64 * mib, pool, stream));
  WEIR_OK(cu->mem_free_async(memory, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  EXPECT_GE(reserved(pool), 64 * mib);
  EXPECT_EQ(0u, used(pool));
}

TEST_P(pools, trimming_gives_back_what_is_free) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream stream = new_stream();
  CUdeviceptr live = 0;
  CUdeviceptr dead = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&live, 64 * mib, pool, stream));
  WEIR_OK(cu->mem_alloc_from_pool_async(&dead, 128 * mib, pool, stream));
  WEIR_OK(cu->mem_free_async(dead, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  const std::uint64_t before = reserved(pool);
  EXPECT_GE(before, 192 * mib);
  WEIR_OK(cu->mem_pool_trim_to(pool, before));
  EXPECT_EQ(before, reserved(pool));
  WEIR_OK(cu->mem_pool_trim_to(pool, 0));
  EXPECT_EQ(64 * mib, reserved(pool));
  WEIR_OK(cu->mem_free_async(live, stream));
  WEIR_OK(cu->stream_synchronize(stream));
  WEIR_OK(cu->mem_pool_trim_to(pool, 0));
  EXPECT_EQ(0u, reserved(pool));
}

TEST_P(pools, a_pool_takes_device_memory) {
  const CUmemoryPool pool = new_keeping_pool();
  const CUstream stream = new_stream();
  std::size_t before = 0;
  std::size_t during = 0;
  std::size_t total = 0;
  WEIR_OK(cu->mem_get_info(&before, &total));
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 96 * mib, pool, stream));
  WEIR_OK(cu->mem_get_info(&during, &total));
  EXPECT_EQ(reserved(pool), before - during);
  WEIR_OK(cu->mem_free_async(memory, stream));
  WEIR_OK(cu->stream_synchronize(stream));
}

TEST_P(pools, a_destroyed_pool_lives_until_its_last_allocation_is_freed) {
  const auto request = pool_properties();
  CUmemoryPool pool = nullptr;
  WEIR_OK(cu->mem_pool_create(&pool, &request));
  const CUstream stream = new_stream();
  CUdeviceptr memory = 0;
  WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 4 * mib, pool, stream));
  WEIR_OK(cu->mem_pool_destroy(pool));
  WEIR_OK(fill(memory, 6, mib, stream));
  EXPECT_EQ(0u, mismatches(memory, 6, mib));
  WEIR_OK(cu->mem_free_async(memory, stream));
  WEIR_OK(cu->stream_synchronize(stream));
}

TEST_P(pools, the_owner_has_access) {
  const CUmemoryPool pool = new_pool();
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CUmemLocation location = here();
  WEIR_OK(cu->mem_pool_get_access(&flags, pool, &location));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, flags);
  const CUmemAccessDesc access{here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_pool_set_access(pool, &access, 1));
}

TEST_P(pools, the_per_thread_and_legacy_streams_allocate_too) {
  const CUmemoryPool pool = new_pool();
  for (const CUstream stream : {CUstream{nullptr}, legacy_stream(), per_thread_stream()}) {
    CUdeviceptr memory = 0;
    WEIR_OK(cu->mem_alloc_from_pool_async(&memory, 4 * kib, pool, stream));
    WEIR_OK(fill(memory, 3, kib, stream));
    EXPECT_EQ(0u, mismatches(memory, 3, kib));
    WEIR_OK(cu->mem_free_async(memory, stream));
  }
}

}  // namespace
}  // namespace weir::testing_support

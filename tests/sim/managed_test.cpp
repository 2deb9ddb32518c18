// SPDX-License-Identifier: Apache-2.0
// Managed memory: where pages are, how they move, what advice does to that.
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <vector>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr CUmemLocation on_device{CU_MEM_LOCATION_TYPE_DEVICE, 0};
constexpr CUmemLocation on_other{CU_MEM_LOCATION_TYPE_DEVICE, 1};
constexpr CUmemLocation on_host{CU_MEM_LOCATION_TYPE_HOST, 0};

/// In pages, as migrations are counted.
constexpr std::uint64_t pages(std::size_t size) { return size / 4096; }

class managed_memory : public memory_fixture {
 protected:
  explicit managed_memory(sim::machine_options options = small_machine(64 * mib, 2))
      : memory_fixture{std::move(options)}, on{stream()} {}

  void on_device_touch(CUdeviceptr address, std::size_t size, bool write = false) {
    EXPECT_EQ(run(on, {write ? writes(address, size) : reads(address, size)}), CUDA_SUCCESS);
  }
  void on_host_touch(CUdeviceptr address, std::size_t size, bool write = false) {
    if (write) {
      machine->host_write(at<void>(address), size);
    } else {
      machine->host_read(at<const void>(address), size);
    }
  }
  CUresult prefetch(CUdeviceptr address, std::size_t size, CUmemLocation to) {
    const CUresult answer = cuda.mem_prefetch_async(address, size, to, 0, on);
    if (answer == CUDA_SUCCESS) {
      EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
    }
    return answer;
  }
  void advise(CUdeviceptr address, std::size_t size, CUmem_advise advice, CUmemLocation where) {
    EXPECT_EQ(cuda.mem_advise(address, size, advice, where), CUDA_SUCCESS);
  }
  int range(CUmem_range_attribute which, CUdeviceptr address, std::size_t size) {
    int value = 77;
    EXPECT_EQ(cuda.mem_range_get_attribute(&value, sizeof(value), which, address, size),
              CUDA_SUCCESS);
    return value;
  }
  sim::migration_counts moved(int device = 0) { return machine->migrations(device_id{device}); }

  CUstream on = nullptr;
};

TEST_F(managed_memory, is_asked_for_properly) {
  CUdeviceptr made = 0;
  EXPECT_EQ(cuda.mem_alloc_managed(&made, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_alloc_managed(nullptr, 64, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  for (const unsigned flags : {0U, 3U, 4U}) {
    EXPECT_EQ(cuda.mem_alloc_managed(&made, 64, flags), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_F(managed_memory, needs_a_context_and_addresses) {
  constexpr std::size_t more_than_addresses = std::size_t{1} << 60;
  CUdeviceptr made = 0;
  EXPECT_EQ(cuda.mem_alloc_managed(&made, more_than_addresses, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_alloc_managed(&made, 64, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuda.mem_alloc_managed(&made, 64, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(made, 0U);
}

TEST_F(managed_memory, belongs_to_the_context_it_was_made_in) {
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  const CUdeviceptr here = managed(mib);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  const CUdeviceptr there = managed(mib);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, here), 0);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there), 1);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, there), other);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_reset(1), CUDA_SUCCESS);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, here), context);
  EXPECT_EQ(attribute_answer(CU_POINTER_ATTRIBUTE_CONTEXT, there), CUDA_ERROR_INVALID_VALUE);
}

class unmanaged_device : public memory_fixture {
 protected:
  unmanaged_device() : memory_fixture{options()} {}
  static sim::machine_options options() {
    sim::machine_options wanted = small_machine(64 * mib);
    wanted.devices.front().managed_memory = false;
    return wanted;
  }
};

TEST_F(unmanaged_device, has_no_managed_memory) {
  CUdeviceptr made = 0;
  EXPECT_EQ(cuda.mem_alloc_managed(&made, 64, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(managed_memory, takes_room_where_it_is_touched_first) {
  const CUdeviceptr address = managed(8 * mib);
  EXPECT_EQ(used(), 0U);
  on_device_touch(address, 4 * mib, true);
  EXPECT_EQ(used(), 4 * mib);
  on_host_touch(address + 4 * mib, 4 * mib, true);
  EXPECT_EQ(used(), 4 * mib);
  EXPECT_EQ(moved().to_device, 0U);  // nothing was anywhere before
  EXPECT_EQ(moved().to_host, 0U);
  EXPECT_EQ(cuda.mem_free(address), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
}

TEST_F(managed_memory, moves_to_who_touches_it) {
  const CUdeviceptr address = managed(8 * mib);
  on_host_touch(address, 8 * mib, true);
  *at<int>(address + 5 * mib) = 42;
  int seen = 0;
  EXPECT_EQ(run(on, {reads(address, 8 * mib)}, [&] { seen = *at<int>(address + 5 * mib); }),
            CUDA_SUCCESS);
  EXPECT_EQ(seen, 42);
  EXPECT_EQ(moved().to_device, pages(8 * mib));
  EXPECT_EQ(used(), 8 * mib);
  on_host_touch(address, 1);  // one page fault
  EXPECT_EQ(moved().to_host, pages(64 * kib));
  EXPECT_EQ(used(), 8 * mib - 64 * kib);
  EXPECT_EQ(moved().evicted, 0U);
}

TEST_F(managed_memory, moves_though_other_memory_is_touched_before_it) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  CUdeviceptr address = 0;
  std::vector<void*> mapped;
  // Mostly the page right before it is free; else the system chooses another, which helps later.
  do {
    address = managed(2 * mib);
    mapped.push_back(::mmap(at<void>(address - page), page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(mapped.back(), MAP_FAILED);
  } while (mapped.back() != at<void>(address - page) && mapped.size() < 16);
  if (mapped.back() != at<void>(address - page)) GTEST_SKIP() << "no free page lies before it";
  ASSERT_EQ(cuda.mem_host_register(mapped.back(), page, 0), CUDA_SUCCESS);
  on_host_touch(address, 2 * mib, true);
  on_device_touch(address - page, page + 2 * mib);
  EXPECT_EQ(moved().to_device, pages(2 * mib));
  EXPECT_EQ(used(), 2 * mib);
  EXPECT_EQ(cuda.mem_host_unregister(mapped.back()), CUDA_SUCCESS);
  for (void* const each : mapped) ::munmap(each, page);
}

TEST_F(managed_memory, moves_by_the_faults_that_a_touch_takes) {
  constexpr std::size_t fault = 64 * kib;
  const CUdeviceptr address = managed(2 * mib);
  on_device_touch(address, 2 * mib, true);
  on_host_touch(address + fault + 5, 1);
  EXPECT_EQ(moved().to_host, pages(fault));
  on_host_touch(address + fault, fault);
  EXPECT_EQ(moved().to_host, pages(fault)) << "these have moved";
  on_host_touch(address + 3 * fault - 1, 2);
  EXPECT_EQ(moved().to_host, pages(3 * fault));
  on_host_touch(address + 4 * fault, fault);
  EXPECT_EQ(moved().to_host, pages(4 * fault));
  EXPECT_EQ(used(), 2 * mib - 4 * fault);
}

TEST_F(managed_memory, takes_no_more_than_its_own_pages) {
  on_device_touch(managed(100), 100, true);
  EXPECT_EQ(used(), 4 * kib);
  on_device_touch(managed(4 * kib + 1), 1, true);
  EXPECT_EQ(used(), 12 * kib);
}

TEST_F(managed_memory, moves_between_devices) {
  const CUdeviceptr address = managed(2 * mib);
  on_device_touch(address, 2 * mib, true);
  EXPECT_EQ(prefetch(address, 2 * mib, on_other), CUDA_SUCCESS);
  EXPECT_EQ(used(0), 0U);
  EXPECT_EQ(used(1), 2 * mib);
  EXPECT_EQ(moved(1).to_device, pages(2 * mib));
  EXPECT_EQ(moved(0).to_host, 0U);
}

TEST_F(managed_memory, prefetch_happens_in_its_turn) {
  const CUdeviceptr address = managed(8 * mib);
  on_host_touch(address, 8 * mib, true);
  ASSERT_EQ(cuda.mem_prefetch_async(address, 8 * mib, on_device, 0, on), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 8 * mib), 0);
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  EXPECT_EQ(used(), 8 * mib);
  EXPECT_EQ(moved().to_device, pages(8 * mib));
  on_device_touch(address, 8 * mib);
  EXPECT_EQ(moved().to_device, pages(8 * mib));  // it was there
  EXPECT_EQ(prefetch(address, 8 * mib, on_host), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(moved().to_host, pages(8 * mib));
}

TEST_F(managed_memory, prefetch_takes_the_pages_that_the_range_touches) {
  const CUdeviceptr address = managed(8 * mib);
  on_host_touch(address, 8 * mib, true);
  EXPECT_EQ(prefetch(address + 4 * mib + 4096 + 100, 10, on_device), CUDA_SUCCESS);
  EXPECT_EQ(used(), 4 * kib);
  EXPECT_EQ(moved().to_device, 1U);
  EXPECT_EQ(prefetch(address + 4 * mib + 3 * 4096 - 1, 2, on_device), CUDA_SUCCESS);
  EXPECT_EQ(used(), 12 * kib);
  EXPECT_EQ(moved().to_device, 3U);
  on_host_touch(address, 4 * mib);
  on_host_touch(address + 4 * mib + 64 * kib, 4 * mib - 64 * kib);
  EXPECT_EQ(moved().to_host, 0U) << "none of these was fetched";
  EXPECT_EQ(prefetch(address + 4 * mib, 4096, on_host), CUDA_SUCCESS);
  EXPECT_EQ(moved().to_host, 0U);
  EXPECT_EQ(prefetch(address + 4 * mib + 4 * 4096, 4096, on_host), CUDA_SUCCESS);
  EXPECT_EQ(moved().to_host, 0U);
  EXPECT_EQ(prefetch(address + 4 * mib + 2 * 4096, 4096, on_host), CUDA_SUCCESS);
  EXPECT_EQ(moved().to_host, 1U);
  EXPECT_EQ(used(), 8 * kib);
}

TEST_F(managed_memory, prefetch_refuses_what_it_cannot_do) {
  const CUdeviceptr address = managed(8 * mib);
  EXPECT_EQ(prefetch(address, 0, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(prefetch(address, 9 * mib, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(prefetch(address, 4096, {CU_MEM_LOCATION_TYPE_DEVICE, 7}), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(prefetch(address, 4096, {}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(prefetch(address, 4096, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 99}),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(prefetch(plain(4096), 4096, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(prefetch(nowhere, 4096, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_prefetch_async(address, 4096, on_device, 1, on), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(prefetch(address, 4096, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}), CUDA_SUCCESS);
  EXPECT_EQ(prefetch(address, 4096, {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0}), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_prefetch_async_v1(address, 4096, cpu_device, on), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_prefetch_async_v1(address, 4096, 7, on), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(managed_memory, prefetch_cannot_be_captured) {
  const CUdeviceptr address = managed(8 * mib);
  ASSERT_EQ(cuda.stream_begin_capture(on, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_prefetch_async(address, 4096, on_device, 0, on),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuda.stream_end_capture(on, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// --- Advice --------------------------------------------------------------------------------------

TEST_F(managed_memory, read_mostly_pages_are_copied_until_written) {
  const CUdeviceptr address = managed(2 * mib);
  on_host_touch(address, 2 * mib, true);
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device);
  on_device_touch(address, 2 * mib);
  EXPECT_EQ(prefetch(address, 2 * mib, on_other), CUDA_SUCCESS);
  EXPECT_EQ(used(0), 2 * mib);
  EXPECT_EQ(used(1), 2 * mib);
  on_host_touch(address, 2 * mib);
  EXPECT_EQ(moved(0).to_host, 0U);  // the host kept its copy
  on_device_touch(address, 2 * mib, true);
  EXPECT_EQ(used(0), 2 * mib);
  EXPECT_EQ(used(1), 0U);
  on_host_touch(address, 2 * mib);
  EXPECT_EQ(moved(0).to_host, pages(2 * mib));
  EXPECT_EQ(used(0), 2 * mib);
  advise(address, 2 * mib, CU_MEM_ADVISE_UNSET_READ_MOSTLY, on_device);
  EXPECT_EQ(used(0), 0U);  // one copy is left, the host's
}

TEST_F(managed_memory, the_copy_at_the_preferred_place_is_the_one_that_is_left) {
  const CUdeviceptr address = managed(2 * mib);
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device);
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_device);
  on_host_touch(address, 2 * mib);
  EXPECT_EQ(prefetch(address, 2 * mib, on_device), CUDA_SUCCESS);
  EXPECT_EQ(prefetch(address, 2 * mib, on_other), CUDA_SUCCESS);
  EXPECT_EQ(prefetch(address, 2 * mib, on_host), CUDA_SUCCESS);
  EXPECT_EQ(used(0), 2 * mib);
  EXPECT_EQ(used(1), 2 * mib);
  advise(address, 2 * mib, CU_MEM_ADVISE_UNSET_READ_MOSTLY, on_device);
  EXPECT_EQ(used(0), 2 * mib);
  EXPECT_EQ(used(1), 0U);
}

TEST_F(managed_memory, pages_at_their_preferred_place_are_reached_from_afar) {
  const CUdeviceptr address = managed(2 * mib);
  on_host_touch(address, 2 * mib, true);
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_host);
  on_device_touch(address, 2 * mib, true);
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(moved().to_device, 0U);
  advise(address, 2 * mib, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, on_host);
  on_device_touch(address, 2 * mib, true);
  EXPECT_EQ(used(), 2 * mib);
  // The host cannot reach into a device: there the advice does not hold the pages.
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_device);
  on_host_touch(address, 2 * mib);
  EXPECT_EQ(used(), 0U);
}

TEST_F(managed_memory, first_touch_goes_to_the_preferred_place) {
  const CUdeviceptr address = managed(2 * mib);
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_host);
  on_device_touch(address, 2 * mib, true);
  EXPECT_EQ(used(), 0U);
}

TEST_F(managed_memory, who_is_said_to_access_pages_does_not_pull_them) {
  const CUdeviceptr address = managed(2 * mib);
  on_host_touch(address, 2 * mib, true);
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device);
  on_device_touch(address, 2 * mib);
  EXPECT_EQ(used(), 0U);
  advise(address, 2 * mib, CU_MEM_ADVISE_UNSET_ACCESSED_BY, on_device);
  on_device_touch(address, 2 * mib);
  EXPECT_EQ(used(), 2 * mib);
}

TEST_F(managed_memory, advice_is_refused_where_it_makes_no_sense) {
  const CUdeviceptr address = managed(8 * mib);
  const CUmemLocation nobody{CU_MEM_LOCATION_TYPE_DEVICE, 7};
  const auto answer = [&](CUdeviceptr where, std::size_t size, int advice, CUmemLocation who) {
    return cuda.mem_advise(where, size, static_cast<CUmem_advise>(advice), who);
  };
  EXPECT_EQ(answer(address, 4096, 0, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 4096, 7, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 0, 1, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 9 * mib, 1, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(plain(64), 64, 1, on_device), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 4096, 1, nobody), CUDA_SUCCESS);  // names nobody that matters
  EXPECT_EQ(answer(address, 4096, 1, {}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 4096, 3, nobody), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 4096, 5, nobody), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 4096, 5, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(address, 4096, 3, {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_advise_v1(address, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, cpu_device),
            CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(answer(address, 4096, 1, on_device), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(managed_memory, ranges_tell_what_all_their_pages_agree_on) {
  const CUdeviceptr address = managed(8 * mib);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 8 * mib), -2);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, address, 8 * mib), 0);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, address, 8 * mib), -2);
  advise(address, 4 * mib, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 4 * mib), 1);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 8 * mib), 0);
  advise(address, 8 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_other);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 8 * mib), 1);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, address, 8 * mib), 1);
  advise(address, 8 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_host);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, address, 8 * mib), -1);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, address, 8 * mib), 2);
  EXPECT_EQ(prefetch(address, 8 * mib, on_device), CUDA_SUCCESS);
  EXPECT_EQ(prefetch(address + 100, 10, on_host), CUDA_SUCCESS);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 4096), -1);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address + 4096, 4096), 0);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 8 * mib), -2);
  EXPECT_EQ(range(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, address + 4096, 4096), 1);
}

TEST_F(managed_memory, ranges_list_who_accesses_them) {
  const CUdeviceptr address = managed(8 * mib);
  advise(address, 8 * mib, CU_MEM_ADVISE_SET_ACCESSED_BY, on_host);
  advise(address, 8 * mib, CU_MEM_ADVISE_SET_ACCESSED_BY, on_other);
  advise(address, 4 * mib, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device);
  std::array<int, 4> list{};
  ASSERT_EQ(cuda.mem_range_get_attribute(list.data(), sizeof(list),
                                         CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, 8 * mib),
            CUDA_SUCCESS);
  EXPECT_THAT(list, ElementsAre(1, -1, -2, -2));
  ASSERT_EQ(cuda.mem_range_get_attribute(list.data(), sizeof(int),
                                         CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, 4 * mib),
            CUDA_SUCCESS);
  EXPECT_EQ(list[0], 0);
}

TEST_F(managed_memory, ranges_are_asked_properly) {
  const CUdeviceptr address = managed(8 * mib);
  int value[2] = {};
  const auto ask = [&](void* data, std::size_t room, int which, std::size_t size) {
    return cuda.mem_range_get_attribute(data, room, static_cast<CUmem_range_attribute>(which),
                                        address, size);
  };
  EXPECT_EQ(ask(value, 8, 1, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 2, 1, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 6, 3, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 0, 3, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 4, 0, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 4, 9, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 4, 1, 9 * mib), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(nullptr, 4, 1, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(value, 4, 1, 4096), CUDA_SUCCESS);
}

// --- A full device -------------------------------------------------------------------------------

TEST_F(managed_memory, leaves_a_full_device_oldest_first) {
  const CUdeviceptr old = managed(16 * mib);
  const CUdeviceptr young = managed(16 * mib);
  on_device_touch(old, 16 * mib, true);
  on_device_touch(young, 16 * mib, true);
  plain(32 * mib);
  EXPECT_EQ(used(), 64 * mib);
  plain(4 * mib);
  EXPECT_EQ(used(), 64 * mib);
  EXPECT_EQ(moved().evicted, pages(4 * mib));
  EXPECT_EQ(moved().to_host, pages(4 * mib));
  on_device_touch(young, 16 * mib);
  EXPECT_EQ(moved().to_device, 0U);  // the young ones were left alone
  on_device_touch(old, 4 * mib);     // these come back, and as many of the old must go
  EXPECT_EQ(moved().to_device, pages(4 * mib));
  EXPECT_EQ(moved().evicted, pages(8 * mib));
}

TEST_F(managed_memory, of_one_age_leaves_a_full_device_from_its_beginning) {
  const CUdeviceptr address = managed(16 * mib);
  // So that one prefetch brings two runs of pages.
  advise(address + 8 * mib, 8 * mib, CU_MEM_ADVISE_SET_ACCESSED_BY, on_device);
  ASSERT_EQ(prefetch(address, 16 * mib, on_device), CUDA_SUCCESS);
  plain(48 * mib);
  plain(4 * mib);
  EXPECT_EQ(moved().to_host, pages(4 * mib));
  on_host_touch(address, 4 * mib);
  EXPECT_EQ(moved().to_host, pages(4 * mib));  // they were there already
}

TEST_F(managed_memory, leaves_a_full_device_without_a_move_where_another_copy_is_left) {
  const CUdeviceptr address = managed(2 * mib);
  on_host_touch(address, 2 * mib, true);
  advise(address, 2 * mib, CU_MEM_ADVISE_SET_READ_MOSTLY, on_device);
  on_device_touch(address, 2 * mib);
  plain(64 * mib);
  EXPECT_EQ(used(), 64 * mib);
  EXPECT_EQ(moved().to_host, 0U);
  EXPECT_EQ(moved().evicted, 0U);
  on_host_touch(address, 2 * mib);
  EXPECT_EQ(moved().to_host, 0U) << "the copy was the host's all the time";
}

TEST_F(managed_memory, leaves_no_device_but_the_full_one) {
  const CUdeviceptr here = managed(2 * mib);
  const CUdeviceptr there = managed(2 * mib);
  ASSERT_EQ(prefetch(there, 2 * mib, on_other), CUDA_SUCCESS);
  ASSERT_EQ(prefetch(here, 2 * mib, on_device), CUDA_SUCCESS);
  plain(64 * mib);
  EXPECT_EQ(moved(0).evicted, pages(2 * mib));
  EXPECT_EQ(moved(1).evicted, 0U);
  EXPECT_EQ(used(0), 64 * mib);
  EXPECT_EQ(used(1), 2 * mib);
}

TEST_F(managed_memory, can_be_more_than_the_device_holds) {
  const CUdeviceptr address = managed(160 * mib);
  on_host_touch(address, 160 * mib, true);
  on_device_touch(address, 160 * mib);
  EXPECT_EQ(used(), 64 * mib);
  EXPECT_EQ(moved().to_device, pages(160 * mib));
  EXPECT_EQ(moved().evicted, pages(96 * mib));
}

TEST_F(managed_memory, stays_away_from_a_device_full_of_other_memory) {
  plain(64 * mib);
  const CUdeviceptr address = managed(2 * mib);
  on_host_touch(address, 2 * mib, true);
  on_device_touch(address, 2 * mib);
  EXPECT_EQ(moved().to_device, 0U);
  EXPECT_EQ(used(), 64 * mib);
}

class odd_capacity : public managed_memory {
 protected:
  odd_capacity() : managed_memory{small_machine(4 * mib - 1)} {}
};

TEST_F(odd_capacity, leaves_a_device_that_lacks_a_single_byte) {
  const CUdeviceptr address = managed(2 * mib);
  on_device_touch(address, 2 * mib, true);
  plain(2 * mib);
  EXPECT_EQ(used(), 2 * mib);
  EXPECT_EQ(moved().evicted, pages(2 * mib));
}

TEST_F(managed_memory, leaves_a_full_device_in_whole_pages_of_the_device) {
  const CUdeviceptr old = managed(2 * mib);
  const CUdeviceptr young = managed(2 * mib);
  on_device_touch(old, 64 * kib, true);
  on_device_touch(young, 2 * mib, true);
  plain(60 * mib);
  EXPECT_EQ(used(), 62 * mib + 64 * kib);
  plain(2 * mib);
  EXPECT_EQ(moved().evicted, pages(64 * kib)) << "the oldest was enough";
  EXPECT_EQ(used(), 64 * mib);
  on_device_touch(old, 64 * kib);
  EXPECT_EQ(moved().evicted, pages(64 * kib + 2 * mib)) << "a whole page of the device";
  EXPECT_EQ(used(), 62 * mib + 64 * kib);
}

// --- Devices that do not share -------------------------------------------------------------------

class exclusive_managed_memory : public managed_memory {
 protected:
  exclusive_managed_memory() : managed_memory{options()} {}
  static sim::machine_options options() {
    auto wanted = small_machine(64 * mib);
    wanted.devices[0].concurrent_managed_access = false;
    return wanted;
  }
};

TEST_F(exclusive_managed_memory, is_not_the_hosts_while_the_device_works) {
  const CUdeviceptr address = managed(2 * mib);
  on_host_touch(address, 64, true);
  EXPECT_THAT(hazards(), IsEmpty());
  work(on, {});  // any work, whatever it touches
  on_host_touch(address + 8, 64);
  on_host_touch(address, 32, true);
  ASSERT_THAT(hazards(), ElementsAre(hazard_kind::bad_access, hazard_kind::bad_access));
  const auto read = machine->hazards()[0];
  EXPECT_EQ(read.second.label, "host read");
  EXPECT_FALSE(read.second.writes);
  EXPECT_EQ(read.shared.address, address + 8);
  EXPECT_EQ(read.shared.size, 64U);
  EXPECT_EQ(machine->hazards()[1].second.label, "host write");
  EXPECT_TRUE(machine->hazards()[1].second.writes);
  machine->clear_hazards();
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  on_host_touch(address, 64);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(exclusive_managed_memory, attached_to_the_host_is_the_hosts_alone) {
  const CUdeviceptr address = managed(2 * mib, CU_MEM_ATTACH_HOST);
  work(on, {});
  on_host_touch(address, 64, true);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(run(on, {reads(address, 64)}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(exclusive_managed_memory, is_attached_once_the_stream_has_come_to_it) {
  const CUdeviceptr address = managed(2 * mib);
  work(on, {});
  ASSERT_EQ(cuda.stream_attach_mem_async(on, address, 0, CU_MEM_ATTACH_HOST), CUDA_SUCCESS);
  on_host_touch(address, 64);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access)) << "it is the device's still";
  machine->clear_hazards();
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  work(on, {});
  on_host_touch(address, 64);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(exclusive_managed_memory, attached_to_a_stream_waits_for_that_stream_only) {
  const CUdeviceptr address = managed(2 * mib);
  ASSERT_EQ(cuda.stream_attach_mem_async(on, address, 0, CU_MEM_ATTACH_SINGLE), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
  work(stream(), {});
  on_host_touch(address, 64);
  EXPECT_THAT(hazards(), IsEmpty());
  work(on, {});
  on_host_touch(address, 64);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

class unwatched_managed_memory : public managed_memory {
 protected:
  unwatched_managed_memory() : managed_memory{options()} {}
  static sim::machine_options options() {
    auto wanted = small_machine(64 * mib);
    wanted.devices[0].concurrent_managed_access = false;
    wanted.check_hazards = false;
    return wanted;
  }
};

TEST_F(unwatched_managed_memory, moves_and_nobody_is_told_what_is_wrong_with_that) {
  const CUdeviceptr address = managed(2 * mib);
  on_device_touch(address, 2 * mib, true);
  work(on, {});
  on_host_touch(address, 2 * mib);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(moved().to_host, pages(2 * mib));
}

class partly_exclusive_managed_memory : public managed_memory {
 protected:
  partly_exclusive_managed_memory() : managed_memory{options()} {}
  static sim::machine_options options() {
    auto wanted = small_machine(64 * mib, 2);
    wanted.devices[0].concurrent_managed_access = false;
    return wanted;
  }
};

TEST_F(partly_exclusive_managed_memory, attached_to_a_stream_of_a_device_that_shares_is_the_hosts) {
  const CUdeviceptr address = managed(2 * mib);
  CUcontext sharing = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&sharing, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_push_current(sharing), CUDA_SUCCESS);
  const CUstream there = stream();
  ASSERT_EQ(cuda.stream_attach_mem_async(there, address, 0, CU_MEM_ATTACH_SINGLE), CUDA_SUCCESS);
  ASSERT_EQ(cuda.stream_synchronize(there), CUDA_SUCCESS);
  work(there, {});
  on_host_touch(address, 64);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(exclusive_managed_memory, is_not_prefetched_to_the_device) {
  const CUdeviceptr address = managed(2 * mib);
  EXPECT_EQ(prefetch(address, 4096, on_device), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(prefetch(address, 4096, on_host), CUDA_SUCCESS);
}

TEST_F(managed_memory, is_attached_as_a_whole) {
  const CUdeviceptr address = managed(2 * mib);
  const auto attach = [&](CUstream to, CUdeviceptr where, std::size_t size, unsigned flags) {
    return cuda.stream_attach_mem_async(to, where, size, flags);
  };
  EXPECT_EQ(attach(on, address, 0, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(attach(on, address, 2 * mib, CU_MEM_ATTACH_HOST), CUDA_SUCCESS);
  EXPECT_EQ(attach(on, address, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attach(on, address + 4096, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attach(on, address, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attach(on, address, 0, 3), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attach(nullptr, address, 0, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(attach(nullptr, address, 0, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(attach(on, plain(64), 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace weir::sim_tests

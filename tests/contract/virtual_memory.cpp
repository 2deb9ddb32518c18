// SPDX-License-Identifier: Apache-2.0
// Contract: address ranges, physical handles, mapping, access rights, and sharing a handle.
#include <unistd.h>

#include <array>

#include "support/child_process.hpp"
#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

constexpr auto read_write = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

class virtual_memory : public contract_test {
 protected:
  void SetUp() override {
    contract_test::SetUp();
    if (cu != nullptr) unit = granularity();
  }
  CUresult grant(CUdeviceptr address, std::size_t bytes, CUmemAccess_flags flags = read_write) {
    const CUmemAccessDesc access{here(), flags};
    return cu->mem_set_access(address, bytes, &access, 1);
  }
  unsigned long long rights(CUdeviceptr address) {
    unsigned long long flags = 99;
    const CUmemLocation location = here();
    EXPECT_EQ(CUDA_SUCCESS, cu->mem_get_access(&flags, &location, address));
    return flags;
  }
  std::size_t unit = 0;
};
WEIR_CONTRACT(virtual_memory);

const refusal_list virtual_memory_refusals{
    "virtual_memory",
    {
        {"mem_get_allocation_granularity into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto request = b.properties();
           return b.cu->mem_get_allocation_granularity(nullptr, &request,
                                                       CU_MEM_ALLOC_GRANULARITY_MINIMUM);
         }},
        {"mem_get_allocation_granularity of nothing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           std::size_t bytes = 0;
           return b.cu->mem_get_allocation_granularity(&bytes, nullptr,
                                                       CU_MEM_ALLOC_GRANULARITY_MINIMUM);
         }},
        {"mem_get_allocation_granularity with no option", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto request = b.properties();
           std::size_t bytes = 0;
           return b.cu->mem_get_allocation_granularity(
               &bytes, &request, static_cast<CUmemAllocationGranularity_flags>(9));
         }},
        {"mem_address_reserve into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_address_reserve(nullptr, 2 * mib, 0, 0, 0); }},
        {"mem_address_reserve of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_address_reserve(&address, 0, 0, 0, 0);
         }},
        {"mem_address_reserve of an odd size", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_address_reserve(&address, 2 * mib + 1, 0, 0, 0);
         }},
        {"mem_address_reserve with an alignment of 3", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_address_reserve(&address, 2 * mib, 3, 0, 0);
         }},
        {"mem_address_reserve with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_address_reserve(&address, 2 * mib, 0, 0, 1);
         }},
        {"mem_address_reserve of more than there is", CUDA_ERROR_OUT_OF_MEMORY,
         [](driver_fixture& b) {
           CUdeviceptr address = 0;
           return b.cu->mem_address_reserve(&address, std::size_t{1} << 60, 0, 0, 0);
         }},
        {"mem_address_free of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_address_free(0, 2 * mib); }},
        {"mem_address_free of half a range", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_address_free(b.new_range(4 * mib), 2 * mib); }},
        {"mem_address_free inside a range", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_address_free(b.new_range(4 * mib) + 2 * mib, 2 * mib);
         }},
        {"mem_address_free of a mapped range", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_address_free(b.new_mapping(2 * mib), 2 * mib); }},
        {"mem_create into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto request = b.properties();
           return b.cu->mem_create(nullptr, 2 * mib, &request, 0);
         }},
        {"mem_create of nothing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_create(&handle, 2 * mib, nullptr, 0);
         }},
        {"mem_create of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto request = b.properties();
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_create(&handle, 0, &request, 0);
         }},
        {"mem_create of less than the granularity", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto request = b.properties();
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_create(&handle, b.granularity() + 4096, &request, 0);
         }},
        {"mem_create with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const auto request = b.properties();
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_create(&handle, 2 * mib, &request, 1);
         }},
        {"mem_create without a type", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           auto request = b.properties();
           request.type = CU_MEM_ALLOCATION_TYPE_INVALID;
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_create(&handle, 2 * mib, &request, 0);
         }},
        {"mem_create on no device", CUDA_ERROR_INVALID_DEVICE,
         [](driver_fixture& b) {
           auto request = b.properties();
           request.location.id = 1000;
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_create(&handle, 2 * mib, &request, 0);
         }},
        {"mem_create of more than there is", CUDA_ERROR_OUT_OF_MEMORY,
         [](driver_fixture& b) {
           const auto request = b.properties();
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_create(&handle, std::size_t{1} << 43, &request, 0);
         }},
        {"mem_release of no handle", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_release(0); }},
        {"mem_map of no handle", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_map(b.new_range(2 * mib), 2 * mib, 0, 0, 0); }},
        {"mem_map where nothing is reserved", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_map(0x10000000, 2 * mib, 0, b.new_handle(2 * mib), 0);
         }},
        {"mem_map of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_map(b.new_range(2 * mib), 0, 0, b.new_handle(2 * mib), 0);
         }},
        {"mem_map with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_map(b.new_range(2 * mib), 2 * mib, 0, b.new_handle(2 * mib), 1);
         }},
        {"mem_map of more than the handle", CUDA_ERROR_NOT_SUPPORTED,
         [](driver_fixture& b) {
           return b.cu->mem_map(b.new_range(4 * mib), 4 * mib, 0, b.new_handle(2 * mib), 0);
         }},
        {"mem_map of part of a handle", CUDA_ERROR_NOT_SUPPORTED,
         [](driver_fixture& b) {
           return b.cu->mem_map(b.new_range(4 * mib), 2 * mib, 0, b.new_handle(4 * mib), 0);
         }},
        {"mem_map from the middle of a handle", CUDA_ERROR_NOT_SUPPORTED,
         [](driver_fixture& b) {
           return b.cu->mem_map(b.new_range(4 * mib), 2 * mib, 2 * mib, b.new_handle(4 * mib), 0);
         }},
        {"mem_map over a mapping", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_map(b.new_mapping(2 * mib), 2 * mib, 0, b.new_handle(2 * mib), 0);
         }},
        {"mem_map at an address that is not aligned", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_map(b.new_range(4 * mib) + 4096, 2 * mib, 0, b.new_handle(2 * mib), 0);
         }},
        {"mem_unmap where nothing is reserved", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_unmap(0x10000000, 2 * mib); }},
        {"mem_unmap of half a mapping", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_unmap(b.new_mapping(4 * mib), 2 * mib); }},
        {"mem_unmap of 0 bytes", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->mem_unmap(b.new_mapping(2 * mib), 0); }},
        {"mem_set_access of nothing mapped", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemAccessDesc access{b.here(), read_write};
           return b.cu->mem_set_access(b.new_range(2 * mib), 2 * mib, &access, 1);
         }},
        {"mem_set_access of a range that is half mapped", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUdeviceptr range = b.new_range(4 * mib);
           b.cu->mem_map(range, 2 * mib, 0, b.new_handle(2 * mib), 0);
           b.defer([&b, range] { b.cu->mem_unmap(range, 2 * mib); });
           const CUmemAccessDesc access{b.here(), read_write};
           return b.cu->mem_set_access(range, 4 * mib, &access, 1);
         }},
        {"mem_set_access without a list", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_set_access(b.new_mapping(2 * mib), 2 * mib, nullptr, 1);
         }},
        {"mem_set_access for no device", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1000}, read_write};
           return b.cu->mem_set_access(b.new_mapping(2 * mib), 2 * mib, &access, 1);
         }},
        {"mem_set_access with unknown rights", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemAccessDesc access{b.here(), static_cast<CUmemAccess_flags>(2)};
           return b.cu->mem_set_access(b.new_mapping(2 * mib), 2 * mib, &access, 1);
         }},
        {"mem_get_access into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemLocation here = b.here();
           return b.cu->mem_get_access(nullptr, &here, b.new_mapping(2 * mib));
         }},
        {"mem_get_access of nothing reserved", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           const CUmemLocation here = b.here();
           unsigned long long flags = 0;
           return b.cu->mem_get_access(&flags, &here, 0x10000000);
         }},
        {"mem_get_allocation_properties of no handle", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemAllocationProp stored{};
           return b.cu->mem_get_allocation_properties(&stored, 0);
         }},
        {"mem_get_allocation_properties into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_get_allocation_properties(nullptr, b.new_handle(2 * mib));
         }},
        {"mem_retain_allocation_handle of plain memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_retain_allocation_handle(
               &handle, reinterpret_cast<void*>(static_cast<std::uintptr_t>(b.new_memory(4096))));
         }},
        {"mem_retain_allocation_handle of null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_retain_allocation_handle(&handle, nullptr);
         }},
        {"mem_export_to_shareable_handle of a handle not made for it", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int descriptor = -1;
           return b.cu->mem_export_to_shareable_handle(&descriptor, b.new_handle(2 * mib), posix_fd,
                                                       0);
         }},
        {"mem_export_to_shareable_handle into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return b.cu->mem_export_to_shareable_handle(nullptr, b.new_handle(2 * mib, posix_fd),
                                                       posix_fd, 0);
         }},
        {"mem_export_to_shareable_handle with flags", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           int descriptor = -1;
           return b.cu->mem_export_to_shareable_handle(&descriptor, b.new_handle(2 * mib, posix_fd),
                                                       posix_fd, 1);
         }},
        {"mem_import_from_shareable_handle of no descriptor", CUDA_ERROR_UNKNOWN,
         [](driver_fixture& b) {
           CUmemGenericAllocationHandle handle = 0;
           return b.cu->mem_import_from_shareable_handle(
               &handle, reinterpret_cast<void*>(std::intptr_t{-1}), posix_fd);
         }},
        {"mem_import_from_shareable_handle of a pipe", CUDA_ERROR_UNKNOWN,
         [](driver_fixture& b) {
           int ends[2] = {-1, -1};
           if (::pipe(ends) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
           CUmemGenericAllocationHandle handle = 0;
           const CUresult answer = b.cu->mem_import_from_shareable_handle(
               &handle, reinterpret_cast<void*>(std::intptr_t{ends[0]}), posix_fd);
           ::close(ends[0]);
           ::close(ends[1]);
           return answer;
         }},
    }};

TEST_P(virtual_memory, refuses) { expect_refusals(virtual_memory_refusals, machine); }

TEST_P(virtual_memory, the_unit_is_a_power_of_two_for_every_kind_of_handle) {
  for (const auto type : {CU_MEM_HANDLE_TYPE_NONE, posix_fd}) {
    const auto request = properties(type);
    std::size_t least = 0;
    std::size_t best = 0;
    WEIR_OK(cu->mem_get_allocation_granularity(&least, &request, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    WEIR_OK(
        cu->mem_get_allocation_granularity(&best, &request, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    EXPECT_EQ(2 * mib, least);
    EXPECT_EQ(0u, best % least);
  }
}

TEST_P(virtual_memory, reserved_addresses_cost_no_memory) {
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  WEIR_OK(cu->mem_get_info(&before, &total));
  const std::size_t tebibyte = std::size_t{1} << 40;
  const CUdeviceptr range = new_range(tebibyte);
  WEIR_OK(cu->mem_get_info(&after, &total));
  EXPECT_EQ(before, after);
  EXPECT_EQ(0u, range % unit);
}

TEST_P(virtual_memory, alignment_and_address_can_be_asked_for) {
  CUdeviceptr range = 0;
  const std::size_t gib = kib * mib;
  WEIR_OK(cu->mem_address_reserve(&range, 4 * mib, gib, 0, 0));
  EXPECT_EQ(0u, range % gib);
  WEIR_OK(cu->mem_address_free(range, 4 * mib));
  WEIR_OK(cu->mem_address_reserve(&range, 8 * mib, 0, 0, 0));
  WEIR_OK(cu->mem_address_free(range, 8 * mib));
  CUdeviceptr again = 0;
  WEIR_OK(cu->mem_address_reserve(&again, 4 * mib, 0, range + 4 * mib, 0));
  EXPECT_EQ(range + 4 * mib, again);
  // A hint that cannot be met is only a hint.
  CUdeviceptr other = 0;
  WEIR_OK(cu->mem_address_reserve(&other, 4 * mib, 0, again, 0));
  EXPECT_NE(again, other);
  WEIR_OK(cu->mem_address_free(again, 4 * mib));
  WEIR_OK(cu->mem_address_free(other, 4 * mib));
}

TEST_P(virtual_memory, memory_is_taken_at_create_and_given_back_at_release) {
  std::size_t before = 0;
  std::size_t during = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  const auto request = properties();
  WEIR_OK(cu->mem_get_info(&before, &total));
  CUmemGenericAllocationHandle handle = 0;
  WEIR_OK(cu->mem_create(&handle, 32 * mib, &request, 0));
  WEIR_OK(cu->mem_get_info(&during, &total));
  WEIR_OK(cu->mem_release(handle));
  WEIR_OK(cu->mem_get_info(&after, &total));
  EXPECT_EQ(32 * mib, before - during);
  EXPECT_EQ(before, after);
}

TEST_P(virtual_memory, a_handle_released_while_mapped_lives_until_it_is_unmapped) {
  const CUdeviceptr range = new_range(unit);
  const auto request = properties();
  CUmemGenericAllocationHandle handle = 0;
  std::size_t before = 0;
  std::size_t mapped = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  WEIR_OK(cu->mem_get_info(&before, &total));
  WEIR_OK(cu->mem_create(&handle, unit, &request, 0));
  WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
  WEIR_OK(cu->mem_release(handle));
  WEIR_OK(grant(range, unit));
  WEIR_OK(fill(range, 5, unit / sizeof(word), nullptr));
  EXPECT_EQ(0u, mismatches(range, 5, unit / sizeof(word)));
  WEIR_OK(cu->mem_get_info(&mapped, &total));
  EXPECT_EQ(unit, before - mapped);
  WEIR_OK(cu->mem_unmap(range, unit));
  WEIR_OK(cu->mem_get_info(&after, &total));
  EXPECT_EQ(before, after);
}

TEST_P(virtual_memory, a_mapping_has_no_rights_until_they_are_set) {
  const CUdeviceptr range = new_range(unit);
  const auto handle = new_handle(unit);
  WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
  EXPECT_EQ(static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_NONE), rights(range));
  WEIR_OK(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READ), rights(range));
  WEIR_OK(grant(range, unit));
  EXPECT_EQ(static_cast<unsigned>(read_write), rights(range));
  WEIR_OK(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  EXPECT_EQ(static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_NONE), rights(range));
  WEIR_OK(cu->mem_unmap(range, unit));
}

/// A kernel that writes where access was never granted loses the context.
WEIR_CHILD(access_before_rights) {
  const table& cu = machine.driver();
  CUmemAllocationProp request{};
  request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  request.location = {CU_MEM_LOCATION_TYPE_DEVICE, machine.device()};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr range = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_create(&handle, 2 * mib, &request, 0));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_address_reserve(&range, 2 * mib, 0, 0, 0));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_map(range, 2 * mib, 0, handle, 0));
  word value = 1;
  std::uint64_t count = 1;
  void* parameters[] = {&range, &value, &count};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.launch_kernel(machine.kernels().fill, 1, 1, 1, 1, 1, 1, 0,
                                                   nullptr, parameters, nullptr));
  WEIR_CHILD_EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cu.ctx_synchronize());
  return 0;
}

TEST_P(virtual_memory, access_before_rights_are_set_ends_the_context) {
  child_process child{"access_before_rights", GetParam()};
  EXPECT_EQ(0, child.wait());
}

TEST_P(virtual_memory, copies_and_fills_without_rights_are_refused_and_do_no_harm) {
  const CUdeviceptr range = new_range(unit);
  word host[16] = {};
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->memset_d8(range, 1, 64));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->memcpy_htod(range, host, 64));
  WEIR_OK(cu->mem_map(range, unit, 0, new_handle(unit), 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->memset_d8(range, 1, 64));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->memcpy_htod(range, host, 64));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->memcpy_dtoh(host, range, 64));
  WEIR_OK(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(CUDA_SUCCESS, cu->memcpy_dtoh(host, range, 64));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cu->memset_d8(range, 1, 64));
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
  WEIR_OK(cu->mem_unmap(range, unit));
}

TEST_P(virtual_memory, one_handle_at_two_addresses_is_the_same_bytes) {
  const CUdeviceptr first = new_range(unit);
  const CUdeviceptr second = new_range(unit);
  const auto handle = new_handle(unit);
  for (const CUdeviceptr range : {first, second}) {
    WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
    WEIR_OK(grant(range, unit));
  }
  const CUstream stream = new_stream();
  WEIR_OK(fill(first, 3, unit / sizeof(word), stream));
  WEIR_OK(increment(second, unit / sizeof(word), stream));
  EXPECT_EQ(0u, mismatches(first, 4, unit / sizeof(word)));
  WEIR_OK(cu->mem_unmap(first, unit));
  EXPECT_EQ(0u, mismatches(second, 4, unit / sizeof(word)));
  WEIR_OK(cu->mem_unmap(second, unit));
}

TEST_P(virtual_memory, bytes_stay_with_the_handle_when_it_moves) {
  const CUdeviceptr range = new_range(2 * unit);
  const auto handle = new_handle(unit);
  WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
  WEIR_OK(grant(range, unit));
  WEIR_OK(fill(range, 12, unit / sizeof(word), nullptr));
  WEIR_OK(cu->ctx_synchronize());
  WEIR_OK(cu->mem_unmap(range, unit));
  WEIR_OK(cu->mem_map(range + unit, unit, 0, handle, 0));
  WEIR_OK(grant(range + unit, unit));
  EXPECT_EQ(0u, mismatches(range + unit, 12, unit / sizeof(word)));
  WEIR_OK(cu->mem_unmap(range + unit, unit));
}

TEST_P(virtual_memory, neighbouring_handles_make_one_range) {
  const CUdeviceptr range = new_range(4 * unit);
  for (std::size_t i = 0; i < 4; ++i)
    WEIR_OK(cu->mem_map(range + i * unit, unit, 0, new_handle(unit), 0));
  // One call grants access to all of them, and one call unmaps them.
  WEIR_OK(grant(range, 4 * unit));
  WEIR_OK(fill(range, 30, 4 * unit / sizeof(word), nullptr));
  EXPECT_EQ(0u, mismatches(range, 30, 4 * unit / sizeof(word)));
  WEIR_OK(cu->memset_d8(range + unit - 100, 1, 200));
  EXPECT_EQ(0u, mismatches(range + unit - 100, 0x01010101, 50));
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  WEIR_OK(cu->mem_get_address_range(&base, &bytes, range + unit + 16));
  EXPECT_EQ(range + unit, base);
  EXPECT_EQ(unit, bytes);
  WEIR_OK(cu->mem_unmap(range, 4 * unit));
}

TEST_P(virtual_memory, rights_end_at_the_first_gap) {
  const CUdeviceptr range = new_range(4 * unit);
  const auto handle = new_handle(unit);
  WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
  WEIR_OK(cu->mem_map(range + 2 * unit, unit, 0, handle, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, grant(range, 4 * unit));
  // A range that ends in a mapping is taken, but nothing behind the gap is granted.
  EXPECT_EQ(CUDA_SUCCESS, grant(range, 3 * unit));
  EXPECT_EQ(static_cast<unsigned>(read_write), rights(range));
  EXPECT_EQ(static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_NONE), rights(range + 2 * unit));
  WEIR_OK(cu->mem_unmap(range, 3 * unit));
}

TEST_P(virtual_memory, unmapping_skips_what_is_not_mapped) {
  const CUdeviceptr range = new_range(4 * unit);
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_unmap(range, unit));
  const auto handle = new_handle(unit);
  WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
  WEIR_OK(cu->mem_map(range + 2 * unit, unit, 0, handle, 0));
  EXPECT_EQ(CUDA_SUCCESS, cu->mem_unmap(range, 4 * unit));
}

TEST_P(virtual_memory, mapping_goes_on_while_a_kernel_runs_elsewhere) {
  const CUstream stream = new_stream();
  const CUdeviceptr busy = new_mapping(unit);
  const CUdeviceptr range = new_range(2 * unit);
  const auto handle = new_handle(unit);
  auto held = occupy(stream);
  WEIR_OK(fill(busy, 1, unit / sizeof(word), stream));
  for (int i = 0; i < 4; ++i) {
    const CUdeviceptr place = range + static_cast<std::size_t>(i % 2) * unit;
    WEIR_OK(cu->mem_map(place, unit, 0, handle, 0));
    WEIR_OK(grant(place, unit));
    WEIR_OK(cu->mem_unmap(place, unit));
  }
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cu->stream_query(stream));
  held->finish();
  EXPECT_EQ(0u, mismatches(busy, 1, unit / sizeof(word)));
}

TEST_P(virtual_memory, a_handle_knows_how_it_was_made) {
  const auto handle = new_handle(unit, posix_fd);
  CUmemAllocationProp stored{};
  WEIR_OK(cu->mem_get_allocation_properties(&stored, handle));
  EXPECT_EQ(CU_MEM_ALLOCATION_TYPE_PINNED, stored.type);
  EXPECT_EQ(posix_fd, stored.requestedHandleTypes);
  EXPECT_EQ(CU_MEM_LOCATION_TYPE_DEVICE, stored.location.type);
  EXPECT_EQ(device, stored.location.id);
}

TEST_P(virtual_memory, a_mapped_address_leads_back_to_its_handle) {
  const CUdeviceptr range = new_range(unit);
  const auto request = properties();
  CUmemGenericAllocationHandle handle = 0;
  WEIR_OK(cu->mem_create(&handle, unit, &request, 0));
  WEIR_OK(cu->mem_map(range, unit, 0, handle, 0));
  CUmemGenericAllocationHandle retained = 0;
  WEIR_OK(cu->mem_retain_allocation_handle(
      &retained, reinterpret_cast<void*>(static_cast<std::uintptr_t>(range + 4096))));
  // The same memory: mapping what was found shows the same bytes.
  const CUdeviceptr other = new_range(unit);
  WEIR_OK(cu->mem_map(other, unit, 0, retained, 0));
  WEIR_OK(grant(range, unit));
  WEIR_OK(grant(other, unit));
  WEIR_OK(fill(range, 77, 16, nullptr));
  EXPECT_EQ(0u, mismatches(other, 77, 16));
  WEIR_OK(cu->mem_unmap(other, unit));
  WEIR_OK(cu->mem_unmap(range, unit));
  WEIR_OK(cu->mem_release(retained));
  WEIR_OK(cu->mem_release(handle));
}

TEST_P(virtual_memory, an_exported_handle_can_be_imported_here) {
  const auto handle = new_handle(unit, posix_fd);
  int descriptor = -1;
  WEIR_OK(cu->mem_export_to_shareable_handle(&descriptor, handle, posix_fd, 0));
  ASSERT_GE(descriptor, 0);
  CUmemGenericAllocationHandle imported = 0;
  WEIR_OK(cu->mem_import_from_shareable_handle(
      &imported, reinterpret_cast<void*>(std::intptr_t{descriptor}), posix_fd));
  ::close(descriptor);
  const std::array ranges{new_range(unit), new_range(unit)};
  WEIR_OK(cu->mem_map(ranges[0], unit, 0, handle, 0));
  WEIR_OK(cu->mem_map(ranges[1], unit, 0, imported, 0));
  WEIR_OK(grant(ranges[0], unit));
  WEIR_OK(grant(ranges[1], unit));
  WEIR_OK(fill(ranges[0], 41, 64, nullptr));
  EXPECT_EQ(0u, mismatches(ranges[1], 41, 64));
  WEIR_OK(cu->mem_unmap(ranges[0], unit));
  WEIR_OK(cu->mem_unmap(ranges[1], unit));
  WEIR_OK(cu->mem_release(imported));
}

/// Maps what the parent sends, checks its bytes, and writes its own.
WEIR_CHILD(import_handle) {
  const table& cu = machine.driver();
  const int descriptor = parent.receive_descriptor();
  CUmemGenericAllocationHandle handle = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS,
                    cu.mem_import_from_shareable_handle(
                        &handle, reinterpret_cast<void*>(std::intptr_t{descriptor}), posix_fd));
  ::close(descriptor);
  CUmemAllocationProp stored{};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_get_allocation_properties(&stored, handle));
  WEIR_CHILD_EXPECT(machine.device(), stored.location.id);
  CUdeviceptr range = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_address_reserve(&range, 2 * mib, 0, 0, 0));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_map(range, 2 * mib, 0, handle, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, machine.device()}, read_write};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_set_access(range, 2 * mib, &access, 1));
  std::array<word, 16> seen{};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memcpy_dtoh(seen.data(), range, sizeof(seen)));
  WEIR_CHILD_EXPECT(51u, seen[0]);
  WEIR_CHILD_EXPECT(51u, seen[15]);
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32(range, 52, 2 * mib / sizeof(word)));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.ctx_synchronize());
  WEIR_CHILD_EXPECT(true, parent.meet());
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_unmap(range, 2 * mib));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_release(handle));
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_address_free(range, 2 * mib));
  return 0;
}

TEST_P(virtual_memory, two_processes_share_a_handle) {
  const CUdeviceptr range = new_range(2 * mib);
  const auto handle = new_handle(2 * mib, posix_fd);
  WEIR_OK(cu->mem_map(range, 2 * mib, 0, handle, 0));
  WEIR_OK(grant(range, 2 * mib));
  WEIR_OK(fill(range, 51, 2 * mib / sizeof(word), nullptr));
  WEIR_OK(cu->ctx_synchronize());
  int descriptor = -1;
  WEIR_OK(cu->mem_export_to_shareable_handle(&descriptor, handle, posix_fd, 0));
  child_process child{"import_handle", GetParam()};
  EXPECT_TRUE(child.link().send_descriptor(descriptor));
  ::close(descriptor);
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(0, child.wait());
  EXPECT_EQ(0u, mismatches(range, 52, 2 * mib / sizeof(word)));
  WEIR_OK(cu->mem_unmap(range, 2 * mib));
}

TEST_P(virtual_memory, a_descriptor_keeps_the_memory_alive) {
  const auto request = properties(posix_fd);
  CUmemGenericAllocationHandle handle = 0;
  WEIR_OK(cu->mem_create(&handle, unit, &request, 0));
  int descriptor = -1;
  WEIR_OK(cu->mem_export_to_shareable_handle(&descriptor, handle, posix_fd, 0));
  WEIR_OK(cu->mem_release(handle));
  CUmemGenericAllocationHandle imported = 0;
  WEIR_OK(cu->mem_import_from_shareable_handle(
      &imported, reinterpret_cast<void*>(std::intptr_t{descriptor}), posix_fd));
  ::close(descriptor);
  const CUdeviceptr range = new_range(unit);
  WEIR_OK(cu->mem_map(range, unit, 0, imported, 0));
  WEIR_OK(grant(range, unit));
  WEIR_OK(fill(range, 6, 16, nullptr));
  EXPECT_EQ(0u, mismatches(range, 6, 16));
  WEIR_OK(cu->mem_unmap(range, unit));
  WEIR_OK(cu->mem_release(imported));
}

}  // namespace
}  // namespace weir::testing_support

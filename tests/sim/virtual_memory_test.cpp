// SPDX-License-Identifier: Apache-2.0
// Virtual memory: reservations, handles, mappings, access rights, and what travels as a descriptor.
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

#include "memory_fixture.hpp"
#include "support/sanitizers.hpp"
#include "weir/observe/events.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class virtual_memory : public memory_fixture {
 protected:
  explicit virtual_memory(sim::machine_options options = small_machine(64 * mib, 2))
      : memory_fixture{std::move(options)} {}

  static CUmemAllocationProp properties(int device = 0, CUmemAllocationHandleType types = {}) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.requestedHandleTypes = types;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return wanted;
  }
  CUdeviceptr reserve(std::size_t size) {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda.mem_address_reserve(&made, size, 0, 0, 0), CUDA_SUCCESS);
    return made;
  }
  CUmemGenericAllocationHandle create(std::size_t size, CUmemAllocationHandleType types = {}) {
    CUmemGenericAllocationHandle made = 0;
    const auto wanted = properties(0, types);
    EXPECT_EQ(cuda.mem_create(&made, size, &wanted, 0), CUDA_SUCCESS);
    return made;
  }
  CUresult grant(CUdeviceptr address, std::size_t size,
                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, int device = 0) {
    const CUmemAccessDesc wanted{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return cuda.mem_set_access(address, size, &wanted, 1);
  }
  /// A new handle of `size` mapped at `address`, accessible; released, so that it goes with the
  /// mapping.
  void back(CUdeviceptr address, std::size_t size) {
    const auto handle = create(size);
    EXPECT_EQ(cuda.mem_map(address, size, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(grant(address, size), CUDA_SUCCESS);
    EXPECT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  }
};

// --- Addresses -----------------------------------------------------------------------------------

/// Sanitizers keep most of the address space to themselves.
constexpr std::size_t most_addresses = testing_support::is_sanitized ? tib : 64 * tib;

TEST_F(virtual_memory, reserves_more_than_there_is_memory) {
  for (std::size_t size = tib; size <= most_addresses; size *= 4) {
    CUdeviceptr address = 0;
    ASSERT_EQ(cuda.mem_address_reserve(&address, size, 0, 0, 0), CUDA_SUCCESS) << size;
    EXPECT_EQ(address % unit, 0U);
    EXPECT_FALSE(readable(address));
    EXPECT_EQ(cuda.mem_address_free(address, size), CUDA_SUCCESS);
  }
  CUdeviceptr address = 0;
  EXPECT_EQ(cuda.mem_address_reserve(&address, std::size_t{1} << 60, 0, 0, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(virtual_memory, reserves_in_units) {
  CUdeviceptr address = 0;
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, 4 * kib, 64 * kib, unit + 1}) {
    EXPECT_EQ(cuda.mem_address_reserve(&address, size, 0, 0, 0), CUDA_ERROR_INVALID_VALUE) << size;
  }
  EXPECT_EQ(cuda.mem_address_reserve(&address, unit, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_address_reserve(&address, unit, 0, 0x1001, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_address_reserve(&address, unit, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_address_reserve(nullptr, unit, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_address_reserve(&address, unit, gib, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(address % gib, 0U);
}

TEST_F(virtual_memory, follows_a_hint_where_it_can) {
  const CUdeviceptr range = reserve(8 * unit);
  CUdeviceptr other = 0;
  EXPECT_EQ(cuda.mem_address_reserve(&other, unit, 0, range, 0), CUDA_SUCCESS);
  EXPECT_NE(other, range);
  EXPECT_EQ(cuda.mem_address_free(range, 8 * unit), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_address_reserve(&other, unit, 0, range, 0), CUDA_SUCCESS);
  EXPECT_EQ(other, range);
}

TEST_F(virtual_memory, frees_only_whole_empty_reservations) {
  const CUdeviceptr range = reserve(4 * unit);
  EXPECT_EQ(cuda.mem_address_free(range, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_address_free(range + unit, 3 * unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_address_free(range, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_address_free(nowhere, unit), CUDA_ERROR_INVALID_VALUE);
  back(range + unit, unit);
  EXPECT_EQ(cuda.mem_address_free(range, 4 * unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_unmap(range + unit, unit), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_address_free(range, 4 * unit), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_address_free(range, 4 * unit), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(virtual_memory, addresses_that_were_freed_are_no_longer_what_an_allocator_told_of_them) {
  const auto told = machine->watch_blocks();
  const CUdeviceptr range = reserve(unit);
  back(range, unit);
  told->on_event({.kind = memory_event_kind::allocate, .address = range, .size = 512});
  told->on_event({.kind = memory_event_kind::deallocate, .address = range, .size = 512});
  const CUstream on = stream();
  EXPECT_EQ(run(on, {writes(range, 8)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::use_after_free)) << "it is the allocator's";
  machine->clear_hazards();
  ASSERT_EQ(cuda.mem_unmap(range, unit), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_address_free(range, unit), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  ASSERT_EQ(cuda.mem_address_reserve(&again, unit, 0, range, 0), CUDA_SUCCESS);
  ASSERT_EQ(again, range);
  back(again, unit);
  EXPECT_EQ(run(on, {writes(again, 8)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

// --- Handles -------------------------------------------------------------------------------------

TEST_F(virtual_memory, tells_its_granularity) {
  auto wanted = properties();
  std::size_t found = 0;
  EXPECT_EQ(cuda.mem_get_allocation_granularity(&found, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(found, unit);
  EXPECT_EQ(
      cuda.mem_get_allocation_granularity(&found, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      CUDA_SUCCESS);
  EXPECT_EQ(found, unit);
  EXPECT_EQ(cuda.mem_get_allocation_granularity(&found, &wanted,
                                                static_cast<CUmemAllocationGranularity_flags>(2)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_get_allocation_granularity(nullptr, &wanted, {}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_get_allocation_granularity(&found, nullptr, {}), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(virtual_memory, handles_are_made_of_units_of_a_device) {
  CUmemGenericAllocationHandle made = 0;
  auto wanted = properties();
  EXPECT_EQ(cuda.mem_create(&made, 0, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_create(&made, mib, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_create(&made, unit, &wanted, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_create(&made, unit, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_create(nullptr, unit, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_create(&made, 128 * mib, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  wanted.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(cuda.mem_create(&made, unit, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  wanted = properties(2);
  EXPECT_EQ(cuda.mem_create(&made, unit, &wanted, 0), CUDA_ERROR_INVALID_DEVICE);
  wanted.location = {};
  EXPECT_EQ(cuda.mem_create(&made, unit, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  wanted = properties(0, CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_EQ(cuda.mem_create(&made, unit, &wanted, 0), CUDA_ERROR_NOT_PERMITTED);
  for (const auto type : {CU_MEM_HANDLE_TYPE_WIN32, CU_MEM_HANDLE_TYPE_WIN32_KMT}) {
    wanted = properties(0, type);
    EXPECT_EQ(cuda.mem_create(&made, unit, &wanted, 0), CUDA_ERROR_INVALID_VALUE) << type;
  }
  EXPECT_EQ(made, 0U);
  EXPECT_EQ(used(), 0U);
}

TEST_F(virtual_memory, handles_are_counted) {
  const auto handle = create(2 * unit);
  EXPECT_EQ(used(), 2 * unit);
  CUmemAllocationProp found{};
  EXPECT_EQ(cuda.mem_get_allocation_properties(&found, handle), CUDA_SUCCESS);
  EXPECT_EQ(found.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(cuda.mem_release(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_release(0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_release(nowhere), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_get_allocation_properties(&found, handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(create(unit), handle);  // numbers are used again at once
}

TEST_F(virtual_memory, pages_live_until_handle_and_mappings_are_gone) {
  const CUdeviceptr range = reserve(2 * unit);
  const auto handle = create(unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(grant(range, unit), CUDA_SUCCESS);
  *at<int>(range) = 42;
  EXPECT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(used(), unit);
  EXPECT_EQ(*at<int>(range), 42);
  CUmemGenericAllocationHandle again = 0;
  EXPECT_EQ(cuda.mem_retain_allocation_handle(&again, at<void>(range + 100)), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_unmap(range, unit), CUDA_SUCCESS);
  EXPECT_EQ(used(), unit);
  ASSERT_EQ(cuda.mem_map(range + unit, unit, 0, again, 0), CUDA_SUCCESS);
  ASSERT_EQ(grant(range + unit, unit), CUDA_SUCCESS);
  EXPECT_EQ(*at<int>(range + unit), 42);  // the same pages elsewhere
  EXPECT_EQ(cuda.mem_release(again), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_unmap(range + unit, unit), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
}

TEST_F(virtual_memory, retained_handles_are_released_as_often) {
  const CUdeviceptr range = reserve(unit);
  const auto handle = create(unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle same = 0;
  EXPECT_EQ(cuda.mem_retain_allocation_handle(&same, at<void>(range)), CUDA_SUCCESS);
  EXPECT_EQ(same, handle);
  EXPECT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_release(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_retain_allocation_handle(nullptr, at<void>(range)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_retain_allocation_handle(&same, at<void>(plain(64))),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(virtual_memory, host_handles_take_no_device_memory) {
  CUmemAllocationProp wanted = properties();
  wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuda.mem_create(&handle, unit, &wanted, 0), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
  const CUdeviceptr range = reserve(unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_FALSE(readable(range));
  const CUmemAccessDesc for_host{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_EQ(cuda.mem_set_access(range, unit, &for_host, 1), CUDA_SUCCESS);
  EXPECT_TRUE(readable(range));
  EXPECT_EQ(grant(range, unit), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(range, unit)}), CUDA_SUCCESS);
  wanted.location.id = 99;
  EXPECT_EQ(cuda.mem_create(&handle, unit, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
}

/// A machine whose devices have sizes and addresses, and nothing behind them.
/// A device with more room than the file has in which its memory lies.
class boundless_memory : public virtual_memory {
 protected:
  boundless_memory() : virtual_memory{options()} {}
  static sim::machine_options options() {
    auto wanted = small_machine(std::size_t{1} << 63);
    wanted.devices[0].granularity = bytes{4 * kib};
    wanted.costs = sim::cost_table::free();
    return wanted;
  }
  CUresult try_create(std::size_t size) {
    CUmemGenericAllocationHandle made = 0;
    const auto wanted = properties();
    return cuda.mem_create(&made, size, &wanted, 0);
  }
  static constexpr std::size_t file_length = std::size_t{1} << 62;
};

TEST_F(boundless_memory, ends_with_the_file_it_lies_in) {
  EXPECT_EQ(try_create(file_length), CUDA_SUCCESS);
  EXPECT_EQ(try_create(4 * kib), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(boundless_memory, takes_whole_pages_of_the_device_from_the_file) {
  EXPECT_EQ(try_create(file_length - 3 * mib), CUDA_SUCCESS);
  EXPECT_EQ(try_create(3 * mib), CUDA_ERROR_OUT_OF_MEMORY) << "one page is left";
  EXPECT_EQ(try_create(2 * mib), CUDA_SUCCESS);
}

class unbacked_memory : public virtual_memory {
 protected:
  static sim::machine_options nothing_behind() {
    sim::machine_options options = small_machine(64 * mib, 2);
    options.back_memory = false;
    return options;
  }
  unbacked_memory() : virtual_memory{nothing_behind()} {}
};

TEST_F(unbacked_memory, is_counted_but_not_there) {
  const CUdeviceptr range = reserve(2 * unit);
  back(range, unit);
  const CUdeviceptr made = plain(4 * mib);
  EXPECT_EQ(used(), unit + 4 * mib);
  EXPECT_FALSE(readable(range));
  EXPECT_FALSE(readable(made));
  EXPECT_EQ(cuda.mem_free(made), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_unmap(range, unit), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
  const CUdeviceptr again = plain(4 * mib);
  EXPECT_EQ(run(stream(), {writes(again, 16)}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(unbacked_memory, cannot_be_shared) {
  const CUdeviceptr made = plain(4 * mib);
  CUipcMemHandle handle{};
  EXPECT_EQ(cuda.ipc_get_mem_handle(&handle, made), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda.mem_free(made), CUDA_SUCCESS);
}

TEST(UnbackedMemory, needs_addresses_though_there_is_room) {
  constexpr std::size_t more_than_addresses = std::size_t{1} << 60;
  sim::machine_options options = small_machine(2 * more_than_addresses);
  options.back_memory = false;
  const auto machine = sim::machine::create(options).value();
  const table& cuda = machine->driver();
  CUcontext context = nullptr;
  ASSERT_EQ(cuda.init(0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(context), CUDA_SUCCESS);
  CUdeviceptr made = 0;
  EXPECT_EQ(cuda.mem_alloc(&made, more_than_addresses), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(machine->used(device_id{0}), bytes{0});
}

TEST_F(unbacked_memory, is_there_where_the_host_or_others_may_look) {
  CUmemAllocationProp wanted = properties();
  wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle on_host = 0;
  ASSERT_EQ(cuda.mem_create(&on_host, unit, &wanted, 0), CUDA_SUCCESS);
  const CUdeviceptr range = reserve(2 * unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, on_host, 0), CUDA_SUCCESS);
  const CUmemAccessDesc for_host{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_EQ(cuda.mem_set_access(range, unit, &for_host, 1), CUDA_SUCCESS);
  EXPECT_TRUE(readable(range));
  const auto shared = create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  ASSERT_EQ(cuda.mem_map(range + unit, unit, 0, shared, 0), CUDA_SUCCESS);
  EXPECT_EQ(grant(range + unit, unit), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(range + unit, unit)}), CUDA_SUCCESS);
  EXPECT_TRUE(readable(reinterpret_cast<std::uintptr_t>(pinned(4096))));
}

// --- Mapping -------------------------------------------------------------------------------------

TEST_F(virtual_memory, maps_whole_handles_into_free_reserved_addresses) {
  const CUdeviceptr range = reserve(4 * unit);
  const auto one = create(unit);
  const auto two = create(2 * unit);
  EXPECT_EQ(cuda.mem_map(range, unit, unit, two, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuda.mem_map(range, unit, 0, two, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuda.mem_map(range, 4 * unit, 0, two, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuda.mem_map(range + 4096, unit, 0, one, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(range, 0, 0, one, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(range, unit, 0, one, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(range, unit, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(0x700000000000, unit, 0, one, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(range + 3 * unit, 2 * unit, 0, two, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(range, unit, 0, one, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_map(range, unit, 0, one, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(range, 2 * unit, 0, two, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_map(range + unit, unit, 0, one, 0), CUDA_SUCCESS);
}

TEST_F(virtual_memory, one_handle_at_two_addresses_is_one_memory) {
  const CUdeviceptr range = reserve(2 * unit);
  const auto handle = create(unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_map(range + unit, unit, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(grant(range, 2 * unit), CUDA_SUCCESS);
  EXPECT_EQ(used(), unit);
  *at<int>(range + 64) = 7;
  EXPECT_EQ(*at<int>(range + unit + 64), 7);
  // And a race between the two addresses is a race.
  work(stream(), {writes(range + 64, 4)});
  work(stream(), {reads(range + unit + 64, 4)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
}

TEST_F(virtual_memory, a_mapping_needs_access) {
  const CUdeviceptr range = reserve(unit);
  const auto handle = create(unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_FALSE(readable(range));
  unsigned long long flags = 9;
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  EXPECT_EQ(cuda.mem_get_access(&flags, &here, range), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0U);
  EXPECT_EQ(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_get_access(&flags, &here, range), CUDA_SUCCESS);
  EXPECT_EQ(flags, 1U);
  EXPECT_EQ(run(stream(), {reads(range, unit)}), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
  EXPECT_EQ(run(stream(), {writes(range, 4)}), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::bad_access));
}

TEST_F(virtual_memory, access_is_each_devices_own) {
  const CUdeviceptr range = reserve(unit);
  back(range, unit);
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_enable_peer_access(context, 0), CUDA_SUCCESS);  // is not enough
  ASSERT_EQ(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(range, unit)}), CUDA_SUCCESS);
  ASSERT_EQ(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_NONE, 1), CUDA_SUCCESS);
  EXPECT_EQ(run(stream(), {writes(range, unit)}), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(virtual_memory, access_that_is_taken_back_leaves_none) {
  const CUdeviceptr range = reserve(unit);
  back(range, unit);
  EXPECT_TRUE(readable(range));
  ASSERT_EQ(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  EXPECT_FALSE(readable(range));
}

// Copies and fills of a device's memory are its own, whoever asks; the host's are the asker's.
TEST_F(virtual_memory, copies_and_fills_of_host_handles_need_the_access_of_their_streams_device) {
  CUmemAllocationProp wanted = properties();
  wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuda.mem_create(&handle, unit, &wanted, 0), CUDA_SUCCESS);
  const CUdeviceptr range = reserve(unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(grant(range, unit, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1), CUDA_SUCCESS);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range), 0) << "nobody's";
  const auto to = reinterpret_cast<std::uintptr_t>(pinned(64));
  const CUstream here = stream();
  CUcontext other = nullptr;
  ASSERT_EQ(cuda.device_primary_ctx_retain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuda.ctx_set_current(other), CUDA_SUCCESS);
  const CUstream there = stream();
  EXPECT_EQ(cuda.memset_d8_async(range, 0x5a, 64, here), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memcpy_async(to, range, 64, here), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.memset_d8_async(range, 0x5a, 64, there), CUDA_SUCCESS);
  EXPECT_EQ(cuda.memcpy_async(to, range, 64, there), CUDA_SUCCESS);
  EXPECT_EQ(cuda.stream_synchronize(there), CUDA_SUCCESS);
  EXPECT_EQ(*at<char>(to + 63), 0x5a);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(virtual_memory, access_is_set_on_whole_mappings_without_a_gap) {
  const CUdeviceptr range = reserve(4 * unit);
  const auto two = create(2 * unit);
  ASSERT_EQ(cuda.mem_map(range, 2 * unit, 0, two, 0), CUDA_SUCCESS);
  EXPECT_EQ(grant(range, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(range, 3 * unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(range + 2 * unit, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(range, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(plain(unit), unit), CUDA_ERROR_INVALID_VALUE) << "no mapping, though all of it";
  EXPECT_EQ(grant(range, 2 * unit, static_cast<CUmemAccess_flags>(2)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(range, 2 * unit, CU_MEM_ACCESS_FLAGS_PROT_READ, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_set_access(range, 2 * unit, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc wanted{{CU_MEM_LOCATION_TYPE_HOST, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
  EXPECT_EQ(cuda.mem_set_access(range, 2 * unit, &wanted, 1), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuda.mem_set_access(range, 2 * unit, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(range, 2 * unit), CUDA_SUCCESS);
}

TEST_F(virtual_memory, access_ends_at_the_first_gap) {
  const CUdeviceptr range = reserve(4 * unit);
  for (const std::size_t i : {0, 1, 3}) {
    ASSERT_EQ(cuda.mem_map(range + i * unit, unit, 0, create(unit), 0), CUDA_SUCCESS);
  }
  EXPECT_EQ(grant(range, 4 * unit), CUDA_SUCCESS);
  EXPECT_TRUE(readable(range));
  EXPECT_TRUE(readable(range + unit));
  EXPECT_FALSE(readable(range + 3 * unit));
  EXPECT_EQ(grant(range + unit, 3 * unit), CUDA_SUCCESS);
  EXPECT_FALSE(readable(range + 3 * unit));
  EXPECT_EQ(grant(range + 2 * unit, 2 * unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(grant(range + 3 * unit, unit), CUDA_SUCCESS);
  EXPECT_TRUE(readable(range + 3 * unit));
}

TEST_F(virtual_memory, access_that_the_system_refuses_is_not_given) {
  const CUdeviceptr range = reserve(2 * unit);
  back(range, unit);
  CUmemAllocationProp wanted = properties();
  wanted.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CUmemGenericAllocationHandle host_memory = 0;
  ASSERT_EQ(cuda.mem_create(&host_memory, unit, &wanted, 0), CUDA_SUCCESS);
  const CUdeviceptr refused = range + unit;
  ASSERT_EQ(cuda.mem_map(refused, unit, 0, host_memory, 0), CUDA_SUCCESS);
  // Pages of a file that was opened for reading cannot be made writable.
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::mmap(at<void>(refused), unit, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0),
            at<void>(refused));
  ::close(file);

  const CUmemAccessDesc both[] = {
      {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
      {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  EXPECT_EQ(cuda.mem_set_access(refused, unit, both, 2), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(readable(refused));
  const CUmemLocation second{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  unsigned long long flags = 9;
  EXPECT_EQ(cuda.mem_get_access(&flags, &second, refused), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0U);
  // What was refused is forgotten: reading alone is possible, for the device and for the host.
  EXPECT_EQ(grant(refused, unit, CU_MEM_ACCESS_FLAGS_PROT_READ, 1), CUDA_SUCCESS);
  EXPECT_TRUE(readable(refused));
  EXPECT_EQ(grant(range, 2 * unit, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuda.mem_get_access(&flags, &second, range), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) << "the mappings before it were given it";
  EXPECT_EQ(cuda.mem_get_access(&flags, &second, refused), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READ) << "as it was";
}

TEST_F(virtual_memory, unmaps_whole_mappings) {
  const CUdeviceptr range = reserve(4 * unit);
  back(range, 2 * unit);
  back(range + 3 * unit, unit);
  EXPECT_EQ(cuda.mem_unmap(range, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_unmap(range + unit, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_unmap(range, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_unmap(range, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_unmap(nowhere, unit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(readable(range));
  EXPECT_EQ(cuda.mem_unmap(range, 4 * unit), CUDA_SUCCESS);  // two at once, and a hole
  EXPECT_FALSE(readable(range));
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(cuda.mem_unmap(range, unit), CUDA_SUCCESS);  // nothing there is no error
}

TEST_F(virtual_memory, unmapping_does_not_wait_but_is_watched) {
  const CUdeviceptr range = reserve(unit);
  back(range, unit);
  const CUstream on = stream();
  bool done = false;
  work(on, {writes(range, 64)}, [&] { done = true; });
  EXPECT_EQ(cuda.mem_unmap(range, unit), CUDA_SUCCESS);
  EXPECT_FALSE(done);
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::freed_in_use));
  EXPECT_EQ(cuda.stream_synchronize(on), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(virtual_memory, unmapping_after_a_wait_is_fine) {
  const CUdeviceptr range = reserve(unit);
  back(range, unit);
  EXPECT_EQ(run(stream(), {writes(range, 64)}), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_unmap(range, unit), CUDA_SUCCESS);
  EXPECT_THAT(hazards(), IsEmpty());
}

TEST_F(virtual_memory, is_charged_by_the_handle) {
  const CUdeviceptr range = reserve(5 * unit);
  for (CUdeviceptr each = range; each < range + 5 * unit; each += unit) back(each, unit);
  const auto cost = [&](auto&& call) {
    const auto before = machine->driver_time();
    EXPECT_EQ(call(), CUDA_SUCCESS);
    return machine->driver_time() - before;
  };
  const auto one = cost([&] { return grant(range, unit); });
  EXPECT_GT(one.count(), 0);
  EXPECT_EQ(cost([&] { return grant(range, 4 * unit); }), 4 * one);
  const auto unmap_one = cost([&] { return cuda.mem_unmap(range, unit); });
  EXPECT_GT(unmap_one.count(), 0);
  EXPECT_EQ(cost([&] { return cuda.mem_unmap(range, 5 * unit); }), 4 * unmap_one);
}

TEST_F(virtual_memory, pointers_tell_reservation_and_mapping) {
  const CUdeviceptr range = reserve(4 * unit);
  const auto handle = create(2 * unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUdeviceptr address = range + unit;
  ASSERT_EQ(cuda.mem_map(address, 2 * unit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute_answer(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_get_address_range(nullptr, nullptr, address), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(grant(address, 2 * unit), CUDA_SUCCESS);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address), address);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address), range);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address), 4 * unit);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address + 64), address);
  EXPECT_EQ(attribute<std::size_t>(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address), 2 * unit);
  EXPECT_EQ(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, address), nullptr);
  EXPECT_EQ(attribute<std::uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address), 1U);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_EQ(cuda.mem_get_address_range(&base, &size, address + unit), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_EQ(size, 2 * unit);
  EXPECT_EQ(cuda.mem_free(address), CUDA_ERROR_INVALID_VALUE);
}

// --- Descriptors ---------------------------------------------------------------------------------

class shareable_memory : public virtual_memory {
 protected:
  CUresult import(CUmemGenericAllocationHandle* made, int descriptor) {
    return cuda.mem_import_from_shareable_handle(
        made, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  int share(CUmemGenericAllocationHandle handle) {
    int descriptor = -1;
    EXPECT_EQ(cuda.mem_export_to_shareable_handle(&descriptor, handle,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    return descriptor;
  }
};

TEST_F(shareable_memory, is_not_imported_as_a_pool) {
  const int descriptor = share(create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cuda.mem_pool_import_from_shareable_handle(
                &pool, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(pool, nullptr);
  ::close(descriptor);
}

TEST_F(shareable_memory, is_exported_only_if_made_for_it) {
  int descriptor = -1;
  const auto type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cuda.mem_export_to_shareable_handle(&descriptor, create(unit), type, 0),
            CUDA_ERROR_INVALID_VALUE);
  const auto handle = create(unit, type);
  EXPECT_EQ(cuda.mem_export_to_shareable_handle(nullptr, handle, type, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_export_to_shareable_handle(&descriptor, handle, type, 1),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_export_to_shareable_handle(&descriptor, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda.mem_export_to_shareable_handle(&descriptor, nowhere, type, 0),
            CUDA_ERROR_INVALID_VALUE);
  const int first = share(handle);
  const int second = share(handle);
  EXPECT_NE(first, second);  // each its own, to be closed by who asked
  EXPECT_EQ(::close(first), 0);
  EXPECT_EQ(::close(second), 0);
}

// Number 0 is one like any other, in a process that closed its input.
TEST_F(shareable_memory, travels_under_number_zero_too) {
  const int spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // so that the handle is not there
  const auto handle = create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const int input = ::fcntl(0, F_DUPFD_CLOEXEC, 1);
  ::close(0);
  const int descriptor = share(handle);
  CUmemGenericAllocationHandle imported = 0;
  EXPECT_EQ(import(&imported, 0), CUDA_SUCCESS);
  ::close(descriptor);
  ::dup2(input, 0);
  ::close(input);
  ::close(spare);
  EXPECT_EQ(descriptor, 0) << "the lowest that is free";
  EXPECT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(used(), unit) << "the other handle has the same pages";
  EXPECT_EQ(cuda.mem_release(imported), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
}

TEST_F(shareable_memory, is_closed_to_programs_that_are_started) {
  const int descriptor = share(create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(::fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  ::close(descriptor);
}

TEST_F(shareable_memory, comes_back_as_another_handle_of_the_same_pages) {
  const auto handle = create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const int descriptor = share(handle);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(import(&imported, descriptor), CUDA_SUCCESS);
  ::close(descriptor);
  EXPECT_NE(imported, handle);
  EXPECT_EQ(used(), unit);
  const CUdeviceptr range = reserve(2 * unit);
  ASSERT_EQ(cuda.mem_map(range, unit, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuda.mem_map(range + unit, unit, 0, imported, 0), CUDA_SUCCESS);
  ASSERT_EQ(grant(range, 2 * unit), CUDA_SUCCESS);
  std::memset(at<void>(range), 0x5a, unit);
  EXPECT_EQ(std::memcmp(at<void>(range), at<void>(range + unit), unit), 0);
  work(stream(), {writes(range, 4)});
  work(stream(), {writes(range + unit, 4)});
  EXPECT_THAT(hazards(), ElementsAre(hazard_kind::race));
  CUmemAllocationProp found{};
  EXPECT_EQ(cuda.mem_get_allocation_properties(&found, imported), CUDA_SUCCESS);
  EXPECT_EQ(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  int onwards = -1;
  EXPECT_EQ(cuda.mem_export_to_shareable_handle(&onwards, imported,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(shareable_memory, counts_while_anybody_has_it) {
  const auto handle = create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const int descriptor = share(handle);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_EQ(import(&imported, descriptor), CUDA_SUCCESS);
  ::close(descriptor);
  EXPECT_EQ(cuda.mem_release(handle), CUDA_SUCCESS);
  EXPECT_EQ(used(), unit);
  EXPECT_EQ(cuda.mem_release(imported), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0U);
}

TEST_F(shareable_memory, believes_no_stranger) {
  CUmemGenericAllocationHandle made = 0;
  EXPECT_EQ(import(&made, -1), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(import(&made, 1 << 30), CUDA_ERROR_UNKNOWN);
  const int null_device = ::open("/dev/null", O_RDWR);
  EXPECT_EQ(import(&made, null_device), CUDA_ERROR_UNKNOWN);
  ::close(null_device);
  // A file that looks right but can be cut short under a mapping.
  const int loose = ::memfd_create("loose", MFD_ALLOW_SEALING);
  const auto handle = create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const int real = share(handle);
  std::vector<char> contents(unit + 4096);
  ASSERT_EQ(::pread(real, contents.data(), contents.size(), 0),
            static_cast<ssize_t>(contents.size()));
  ASSERT_EQ(::pwrite(loose, contents.data(), contents.size(), 0),
            static_cast<ssize_t>(contents.size()));
  EXPECT_EQ(import(&made, loose), CUDA_ERROR_UNKNOWN);
  // One that cannot be, and whose size is not what it says; then one that is all right.
  ASSERT_EQ(::ftruncate(loose, static_cast<off_t>(3 * unit)), 0);
  ASSERT_EQ(::fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(import(&made, loose), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(import(&made, real), CUDA_SUCCESS);
  EXPECT_EQ(cuda.mem_import_from_shareable_handle(
                &made, reinterpret_cast<void*>(static_cast<std::intptr_t>(real)),
                CU_MEM_HANDLE_TYPE_NONE),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(import(nullptr, real), CUDA_ERROR_INVALID_VALUE);
  ::close(real);
  ::close(loose);
}

/// What stands behind the memory of an exported handle: that it is one, and of which size.
struct exported_note {
  char magic[8];
  std::uint32_t version;
  std::uint32_t length;
  std::uint64_t size;
};

TEST_F(shareable_memory, believes_no_note_that_is_wrong) {
  const int real = share(create(unit, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  std::vector<char> trailer(4096);
  ASSERT_EQ(::pread(real, trailer.data(), trailer.size(), unit), 4096);
  ::close(real);
  // A file of so many bytes and the changed note behind them, which nobody can cut short.
  const auto answer = [&](std::size_t size, auto&& change) {
    std::vector<char> forged = trailer;
    exported_note note{};
    std::memcpy(&note, forged.data(), sizeof(note));
    change(note);
    std::memcpy(forged.data(), &note, sizeof(note));
    const int file = ::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT_EQ(::pwrite(file, forged.data(), forged.size(), static_cast<off_t>(size)), 4096);
    EXPECT_EQ(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CUmemGenericAllocationHandle made = 0;
    const CUresult said = import(&made, file);
    ::close(file);
    return said;
  };
  const auto as_it_was = [](exported_note&) {};
  EXPECT_EQ(answer(unit, as_it_was), CUDA_SUCCESS);
  EXPECT_EQ(answer(2 * unit, [](exported_note& note) { note.size = 2 * unit; }), CUDA_SUCCESS);
  EXPECT_EQ(answer(2 * unit, as_it_was), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(answer(unit, [](exported_note& note) { note.magic[7] = 'x'; }), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(answer(unit, [](exported_note& note) { ++note.version; }), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(answer(unit, [](exported_note& note) { ++note.length; }), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(answer(unit, [](exported_note& note) { note.length = 1 << 30; }), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(answer(unit, [](exported_note& note) { note.size = 0; }), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(answer(0, [](exported_note& note) { note.size = 0; }), CUDA_ERROR_UNKNOWN) << "empty";
}

}  // namespace
}  // namespace weir::sim_tests

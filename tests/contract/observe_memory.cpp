// SPDX-License-Identifier: Apache-2.0
// Observed: plain, pinned, managed and virtual memory, and what pointers tell.
#include <cstdlib>

#include "support/observe.hpp"

namespace weir::testing_support { namespace {

std::int64_t free_memory(const table& cu) {
  std::size_t free = 0;
  std::size_t total = 0;
  cu.mem_get_info(&free, &total);
  return static_cast<std::int64_t>(free);
}

WEIR_OBSERVE(plain_memory) {
  const table& cu = *fixture.cu;
  std::size_t total = 0;
  std::size_t free = 0;
  facts.result("mem_get_info", cu.mem_get_info(&free, &total));
  facts.number("total", static_cast<std::int64_t>(total));
  facts.number("free at the start", static_cast<std::int64_t>(free));
  facts.number("used at the start", static_cast<std::int64_t>(total - free));
  facts.result("mem_get_info into nulls", cu.mem_get_info(nullptr, nullptr));
  CUdeviceptr last = 0;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{1}, std::size_t{512}, std::size_t{513}, 64 * kib, mib - 1, mib,
        mib + 1, 2 * mib - 1, 2 * mib, 2 * mib + 1, 3 * mib, 20 * mib, 64 * mib, 65 * mib,
        1024 * mib, 1024 * mib + 1}) {
    const std::int64_t before = free_memory(cu);
    const CUdeviceptr address = fixture.new_memory(bytes);
    const std::string label = "mem_alloc of " + std::to_string(bytes);
    facts.number(label + ": taken from the device", before - free_memory(cu));
    facts.number(label + ": distance to the one before", static_cast<std::int64_t>(address - last));
    facts.number(label + ": largest power of two that divides the address",
                 static_cast<std::int64_t>(address & (~address + 1)));
    last = address;
  }
  CUdeviceptr address = 0;
  const std::int64_t before = free_memory(cu);
  cu.mem_alloc(&address, 4096);
  const std::int64_t during = free_memory(cu);
  cu.mem_free(address);
  facts.number("small allocation takes", before - during);
  facts.number("its free gives back", free_memory(cu) - during);
  for (const auto& [width, height, element] : {std::tuple{std::size_t{1}, std::size_t{1}, 4u},
                                               {1000, 7, 4u},
                                               {512, 7, 4u},
                                               {513, 7, 4u},
                                               {100, 1000, 16u},
                                               {10000, 3, 8u}}) {
    std::size_t pitch = 0;
    const CUresult answer = cu.mem_alloc_pitch(&address, &pitch, width, height, element);
    const std::string label = "pitch of " + std::to_string(width) + " x " + std::to_string(height);
    facts.number(label, answer, pitch);
    if (answer != CUDA_SUCCESS) continue;
    std::size_t bytes = 0;
    cu.mem_get_address_range(nullptr, &bytes, address);
    facts.number(label + ": range", static_cast<std::int64_t>(bytes));
    cu.mem_free(address);
  }
  for (const unsigned element : {0u, 1u, 2u, 3u, 5u, 32u}) {
    std::size_t pitch = 0;
    address = 0;
    facts.result("mem_alloc_pitch with element " + std::to_string(element),
                 cu.mem_alloc_pitch(&address, &pitch, 100, 10, element));
    if (address != 0) cu.mem_free(address);
  }
  facts.result("mem_free(0)", cu.mem_free(0));
  facts.result("mem_alloc of free + 1 MiB",
               cu.mem_alloc(&address, static_cast<std::size_t>(free_memory(cu)) + mib));
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  facts.result("mem_get_address_range into nulls",
               cu.mem_get_address_range(nullptr, nullptr, last));
  facts.result("mem_get_address_range of managed",
               cu.mem_get_address_range(&base, &bytes, fixture.new_managed(100000)));
  facts.number("its size", static_cast<std::int64_t>(bytes));
}

WEIR_OBSERVE(pinned_memory) {
  const table& cu = *fixture.cu;
  facts.result("mem_free_host(null)", cu.mem_free_host(nullptr));
  for (unsigned flags = 0; flags < 8; ++flags) {
    void* pointer = nullptr;
    cu.mem_host_alloc(&pointer, 4096, flags);
    unsigned flags_read = 99;
    facts.number("flags read back for " + std::to_string(flags),
                 cu.mem_host_get_flags(&flags_read, pointer), flags_read);
    CUdeviceptr address = 0;
    facts.result("device pointer for " + std::to_string(flags),
                 cu.mem_host_get_device_pointer(&address, pointer, 0));
    facts.number("is it the host address", address == reinterpret_cast<std::uintptr_t>(pointer));
    cu.mem_free_host(pointer);
  }
  void* const host = std::aligned_alloc(4096, 64 * kib);
  char* const unaligned = static_cast<char*>(host) + 100;
  facts.result("register unaligned", cu.mem_host_register(unaligned, 5000, 0));
  facts.result("register overlapping", cu.mem_host_register(host, 64 * kib, 0));
  unsigned flags_read = 99;
  facts.number("flags of registered", cu.mem_host_get_flags(&flags_read, unaligned), flags_read);
  CUdeviceptr address = 0;
  facts.result("device pointer of registered, inside",
               cu.mem_host_get_device_pointer(&address, unaligned + 10, 0));
  facts.result("free_host of registered", cu.mem_free_host(unaligned));
  facts.result("unregister", cu.mem_host_unregister(unaligned));
  facts.result("unregister again", cu.mem_host_unregister(unaligned));
  for (unsigned flags = 0; flags < 16; ++flags) {
    if ((flags & host_register_io_memory) != 0) continue;
    const CUresult answer = cu.mem_host_register(host, 64 * kib, flags);
    facts.result("register with flags " + std::to_string(flags), answer);
    if (answer == CUDA_SUCCESS) cu.mem_host_unregister(host);
  }
  facts.result("unregister of pinned", cu.mem_host_unregister(fixture.new_pinned(4096)));
  std::free(host);
}

WEIR_OBSERVE(managed_memory) {
  const table& cu = *fixture.cu;
  const CUdeviceptr address = fixture.new_managed(4 * mib);
  const auto attributes = [&](const std::string& when) {
    for (int attribute = 1; attribute <= 8; ++attribute) {
      int value = -99;
      const CUresult answer = cu.mem_range_get_attribute(
          &value, sizeof(value), static_cast<CUmem_range_attribute>(attribute), address, 4 * mib);
      facts.number("range attribute " + std::to_string(attribute) + " " + when, answer, value);
    }
  };
  attributes("at first");
  const std::int64_t before = free_memory(cu);
  facts.result("prefetch to the device",
               cu.mem_prefetch_async(address, 4 * mib, fixture.here(), 0, nullptr));
  cu.ctx_synchronize();
  facts.number("device memory it took", before - free_memory(cu));
  attributes("after prefetch to the device");
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  cu.mem_prefetch_async(address, 4 * mib, host, 0, nullptr);
  cu.ctx_synchronize();
  facts.number("device memory taken after prefetch to the host", before - free_memory(cu));
  attributes("after prefetch to the host");
  for (int advice = 1; advice <= 6; ++advice)
    facts.result(
        "advice " + std::to_string(advice) + " for the device",
        cu.mem_advise(address, 4 * mib, static_cast<CUmem_advise>(advice), fixture.here()));
  for (int advice = 1; advice <= 6; ++advice)
    facts.result("advice " + std::to_string(advice) + " for the host",
                 cu.mem_advise(address, 4 * mib, static_cast<CUmem_advise>(advice), host));
  cu.mem_advise(address, 4 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, fixture.here());
  cu.mem_advise(address, 4 * mib, CU_MEM_ADVISE_SET_ACCESSED_BY, host);
  attributes("after preferred = device, accessed by host");
  for (int type = 0; type <= 5; ++type) {
    const CUmemLocation location{static_cast<CUmemLocationType>(type), 0};
    facts.result("prefetch to location type " + std::to_string(type),
                 cu.mem_prefetch_async(address, 4 * mib, location, 0, nullptr));
    facts.result("preferred location type " + std::to_string(type),
                 cu.mem_advise(address, 4 * mib, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location));
  }
  facts.result("prefetch of an odd part",
               cu.mem_prefetch_async(address + 100, 1000, fixture.here(), 0, nullptr));
  facts.result("prefetch one byte past the end",
               cu.mem_prefetch_async(address, 4 * mib + 1, fixture.here(), 0, nullptr));
  facts.result("advise past the end",
               cu.mem_advise(address, 64 * mib, CU_MEM_ADVISE_SET_READ_MOSTLY, fixture.here()));
  facts.result("attributes past the end", [&] {
    int value = 0;
    return cu.mem_range_get_attribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address,
                                      64 * mib);
  }());
  facts.result("ctx_synchronize", cu.ctx_synchronize());
  const CUdeviceptr small = fixture.new_managed(100);
  facts.number("alignment of managed memory", static_cast<std::int64_t>(small & (~small + 1)));
}

WEIR_OBSERVE(virtual_memory) {
  const table& cu = *fixture.cu;
  auto request = fixture.properties();
  for (const int type : {0, 1, 8, 9})
    for (const int option : {0, 1}) {
      request.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(type);
      std::size_t bytes = 0;
      const CUresult answer = cu.mem_get_allocation_granularity(
          &bytes, &request, static_cast<CUmemAllocationGranularity_flags>(option));
      facts.number(
          "granularity, handle type " + std::to_string(type) + ", option " + std::to_string(option),
          answer, bytes);
    }
  for (const int location : {0, 1, 2, 3, 4}) {
    request = fixture.properties();
    request.location = {static_cast<CUmemLocationType>(location), 0};
    CUmemGenericAllocationHandle handle = 0;
    facts.result("mem_create at location type " + std::to_string(location),
                 cu.mem_create(&handle, 2 * mib, &request, 0));
    if (handle != 0) cu.mem_release(handle);
  }
  for (const int type : {0, 1, 2, 4, 8}) {
    request = fixture.properties(static_cast<CUmemAllocationHandleType>(type));
    CUmemGenericAllocationHandle handle = 0;
    facts.result("mem_create with handle type " + std::to_string(type),
                 cu.mem_create(&handle, 2 * mib, &request, 0));
    if (handle != 0) cu.mem_release(handle);
  }
  for (const std::size_t bytes :
       {std::size_t{4096}, 64 * kib, 2 * mib - 4096, 2 * mib, 2 * mib + 1, 3 * mib}) {
    CUdeviceptr range = 0;
    facts.result("mem_address_reserve of " + std::to_string(bytes),
                 cu.mem_address_reserve(&range, bytes, 0, 0, 0));
    if (range == 0) continue;
    facts.number("largest power of two that divides it",
                 static_cast<std::int64_t>(range & (~range + 1)));
    facts.result("its mem_address_free", cu.mem_address_free(range, bytes));
  }
  for (const std::size_t alignment :
       {std::size_t{1}, std::size_t{3}, std::size_t{4096}, 2 * mib, std::size_t{1} << 40}) {
    CUdeviceptr range = 0;
    facts.result("mem_address_reserve aligned to " + std::to_string(alignment),
                 cu.mem_address_reserve(&range, 2 * mib, alignment, 0, 0));
    if (range != 0) cu.mem_address_free(range, 2 * mib);
  }
  CUdeviceptr hinted = 0;
  facts.result("mem_address_reserve with an unaligned hint",
               cu.mem_address_reserve(&hinted, 2 * mib, 0, 0x123456, 0));
  if (hinted != 0) cu.mem_address_free(hinted, 2 * mib);
  const CUdeviceptr range = fixture.new_range(8 * mib);
  const auto handle = fixture.new_handle(2 * mib);
  cu.mem_map(range, 2 * mib, 0, handle, 0);
  cu.mem_map(range + 4 * mib, 2 * mib, 0, handle, 0);
  unsigned long long flags = 99;
  const CUmemLocation here = fixture.here();
  facts.number("rights before set_access", cu.mem_get_access(&flags, &here, range), flags);
  facts.number("rights of reserved addresses", cu.mem_get_access(&flags, &here, range + 2 * mib),
               flags);
  facts.number("rights of plain memory", cu.mem_get_access(&flags, &here, fixture.new_memory(4096)),
               flags);
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  facts.number("host's rights", cu.mem_get_access(&flags, &host, range), flags);
  const CUmemAccessDesc access{here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  facts.result("set_access over a gap", cu.mem_set_access(range, 6 * mib, &access, 1));
  facts.result("set_access of half a handle", cu.mem_set_access(range, mib, &access, 1));
  facts.result("set_access with an empty list", cu.mem_set_access(range, 2 * mib, &access, 0));
  facts.result("set_access of 0 bytes", cu.mem_set_access(range, 0, &access, 1));
  facts.result("set_access", cu.mem_set_access(range, 2 * mib, &access, 1));
  const CUmemAccessDesc for_host{host, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  facts.result("set_access for the host", cu.mem_set_access(range, 2 * mib, &for_host, 1));
  const CUmemAccessDesc twice[] = {access, access};
  facts.result("set_access with the device twice", cu.mem_set_access(range, 2 * mib, twice, 2));
  facts.result("unmap over a gap", cu.mem_unmap(range, 6 * mib));
  facts.result("unmap of the first", cu.mem_unmap(range, 2 * mib));
  facts.result("unmap of the first again", cu.mem_unmap(range, 2 * mib));
  facts.result("unmap of the second", cu.mem_unmap(range + 4 * mib, 2 * mib));
  facts.result("map with an odd size", cu.mem_map(range, mib, 0, handle, 0));
  facts.result("map with an odd offset", cu.mem_map(range, 2 * mib, 4096, handle, 0));
  const auto exported = fixture.new_handle(2 * mib, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int descriptor = -1;
  facts.result("export as fabric", cu.mem_export_to_shareable_handle(&descriptor, exported,
                                                                     CU_MEM_HANDLE_TYPE_FABRIC, 0));
  facts.result("export with no type", cu.mem_export_to_shareable_handle(
                                          &descriptor, exported, CU_MEM_HANDLE_TYPE_NONE, 0));
  CUmemGenericAllocationHandle released = 0;
  request = fixture.properties();
  cu.mem_create(&released, 2 * mib, &request, 0);
  cu.mem_release(released);
  facts.result("release twice", cu.mem_release(released));
  facts.result("properties of a released handle", [&] {
    CUmemAllocationProp its{};
    return cu.mem_get_allocation_properties(&its, released);
  }());
}

/// Every attribute of an address.
void pointer(driver_fixture& fixture, fact_sheet& facts, const std::string& kind,
             CUdeviceptr address) {
  for (int attribute = 1; attribute <= 21; ++attribute) {
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) continue;
    std::uint64_t value[4] = {};
    const CUresult answer = fixture.cu->pointer_get_attribute(
        value, static_cast<CUpointer_attribute>(attribute), address);
    std::int64_t shown = static_cast<std::int64_t>(value[0]);
    std::string note;
    if (value[0] == address) {
      shown = 0;
      note = " (relative to the address)";
    } else if (value[0] == reinterpret_cast<std::uintptr_t>(fixture.context)) {
      shown = 1;
      note = " (is it the context)";
    }
    facts.number(kind + ": attribute " + std::to_string(attribute) + note, answer, shown);
  }
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  facts.number(kind + ": range size", fixture.cu->mem_get_address_range(&base, &bytes, address),
               bytes);
  CUipcMemHandle handle{};
  facts.result(kind + ": ipc_get_mem_handle", fixture.cu->ipc_get_mem_handle(&handle, address));
  CUmemGenericAllocationHandle retained = 0;
  facts.result(kind + ": retain handle",
               fixture.cu->mem_retain_allocation_handle(
                   &retained, reinterpret_cast<void*>(static_cast<std::uintptr_t>(address))));
  if (retained != 0) fixture.cu->mem_release(retained);
}

WEIR_OBSERVE(pointers) {
  const table& cu = *fixture.cu;
  pointer(fixture, facts, "plain", fixture.new_memory(10000));
  const CUmemoryPool pool = fixture.new_pool();
  CUdeviceptr pooled = 0;
  cu.mem_alloc_from_pool_async(&pooled, 10000, pool, nullptr);
  pointer(fixture, facts, "pool", pooled);
  cu.mem_free_async(pooled, nullptr);
  cu.ctx_synchronize();
  pointer(fixture, facts, "pool, freed", pooled);
  pointer(fixture, facts, "mapped", fixture.new_mapping(2 * mib));
  pointer(fixture, facts, "reserved", fixture.new_range(2 * mib));
  pointer(fixture, facts, "pinned", reinterpret_cast<std::uintptr_t>(fixture.new_pinned(10000)));
  pointer(fixture, facts, "managed", fixture.new_managed(10000));
  void* const host = std::aligned_alloc(4096, 8192);
  pointer(fixture, facts, "host", reinterpret_cast<std::uintptr_t>(host));
  cu.mem_host_register(host, 8192, 0);
  pointer(fixture, facts, "registered", reinterpret_cast<std::uintptr_t>(host));
  cu.mem_host_unregister(host);
  std::free(host);
}

}  // namespace
}  // namespace weir::testing_support

// SPDX-License-Identifier: Apache-2.0
// Observed: devices, contexts, streams, events, launches.
#include <cstring>
#include <thread>

#include "support/child_process.hpp"
#include "support/observe.hpp"

namespace weir::testing_support { namespace {

WEIR_OBSERVE(devices) {
  const table& cu = *fixture.cu;
  int number = -1;
  facts.number("driver version", cu.driver_get_version(&number), number);
  facts.number("device count", cu.device_get_count(&number), number);
  char name[128] = {};
  facts.result("device_get_name", cu.device_get_name(name, sizeof(name), fixture.device));
  facts.text("name", name);
  char cut[5] = {'x', 'x', 'x', 'x', 'x'};
  facts.result("device_get_name into 5 bytes", cu.device_get_name(cut, 5, fixture.device));
  facts.number("last of the 5 bytes", cut[4]);
  facts.result("device_get_pci_bus_id into 5 bytes",
               cu.device_get_pci_bus_id(cut, 5, fixture.device));
  facts.number("last of the 5 bytes of the bus id", cut[4]);
  char bus[32] = {};
  facts.result("device_get_pci_bus_id", cu.device_get_pci_bus_id(bus, sizeof(bus), fixture.device));
  facts.text("bus id", bus);
  std::size_t bytes = 0;
  facts.number("device_total_mem", cu.device_total_mem(&bytes, fixture.device), bytes);
  for (int attribute = 1; attribute <= 150; ++attribute) {
    int value = -1;
    const CUresult answer =
        cu.device_get_attribute(&value, static_cast<CUdevice_attribute>(attribute), fixture.device);
    facts.number("attribute " + std::to_string(attribute), answer, value);
  }
  int can = -1;
  facts.number("device_can_access_peer with itself",
               cu.device_can_access_peer(&can, fixture.device, fixture.device), can);
  facts.result("device_get_p2p_attribute of no attribute",
               cu.device_get_p2p_attribute(&can, static_cast<CUdevice_P2PAttribute>(99),
                                           fixture.device, fixture.device));
}

WEIR_OBSERVE(contexts) {
  const table& cu = *fixture.cu;
  unsigned flags = 99;
  int active = -1;
  facts.result("primary state", cu.device_primary_ctx_get_state(fixture.device, &flags, &active));
  facts.number("primary flags", flags);
  facts.number("primary active", active);
  facts.result("primary state, null flags",
               cu.device_primary_ctx_get_state(fixture.device, nullptr, &active));
  facts.result("primary state, null active",
               cu.device_primary_ctx_get_state(fixture.device, &flags, nullptr));
  int least = 99;
  int greatest = 99;
  cu.ctx_get_stream_priority_range(&least, &greatest);
  facts.number("least priority", least);
  facts.number("greatest priority", greatest);
  facts.result("ctx_get_stream_priority_range into nulls",
               cu.ctx_get_stream_priority_range(nullptr, nullptr));
  std::thread{[&] {
    facts.result("ctx_set_current(null) on a thread without one", cu.ctx_set_current(nullptr));
    std::size_t bytes = 0;
    facts.result("mem_create without a context", [&] {
      CUmemGenericAllocationHandle handle = 0;
      const auto request = fixture.properties();
      const CUresult answer = cu.mem_create(&handle, 2 * mib, &request, 0);
      if (answer == CUDA_SUCCESS) cu.mem_release(handle);
      return answer;
    }());
    CUdeviceptr range = 0;
    facts.result("mem_address_reserve without a context",
                 cu.mem_address_reserve(&range, 2 * mib, 0, 0, 0));
    if (range != 0) cu.mem_address_free(range, 2 * mib);
    const auto request = fixture.properties();
    facts.result(
        "mem_get_allocation_granularity without a context",
        cu.mem_get_allocation_granularity(&bytes, &request, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUmemoryPool pool = nullptr;
    facts.result("device_get_default_mem_pool without a context",
                 cu.device_get_default_mem_pool(&pool, fixture.device));
    std::uint64_t used = 0;
    facts.result("mem_pool_get_attribute without a context",
                 cu.mem_pool_get_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    facts.result("mem_free(0) without a context", cu.mem_free(0));
    CUmodule module = nullptr;
    facts.result("module_load_data without a context", cu.module_load_data(&module, ""));
    CUgraph graph = nullptr;
    facts.result("graph_create without a context", cu.graph_create(&graph, 0));
    if (graph != nullptr) cu.graph_destroy(graph);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    facts.result("thread_exchange_stream_capture_mode without a context",
                 cu.thread_exchange_stream_capture_mode(&mode));
  }}.join();
  // A stream carries its context with it: what works on it without one being current?
  const CUstream stream = fixture.new_stream();
  const CUevent event = fixture.new_event();
  const CUdeviceptr memory = fixture.new_memory(4096);
  std::thread{[&] {
    facts.result("stream_query(stream) without a context", cu.stream_query(stream));
    facts.result("stream_synchronize(stream) without a context", cu.stream_synchronize(stream));
    facts.result("event_record(event, stream) without a context", cu.event_record(event, stream));
    facts.result("event_query(event) without a context", cu.event_query(event));
    facts.result("stream_wait_event without a context", cu.stream_wait_event(stream, event, 0));
    facts.result("memset_d8_async without a context", cu.memset_d8_async(memory, 1, 16, stream));
    facts.result("launch_kernel without a context", fixture.fill(memory, 1, 4, stream));
    CUdeviceptr more = 0;
    facts.result("mem_alloc_async(stream) without a context",
                 cu.mem_alloc_async(&more, 4096, stream));
    if (more != 0)
      facts.result("mem_free_async(stream) without a context", cu.mem_free_async(more, stream));
    int type = 0;
    facts.result("pointer_get_attribute without a context",
                 cu.pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    facts.result("mem_get_address_range without a context",
                 cu.mem_get_address_range(&base, &bytes, memory));
    CUcontext its = nullptr;
    facts.result("stream_get_ctx without a context", cu.stream_get_ctx(stream, &its));
    unsigned long long id = 0;
    facts.result("stream_get_id without a context", cu.stream_get_id(stream, &id));
    facts.result("stream_get_id(null) without a context", cu.stream_get_id(nullptr, &id));
  }}.join();
}

/// Contexts that end: what calls answer afterwards.
WEIR_CHILD(observe_context_end) {
  const table& cu = machine.driver();
  fact_sheet facts{"contexts_ending"};
  const CUdevice device = machine.device();
  CUdeviceptr memory = 0;
  cu.mem_alloc(&memory, 4096);
  CUstream stream = nullptr;
  cu.stream_create(&stream, 0);
  facts.result("reset", cu.device_primary_ctx_reset(device));
  CUcontext now = nullptr;
  facts.result("ctx_get_current after reset", cu.ctx_get_current(&now));
  facts.number("is it the old one", now == machine.context());
  unsigned flags = 0;
  int active = -1;
  cu.device_primary_ctx_get_state(device, &flags, &active);
  facts.number("active after reset", active);
  CUdeviceptr more = 0;
  facts.result("mem_alloc after reset", cu.mem_alloc(&more, 16));
  facts.result("ctx_synchronize after reset", cu.ctx_synchronize());
  facts.result("release after reset", cu.device_primary_ctx_release(device));
  facts.result("second release after reset", cu.device_primary_ctx_release(device));
  CUcontext again = nullptr;
  facts.result("retain after reset", cu.device_primary_ctx_retain(&again, device));
  facts.number("same handle", again == machine.context());
  facts.result("ctx_set_current", cu.ctx_set_current(again));
  facts.result("mem_free of the old memory", cu.mem_free(memory));
  facts.result("mem_alloc", cu.mem_alloc(&more, 16));
  facts.result("release", cu.device_primary_ctx_release(device));
  cu.device_primary_ctx_get_state(device, &flags, &active);
  facts.number("active after release", active);
  facts.result("mem_alloc after release", cu.mem_alloc(&more, 16));
  return 0;
}

/// Work that touches what it may not: what calls answer afterwards.
WEIR_CHILD(observe_illegal) {
  const table& cu = machine.driver();
  fact_sheet facts{"illegal_address"};
  CUdeviceptr range = 0;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  cu.mem_alloc(&memory, 4096);
  cu.event_create(&event, CU_EVENT_DISABLE_TIMING);
  cu.mem_address_reserve(&range, 2 * mib, 0, 0, 0);
  word value = 1;
  std::uint64_t count = 1;
  void* parameters[] = {&range, &value, &count};
  facts.result("launch", cu.launch_kernel(machine.kernels().fill, 1, 1, 1, 1, 1, 1, 0, nullptr,
                                          parameters, nullptr));
  facts.result("event_record", cu.event_record(event, nullptr));
  facts.result("stream_synchronize", cu.stream_synchronize(nullptr));
  facts.result("event_query", cu.event_query(event));
  facts.result("ctx_synchronize", cu.ctx_synchronize());
  facts.result("mem_free", cu.mem_free(memory));
  CUdeviceptr more = 0;
  facts.result("mem_alloc", cu.mem_alloc(&more, 16));
  facts.result("mem_alloc_async", cu.mem_alloc_async(&more, 16, nullptr));
  std::size_t free = 0;
  std::size_t total = 0;
  facts.result("mem_get_info", cu.mem_get_info(&free, &total));
  CUstream stream = nullptr;
  facts.result("stream_create", cu.stream_create(&stream, 0));
  facts.result("event_destroy", cu.event_destroy(event));
  facts.result("memset of no memory", cu.memset_d8_async(range, 1, 16, nullptr));
  facts.result("mem_address_free", cu.mem_address_free(range, 2 * mib));
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp request{};
  request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  request.location = {CU_MEM_LOCATION_TYPE_DEVICE, machine.device()};
  facts.result("mem_create", cu.mem_create(&handle, 2 * mib, &request, 0));
  facts.result("device_primary_ctx_release", cu.device_primary_ctx_release(machine.device()));
  return 0;
}

/// Copies and fills of addresses that are reserved and not mapped, or mapped without rights.
WEIR_CHILD(observe_unmapped_copies) {
  const table& cu = machine.driver();
  fact_sheet facts{"unmapped_copies"};
  CUdeviceptr range = 0;
  cu.mem_address_reserve(&range, 4 * mib, 0, 0, 0);
  char host[64] = {};
  facts.result("memset_d8 of reserved addresses", cu.memset_d8(range, 1, 64));
  facts.result("memcpy_htod to reserved addresses", cu.memcpy_htod(range, host, 64));
  facts.result("ctx_synchronize", cu.ctx_synchronize());
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp request{};
  request.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  request.location = {CU_MEM_LOCATION_TYPE_DEVICE, machine.device()};
  cu.mem_create(&handle, 2 * mib, &request, 0);
  cu.mem_map(range, 2 * mib, 0, handle, 0);
  facts.result("memset_d8 before rights", cu.memset_d8(range, 1, 64));
  facts.result("memcpy_htod before rights", cu.memcpy_htod(range, host, 64));
  facts.result("memcpy_dtoh before rights", cu.memcpy_dtoh(host, range, 64));
  facts.result("ctx_synchronize", cu.ctx_synchronize());
  const CUmemAccessDesc access{request.location, CU_MEM_ACCESS_FLAGS_PROT_READ};
  facts.result("mem_set_access read only", cu.mem_set_access(range, 2 * mib, &access, 1));
  facts.result("memcpy_dtoh with read rights", cu.memcpy_dtoh(host, range, 64));
  facts.result("memset_d8 with read rights", cu.memset_d8(range, 1, 64));
  facts.result("ctx_synchronize", cu.ctx_synchronize());
  return 0;
}

WEIR_OBSERVE(contexts_ending) {
  child_process child{"observe_context_end", fixture.machine->seed()};
  facts.number("exit status", child.wait());
}

WEIR_OBSERVE(illegal_address) {
  child_process child{"observe_illegal", fixture.machine->seed()};
  facts.number("exit status", child.wait());
}

WEIR_OBSERVE(unmapped_copies) {
  child_process child{"observe_unmapped_copies", fixture.machine->seed()};
  facts.number("exit status", child.wait());
}

WEIR_OBSERVE(streams) {
  const table& cu = *fixture.cu;
  const CUstream special[] = {nullptr, legacy_stream(), per_thread_stream(), fixture.new_stream(),
                              fixture.new_stream(CU_STREAM_DEFAULT)};
  const char* const names[] = {"null", "legacy", "per-thread", "non-blocking", "blocking"};
  for (int i = 0; i < 5; ++i) {
    const std::string name = names[i];
    unsigned long long id = 0;
    unsigned flags = 99;
    int priority = 99;
    facts.number("id of " + name, cu.stream_get_id(special[i], &id), id);
    facts.number("flags of " + name, cu.stream_get_flags(special[i], &flags), flags);
    facts.number("priority of " + name, cu.stream_get_priority(special[i], &priority), priority);
  }
  const CUstream stream = fixture.new_stream();
  const CUdeviceptr memory = fixture.new_memory(4096);
  facts.result("wait_value32 on null", cu.stream_wait_value32(stream, 0, 0, 0));
  facts.result("write_value32 with unknown flags",
               cu.stream_write_value32(stream, memory, 0, 0x80));
  facts.result("wait_value32 GEQ already met", cu.stream_wait_value32(stream, memory, 0, 0));
  facts.result("wait_value32 NOR",
               cu.stream_wait_value32(stream, memory, 0, CU_STREAM_WAIT_VALUE_NOR));
  cu.memset_d32(memory, 0, 16);
  cu.ctx_synchronize();
  facts.result("write_value32 on managed memory",
               cu.stream_write_value32(stream, fixture.new_managed(4096), 1, 0));
  facts.result("write_value32 on pinned memory",
               cu.stream_write_value32(
                   stream, reinterpret_cast<std::uintptr_t>(fixture.new_pinned(64)), 1, 0));
  facts.result(
      "attach single to the null stream",
      cu.stream_attach_mem_async(nullptr, fixture.new_managed(4096), 0, CU_MEM_ATTACH_SINGLE));
  facts.result("attach with half the length",
               cu.stream_attach_mem_async(stream, fixture.new_managed(64 * kib), 4096,
                                          CU_MEM_ATTACH_SINGLE));
  facts.result("stream_synchronize", cu.stream_synchronize(stream));
  auto held = fixture.occupy(stream);
  facts.result("query while busy", cu.stream_query(stream));
  std::thread{[&] {
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
    held->finish();
  }}.join();
}

WEIR_OBSERVE(events) {
  const table& cu = *fixture.cu;
  for (unsigned flags = 0; flags < 10; ++flags) {
    CUevent event = nullptr;
    facts.result("event_create with flags " + std::to_string(flags),
                 cu.event_create(&event, flags));
    if (event != nullptr) cu.event_destroy(event);
  }
  const CUevent timed = fixture.new_event(CU_EVENT_DEFAULT);
  const CUevent untimed = fixture.new_event(CU_EVENT_DISABLE_TIMING);
  float time = -1;
  facts.result("elapsed, both unrecorded", cu.event_elapsed_time(&time, timed, timed));
  cu.event_record(timed, nullptr);
  cu.event_record(untimed, nullptr);
  cu.ctx_synchronize();
  facts.result("elapsed, same event", cu.event_elapsed_time(&time, timed, timed));
  facts.text("elapsed, same event, value", std::to_string(time));
  facts.result("elapsed, timed to untimed", cu.event_elapsed_time(&time, timed, untimed));
  facts.result("elapsed, recorded to unrecorded",
               cu.event_elapsed_time(&time, timed, fixture.new_event(CU_EVENT_DEFAULT)));
  const CUstream stream = fixture.new_stream();
  const CUevent end = fixture.new_event(CU_EVENT_DEFAULT);
  cu.event_record(timed, stream);
  fixture.spin(std::chrono::milliseconds{5}, stream);
  cu.event_record(end, stream);
  cu.event_synchronize(end);
  cu.event_elapsed_time(&time, timed, end);
  facts.text("elapsed over a spin of 5 ms", std::to_string(time));
  facts.result("wait, external, on unrecorded event outside capture",
               cu.stream_wait_event(stream, untimed, CU_EVENT_WAIT_EXTERNAL));
}

}  // namespace
}  // namespace weir::testing_support

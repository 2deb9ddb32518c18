// SPDX-License-Identifier: Apache-2.0
// Observed: what the host waits for, where the documentation leaves it open, and what capturing
// streams survive.
#include <chrono>
#include <string>
#include <vector>

#include "support/observe.hpp"

namespace weir::testing_support { namespace {

using std::chrono::milliseconds;

constexpr std::size_t page = 4096;

/// "ready" or "busy": whether a stream has work left.
std::string state_of(const table& cu, CUstream stream) {
  switch (cu.stream_query(stream)) {
    case CUDA_SUCCESS:
      return "ready";
    case CUDA_ERROR_NOT_READY:
      return "busy";
    default:
      return "error";
  }
}

/// How the legacy stream and blocking streams see each other's work.
WEIR_OBSERVE(default_stream_waits) {
  const table& cu = *fixture.cu;
  const CUstream blocking = fixture.new_stream(CU_STREAM_DEFAULT);
  {
    auto held = fixture.occupy(blocking);
    facts.text("query(legacy) while a blocking stream works", state_of(cu, nullptr));
    facts.text("query(per-thread) while a blocking stream works",
               state_of(cu, per_thread_stream()));
  }
  cu.ctx_synchronize();
  {
    auto held = fixture.occupy(nullptr);
    facts.text("query(blocking) while the legacy stream works", state_of(cu, blocking));
    facts.text("query(per-thread) while the legacy stream works",
               state_of(cu, per_thread_stream()));
  }
  cu.ctx_synchronize();
  word* const marker = fixture.new_pinned(64);
  fixture.spin(milliseconds{30}, nullptr);
  fixture.fill(reinterpret_cast<std::uintptr_t>(marker), 1, 1, nullptr);
  cu.stream_synchronize(blocking);
  facts.number("synchronize(blocking) waited for the legacy stream",
               static_cast<volatile word*>(marker)[0]);
}

/// What is complete when a copy without a stream returns, behind 30 ms of work.
WEIR_OBSERVE(copy_waits) {
  const table& cu = *fixture.cu;
  constexpr std::size_t most = 16 * mib;
  word* const marker = fixture.new_pinned(64);
  const CUdeviceptr device = fixture.new_memory(most);
  const CUdeviceptr managed = fixture.new_managed(most);
  std::vector<char> pageable(most);
  const auto observe = [&](const std::string& label, auto&& call) {
    cu.ctx_synchronize();
    marker[0] = 0;
    fixture.spin(milliseconds{30}, nullptr);
    fixture.fill(reinterpret_cast<std::uintptr_t>(marker), 1, 1, nullptr);
    const CUresult answer = call();
    const bool before = static_cast<volatile word*>(marker)[0] == 1;
    facts.text(label, std::to_string(static_cast<int>(answer)) + ", work before it " +
                          (before ? "done" : "not done") + ", legacy stream " +
                          state_of(cu, nullptr));
  };
  for (const std::size_t size : {std::size_t{64}, 64 * kib, 64 * kib + 1, mib, most}) {
    const std::string bytes = std::to_string(size) + " bytes";
    observe("pageable to device, " + bytes,
            [&] { return cu.memcpy_htod(device, pageable.data(), size); });
    observe("device to device, " + bytes,
            [&] { return cu.memcpy_sync(device, device + most / 2, size / 2); });
    observe("device to managed, " + bytes, [&] { return cu.memcpy_sync(managed, device, size); });
    observe("managed to device, " + bytes, [&] { return cu.memcpy_sync(device, managed, size); });
    observe("pageable to managed, " + bytes,
            [&] { return cu.memcpy_htod(managed, pageable.data(), size); });
    observe("fill of managed memory, " + bytes, [&] { return cu.memset_d8(managed, 1, size); });
  }
}

/// Whether calls that allocate wait, beside those that free.
WEIR_OBSERVE(allocation_waits) {
  const table& cu = *fixture.cu;
  const auto observe = [&](const std::string& label, auto&& call) {
    const CUstream stream = fixture.new_stream();
    fixture.spin(milliseconds{30}, stream);
    const CUresult answer = call();
    facts.text(label,
               std::to_string(static_cast<int>(answer)) + ", other stream " + state_of(cu, stream));
    cu.ctx_synchronize();
  };
  for (const std::size_t size : {std::size_t{64}, 3 * mib}) {
    const std::string bytes = ", " + std::to_string(size) + " bytes";
    void* pinned = nullptr;
    CUdeviceptr plain = 0;
    CUdeviceptr managed = 0;
    observe("mem_host_alloc" + bytes, [&] { return cu.mem_host_alloc(&pinned, size, 0); });
    observe("mem_free_host" + bytes, [&] { return cu.mem_free_host(pinned); });
    observe("mem_alloc" + bytes, [&] { return cu.mem_alloc(&plain, size); });
    observe("mem_free" + bytes, [&] { return cu.mem_free(plain); });
    observe("mem_alloc_managed" + bytes,
            [&] { return cu.mem_alloc_managed(&managed, size, CU_MEM_ATTACH_GLOBAL); });
    observe("mem_free of managed memory" + bytes, [&] { return cu.mem_free(managed); });
  }
  CUstream gone = nullptr;
  cu.stream_create(&gone, CU_STREAM_NON_BLOCKING);
  fixture.spin(milliseconds{30}, gone);
  observe("stream_destroy of a busy stream", [&] { return cu.stream_destroy(gone); });
}

/// Streams that are destroyed while they are captured. Their handles are not used again.
WEIR_OBSERVE(destroyed_captures) {
  const table& cu = *fixture.cu;
  for (int mode = 0; mode < 3; ++mode) {
    const std::string label = ", mode " + std::to_string(mode);
    CUstream origin = nullptr;
    cu.stream_create(&origin, CU_STREAM_NON_BLOCKING);
    cu.stream_begin_capture(origin, static_cast<CUstreamCaptureMode>(mode));
    facts.result("stream_destroy of the stream a capture began on" + label,
                 cu.stream_destroy(origin));
    CUdeviceptr memory = 0;
    facts.result("mem_alloc afterwards" + label, cu.mem_alloc(&memory, page));
    if (memory != 0) cu.mem_free(memory);

    cu.stream_create(&origin, CU_STREAM_NON_BLOCKING);
    CUstream side = nullptr;
    cu.stream_create(&side, CU_STREAM_NON_BLOCKING);
    const CUevent fork = fixture.new_event();
    cu.stream_begin_capture(origin, static_cast<CUstreamCaptureMode>(mode));
    cu.event_record(fork, origin);
    cu.stream_wait_event(side, fork, 0);
    facts.result("stream_destroy of a stream that was drawn in" + label, cu.stream_destroy(side));
    CUgraph graph = nullptr;
    facts.result("end of that capture" + label, cu.stream_end_capture(origin, &graph));
    if (graph != nullptr) cu.graph_destroy(graph);
    cu.stream_destroy(origin);
  }
}

/// What cuMemCreate gives, beside what cuMemGetInfo says is free.
WEIR_OBSERVE(physical_capacity) {
  const table& cu = *fixture.cu;
  const auto free_memory = [&] {
    std::size_t free = 0;
    std::size_t total = 0;
    cu.mem_get_info(&free, &total);
    return free;
  };
  const CUmemAllocationProp request = fixture.properties();
  const std::size_t unit = fixture.granularity();
  const std::size_t before = free_memory();
  facts.number("free at first", static_cast<std::int64_t>(before));
  for (const std::size_t more : {unit, 64 * unit, before / unit * unit}) {
    CUmemGenericAllocationHandle handle = 0;
    const std::size_t bytes = before / unit * unit + more;
    facts.result("mem_create of " + std::to_string(more) + " more than is free",
                 cu.mem_create(&handle, bytes, &request, 0));
    facts.number("free after it, beside what was free",
                 static_cast<std::int64_t>(free_memory()) - static_cast<std::int64_t>(before));
    if (handle != 0) cu.mem_release(handle);
  }
  std::vector<CUmemGenericAllocationHandle> handles;
  CUresult answer = CUDA_SUCCESS;
  while (answer == CUDA_SUCCESS) {
    CUmemGenericAllocationHandle handle = 0;
    answer = cu.mem_create(&handle, unit, &request, 0);
    if (answer == CUDA_SUCCESS) handles.push_back(handle);
  }
  facts.result("the mem_create of one unit that failed", answer);
  facts.number("units given", static_cast<std::int64_t>(handles.size()));
  facts.number(
      "free at first, less what was given",
      static_cast<std::int64_t>(before) - static_cast<std::int64_t>(handles.size() * unit));
  facts.number("free when it failed", static_cast<std::int64_t>(free_memory()));
  for (const CUmemGenericAllocationHandle each : handles) cu.mem_release(each);
  facts.number("free after all were released, beside what was free",
               static_cast<std::int64_t>(free_memory()) - static_cast<std::int64_t>(before));
}

}  // namespace
}  // namespace weir::testing_support

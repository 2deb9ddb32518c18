// SPDX-License-Identifier: Apache-2.0
// Observed: what each call answers while a stream is being captured.
#include <cstdlib>
#include <thread>
#include <utility>

#include "support/kernels.hpp"
#include "support/observe.hpp"

namespace weir::testing_support { namespace {

struct probe {
  const char* description;
  CUresult (*call)(driver_fixture& fixture, CUstream captured);
};

/// Things made before the capture begins.
struct prepared_objects {
  CUstream other = nullptr;
  CUevent recorded = nullptr;
  CUdeviceptr plain = 0;
  CUdeviceptr pooled = 0;
  CUdeviceptr mapped = 0;
  CUdeviceptr managed = 0;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemoryPool pool = nullptr;
  word* pinned = nullptr;
  void* freeable = nullptr;
  void* registered = nullptr;
  word pageable[64] = {};
} prepared;

void destroy(driver_fixture& b, CUgraph graph) {
  if (graph != nullptr) b.cu->graph_destroy(graph);
}

const probe probes[] = {
    {"ctx_get_current",
     [](driver_fixture& b, CUstream) {
       CUcontext c = nullptr;
       return b.cu->ctx_get_current(&c);
     }},
    {"ctx_synchronize", [](driver_fixture& b, CUstream) { return b.cu->ctx_synchronize(); }},
    {"mem_get_info",
     [](driver_fixture& b, CUstream) {
       std::size_t f = 0, t = 0;
       return b.cu->mem_get_info(&f, &t);
     }},
    {"mem_alloc",
     [](driver_fixture& b, CUstream) {
       CUdeviceptr p = 0;
       const CUresult r = b.cu->mem_alloc(&p, 4096);
       if (p != 0) b.defer([&b, p] { b.cu->mem_free(p); });
       return r;
     }},
    {"mem_free(0)", [](driver_fixture& b, CUstream) { return b.cu->mem_free(0); }},
    {"mem_free",
     [](driver_fixture& b, CUstream) {
       const CUresult r = b.cu->mem_free(prepared.plain);
       if (r == CUDA_SUCCESS) prepared.plain = 0;
       return r;
     }},
    {"mem_host_alloc",
     [](driver_fixture& b, CUstream) {
       void* p = nullptr;
       const CUresult r = b.cu->mem_host_alloc(&p, 4096, 0);
       if (p != nullptr) b.defer([&b, p] { b.cu->mem_free_host(p); });
       return r;
     }},
    {"mem_free_host(null)",
     [](driver_fixture& b, CUstream) { return b.cu->mem_free_host(nullptr); }},
    {"mem_free_host",
     [](driver_fixture& b, CUstream) {
       const CUresult r = b.cu->mem_free_host(prepared.freeable);
       if (r == CUDA_SUCCESS) prepared.freeable = nullptr;
       return r;
     }},
    {"mem_host_unregister",
     [](driver_fixture& b, CUstream) {
       const CUresult r = b.cu->mem_host_unregister(prepared.registered);
       if (r == CUDA_SUCCESS) b.cu->mem_host_register(prepared.registered, 4096, 0);
       return r;
     }},
    {"mem_host_register",
     [](driver_fixture& b, CUstream) {
       static void* const host = std::aligned_alloc(4096, 4096);
       const CUresult r = b.cu->mem_host_register(host, 4096, 0);
       if (r == CUDA_SUCCESS) b.defer([&b] { b.cu->mem_host_unregister(host); });
       return r;
     }},
    {"mem_alloc_managed",
     [](driver_fixture& b, CUstream) {
       CUdeviceptr p = 0;
       const CUresult r = b.cu->mem_alloc_managed(&p, 4096, CU_MEM_ATTACH_GLOBAL);
       if (p != 0) b.defer([&b, p] { b.cu->mem_free(p); });
       return r;
     }},
    {"mem_address_reserve",
     [](driver_fixture& b, CUstream) {
       CUdeviceptr p = 0;
       const CUresult r = b.cu->mem_address_reserve(&p, 2 * mib, 0, 0, 0);
       if (p != 0) b.cu->mem_address_free(p, 2 * mib);
       return r;
     }},
    {"mem_create",
     [](driver_fixture& b, CUstream) {
       CUmemGenericAllocationHandle h = 0;
       const auto request = b.properties();
       const CUresult r = b.cu->mem_create(&h, 2 * mib, &request, 0);
       if (h != 0) b.defer([&b, h] { b.cu->mem_release(h); });
       return r;
     }},
    {"mem_map",
     [](driver_fixture& b, CUstream) {
       const CUresult r = b.cu->mem_map(prepared.range, 2 * mib, 0, prepared.handle, 0);
       if (r == CUDA_SUCCESS) b.defer([&b] { b.cu->mem_unmap(prepared.range, 2 * mib); });
       return r;
     }},
    {"mem_set_access",
     [](driver_fixture& b, CUstream) {
       const CUmemAccessDesc access{b.here(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
       return b.cu->mem_set_access(prepared.mapped, 2 * mib, &access, 1);
     }},
    {"pointer_get_attribute",
     [](driver_fixture& b, CUstream) {
       int type = 0;
       return b.cu->pointer_get_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, prepared.pooled);
     }},
    {"stream_create",
     [](driver_fixture& b, CUstream) {
       CUstream s = nullptr;
       const CUresult r = b.cu->stream_create(&s, CU_STREAM_NON_BLOCKING);
       if (s != nullptr) b.defer([&b, s] { b.cu->stream_destroy(s); });
       return r;
     }},
    {"event_create",
     [](driver_fixture& b, CUstream) {
       CUevent e = nullptr;
       const CUresult r = b.cu->event_create(&e, CU_EVENT_DISABLE_TIMING);
       if (e != nullptr) b.defer([&b, e] { b.cu->event_destroy(e); });
       return r;
     }},
    {"event_query of an event recorded before",
     [](driver_fixture& b, CUstream) { return b.cu->event_query(prepared.recorded); }},
    {"event_synchronize of an event recorded before",
     [](driver_fixture& b, CUstream) { return b.cu->event_synchronize(prepared.recorded); }},
    {"event_record on another stream",
     [](driver_fixture& b, CUstream) {
       return b.cu->event_record(prepared.recorded, prepared.other);
     }},
    {"event_query of an event recorded in the capture",
     [](driver_fixture& b, CUstream s) {
       const CUevent e = b.new_event();
       b.cu->event_record(e, s);
       return b.cu->event_query(e);
     }},
    {"event_synchronize of an event recorded in the capture",
     [](driver_fixture& b, CUstream s) {
       const CUevent e = b.new_event();
       b.cu->event_record(e, s);
       return b.cu->event_synchronize(e);
     }},
    {"event_elapsed_time of events recorded in the capture",
     [](driver_fixture& b, CUstream s) {
       const CUevent from = b.new_event(CU_EVENT_DEFAULT);
       const CUevent to = b.new_event(CU_EVENT_DEFAULT);
       b.cu->event_record(from, s);
       b.cu->event_record(to, s);
       float time = 0;
       return b.cu->event_elapsed_time(&time, from, to);
     }},
    {"event_destroy of an event recorded in the capture",
     [](driver_fixture& b, CUstream s) {
       CUevent e = nullptr;
       b.cu->event_create(&e, CU_EVENT_DISABLE_TIMING);
       b.cu->event_record(e, s);
       return b.cu->event_destroy(e);
     }},
    {"wait in the capture for a record before it",
     [](driver_fixture& b, CUstream s) {
       return b.cu->stream_wait_event(s, prepared.recorded, 0);
     }},
    {"wait in the capture for an event never recorded",
     [](driver_fixture& b, CUstream s) { return b.cu->stream_wait_event(s, b.new_event(), 0); }},
    {"wait, external, in the capture",
     [](driver_fixture& b, CUstream s) {
       return b.cu->stream_wait_event(s, prepared.recorded, CU_EVENT_WAIT_EXTERNAL);
     }},
    {"wait on the captured stream's event from the legacy stream",
     [](driver_fixture& b, CUstream s) {
       const CUevent e = b.new_event();
       b.cu->event_record(e, s);
       return b.cu->stream_wait_event(nullptr, e, 0);
     }},
    {"stream_query of the captured stream",
     [](driver_fixture& b, CUstream s) { return b.cu->stream_query(s); }},
    {"stream_synchronize of the captured stream",
     [](driver_fixture& b, CUstream s) { return b.cu->stream_synchronize(s); }},
    {"stream_query of another stream",
     [](driver_fixture& b, CUstream) { return b.cu->stream_query(prepared.other); }},
    {"stream_synchronize of another stream",
     [](driver_fixture& b, CUstream) { return b.cu->stream_synchronize(prepared.other); }},
    {"stream_query of the legacy stream",
     [](driver_fixture& b, CUstream) { return b.cu->stream_query(nullptr); }},
    {"stream_synchronize of the legacy stream",
     [](driver_fixture& b, CUstream) { return b.cu->stream_synchronize(nullptr); }},
    {"stream_get_id of the captured stream",
     [](driver_fixture& b, CUstream s) {
       unsigned long long id = 0;
       return b.cu->stream_get_id(s, &id);
     }},
    {"stream_get_id of the legacy stream",
     [](driver_fixture& b, CUstream) {
       unsigned long long id = 0;
       return b.cu->stream_get_id(nullptr, &id);
     }},
    {"stream_get_flags of the captured stream",
     [](driver_fixture& b, CUstream s) {
       unsigned flags = 0;
       return b.cu->stream_get_flags(s, &flags);
     }},
    {"stream_get_flags of the legacy stream",
     [](driver_fixture& b, CUstream) {
       unsigned flags = 0;
       return b.cu->stream_get_flags(nullptr, &flags);
     }},
    {"stream_get_priority of the captured stream",
     [](driver_fixture& b, CUstream s) {
       int priority = 0;
       return b.cu->stream_get_priority(s, &priority);
     }},
    {"stream_get_priority of the legacy stream",
     [](driver_fixture& b, CUstream) {
       int priority = 0;
       return b.cu->stream_get_priority(nullptr, &priority);
     }},
    {"stream_get_ctx of the captured stream",
     [](driver_fixture& b, CUstream s) {
       CUcontext c = nullptr;
       return b.cu->stream_get_ctx(s, &c);
     }},
    {"stream_get_ctx of the legacy stream",
     [](driver_fixture& b, CUstream) {
       CUcontext c = nullptr;
       return b.cu->stream_get_ctx(nullptr, &c);
     }},
    {"stream_wait_event of the legacy stream for a record before",
     [](driver_fixture& b, CUstream) {
       return b.cu->stream_wait_event(nullptr, prepared.recorded, 0);
     }},
    {"stream_wait_event of the legacy stream for an event never recorded",
     [](driver_fixture& b, CUstream) {
       return b.cu->stream_wait_event(nullptr, b.new_event(), 0);
     }},
    {"stream_begin_capture of the legacy stream",
     [](driver_fixture& b, CUstream) {
       return b.cu->stream_begin_capture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED);
     }},
    {"stream_end_capture of the legacy stream",
     [](driver_fixture& b, CUstream) {
       CUgraph g = nullptr;
       return b.cu->stream_end_capture(nullptr, &g);
     }},
    {"stream_update_capture_dependencies of the legacy stream",
     [](driver_fixture& b, CUstream) {
       return b.cu->stream_update_capture_dependencies(nullptr, nullptr, 0, 0);
     }},
    {"stream_destroy of another stream",
     [](driver_fixture& b, CUstream) {
       CUstream s = nullptr;
       b.cu->stream_create(&s, CU_STREAM_NON_BLOCKING);
       return b.cu->stream_destroy(s);
     }},
    {"stream_is_capturing of the legacy stream",
     [](driver_fixture& b, CUstream) {
       CUstreamCaptureStatus st{};
       return b.cu->stream_is_capturing(nullptr, &st);
     }},
    {"stream_begin_capture again",
     [](driver_fixture& b, CUstream s) {
       return b.cu->stream_begin_capture(s, CU_STREAM_CAPTURE_MODE_RELAXED);
     }},
    {"stream_end_capture into null",
     [](driver_fixture& b, CUstream s) { return b.cu->stream_end_capture(s, nullptr); }},
    {"stream_end_capture of another stream",
     [](driver_fixture& b, CUstream) {
       CUgraph g = nullptr;
       return b.cu->stream_end_capture(prepared.other, &g);
     }},
    {"kernel in the captured stream",
     [](driver_fixture& b, CUstream s) { return b.fill(prepared.mapped, 1, 16, s); }},
    {"kernel in another stream",
     [](driver_fixture& b, CUstream) { return b.fill(prepared.mapped, 1, 16, prepared.other); }},
    {"kernel in the legacy stream",
     [](driver_fixture& b, CUstream) { return b.fill(prepared.mapped, 1, 16, nullptr); }},
    {"memcpy_htod",
     [](driver_fixture& b, CUstream) {
       return b.cu->memcpy_htod(prepared.mapped, prepared.pageable, 64);
     }},
    {"memcpy_dtoh",
     [](driver_fixture& b, CUstream) {
       return b.cu->memcpy_dtoh(prepared.pageable, prepared.mapped, 64);
     }},
    {"memset_d8",
     [](driver_fixture& b, CUstream) { return b.cu->memset_d8(prepared.mapped, 1, 64); }},
    {"memcpy_htod_async, pinned, captured",
     [](driver_fixture& b, CUstream s) {
       return b.cu->memcpy_htod_async(prepared.mapped, prepared.pinned, 64, s);
     }},
    {"memcpy_htod_async, pageable, captured",
     [](driver_fixture& b, CUstream s) {
       return b.cu->memcpy_htod_async(prepared.mapped, prepared.pageable, 64, s);
     }},
    {"memcpy_dtoh_async, pageable, captured",
     [](driver_fixture& b, CUstream s) {
       return b.cu->memcpy_dtoh_async(prepared.pageable, prepared.mapped, 64, s);
     }},
    {"launch_host_func, captured",
     [](driver_fixture& b, CUstream s) {
       return b.cu->launch_host_func(
           s, [](void*) {}, nullptr);
     }},
    {"mem_prefetch_async, captured",
     [](driver_fixture& b, CUstream s) {
       return b.cu->mem_prefetch_async(prepared.managed, 4096, b.here(), 0, s);
     }},
    {"stream_attach_mem_async, captured",
     [](driver_fixture& b, CUstream s) {
       return b.cu->stream_attach_mem_async(s, prepared.managed, 0, CU_MEM_ATTACH_GLOBAL);
     }},
    {"stream_write_value32, captured",
     [](driver_fixture& b, CUstream s) {
       return b.cu->stream_write_value32(s, prepared.mapped, 1, 0);
     }},
    {"memcpy_batch_async, captured",
     [](driver_fixture& b, CUstream s) {
       CUdeviceptr to = prepared.mapped, from = prepared.mapped + 4096;
       std::size_t bytes = 64, first = 0, failed = 0;
       CUmemcpyAttributes attributes{};
       attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
       return b.cu->memcpy_batch_async(&to, &from, &bytes, 1, &attributes, &first, 1, &failed, s);
     }},
    {"mem_alloc_async, captured",
     [](driver_fixture& b, CUstream s) {
       CUdeviceptr p = 0;
       return b.cu->mem_alloc_async(&p, 4096, s);
     }},
    {"mem_alloc_from_pool_async, captured",
     [](driver_fixture& b, CUstream s) {
       CUdeviceptr p = 0;
       return b.cu->mem_alloc_from_pool_async(&p, 4096, prepared.pool, s);
     }},
    {"mem_free_async of outside memory, captured",
     [](driver_fixture& b, CUstream s) { return b.cu->mem_free_async(prepared.pooled, s); }},
    {"mem_free_async(0) on the captured stream",
     [](driver_fixture& b, CUstream s) { return b.cu->mem_free_async(0, s); }},
    {"mem_free_async(0) on the legacy stream",
     [](driver_fixture& b, CUstream) { return b.cu->mem_free_async(0, nullptr); }},
    {"memcpy_dtod of nothing",
     [](driver_fixture& b, CUstream) {
       return b.cu->memcpy_dtod(prepared.mapped, prepared.mapped + 4096, 0);
     }},
    {"memcpy_dtod",
     [](driver_fixture& b, CUstream) {
       return b.cu->memcpy_dtod(prepared.mapped, prepared.mapped + 4096, 64);
     }},
    {"mem_alloc_async on another stream",
     [](driver_fixture& b, CUstream) {
       CUdeviceptr p = 0;
       const CUresult r = b.cu->mem_alloc_async(&p, 4096, prepared.other);
       if (p != 0) b.defer([&b, p] { b.cu->mem_free_async(p, prepared.other); });
       return r;
     }},
    {"mem_pool_create",
     [](driver_fixture& b, CUstream) {
       CUmemoryPool pool = nullptr;
       const auto request = b.pool_properties();
       const CUresult r = b.cu->mem_pool_create(&pool, &request);
       if (pool != nullptr) b.defer([&b, pool] { b.cu->mem_pool_destroy(pool); });
       return r;
     }},
    {"mem_pool_trim_to",
     [](driver_fixture& b, CUstream) { return b.cu->mem_pool_trim_to(prepared.pool, 0); }},
    {"mem_pool_get_attribute",
     [](driver_fixture& b, CUstream) {
       std::uint64_t v = 0;
       return b.cu->mem_pool_get_attribute(prepared.pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v);
     }},
    {"module_load_data",
     [](driver_fixture& b, CUstream) {
       CUmodule m = nullptr;
       const CUresult r = b.cu->module_load_data(&m, kernel_text);
       if (m != nullptr) b.defer([&b, m] { b.cu->module_unload(m); });
       return r;
     }},
    {"graph_create and graph_instantiate",
     [](driver_fixture& b, CUstream) {
       CUgraph g = nullptr;
       CUgraphExec e = nullptr;
       b.cu->graph_create(&g, 0);
       const CUresult r = b.cu->graph_instantiate(&e, g, 0);
       if (e != nullptr) b.cu->graph_exec_destroy(e);
       destroy(b, g);
       return r;
     }},
    {"ipc_get_mem_handle",
     [](driver_fixture& b, CUstream) {
       CUipcMemHandle h{};
       return b.cu->ipc_get_mem_handle(&h, prepared.plain);
     }},
};

void prepare(driver_fixture& b) {
  const table& cu = *b.cu;
  prepared.other = b.new_stream();
  prepared.recorded = b.new_event();
  cu.mem_alloc(&prepared.plain, 4096);
  b.defer([&b] {
    if (prepared.plain != 0) b.cu->mem_free(prepared.plain);
  });
  prepared.pool = b.new_pool();
  cu.mem_alloc_from_pool_async(&prepared.pooled, 4096, prepared.pool, nullptr);
  b.defer([&b] { b.cu->mem_free_async(prepared.pooled, nullptr); });
  prepared.mapped = b.new_mapping(2 * mib);
  prepared.managed = b.new_managed(4096);
  prepared.range = b.new_range(2 * mib);
  prepared.handle = b.new_handle(2 * mib);
  prepared.pinned = b.new_pinned(4096);
  prepared.registered = std::aligned_alloc(4096, 4096);
  cu.mem_host_register(prepared.registered, 4096, 0);
  b.defer([&b] {
    b.cu->mem_host_unregister(prepared.registered);
    std::free(prepared.registered);
    if (prepared.freeable != nullptr) b.cu->mem_free_host(prepared.freeable);
  });
  cu.event_record(prepared.recorded, prepared.other);
  cu.ctx_synchronize();
}

/// One probe under one kind of capture: its answer, and how the capture ended.
std::string under_capture(driver_fixture& b, const probe& probed, CUstreamCaptureMode mode,
                          unsigned stream_flags, bool from_other_thread) {
  const CUstream captured = b.new_stream(stream_flags);
  if (b.cu->stream_begin_capture(captured, mode) != CUDA_SUCCESS) return "no capture";
  CUresult answer = CUDA_ERROR_UNKNOWN;
  if (from_other_thread)
    std::thread{[&] {
      b.cu->ctx_set_current(b.context);
      answer = probed.call(b, captured);
    }}.join();
  else
    answer = probed.call(b, captured);
  CUgraph graph = nullptr;
  const CUresult ended = b.cu->stream_end_capture(captured, &graph);
  destroy(b, graph);
  return std::to_string(static_cast<int>(answer)) + " then " +
         std::to_string(static_cast<int>(ended));
}

WEIR_OBSERVE(capture_calls) {
  prepare(fixture);
  for (const probe& probed : probes) {
    for (int mode = 0; mode < 3; ++mode) {
      const auto row = [&](unsigned flags, bool elsewhere) {
        driver_fixture b;
        b.open(fixture.machine);
        // A probe may have freed them.
        if (prepared.plain == 0) b.cu->mem_alloc(&prepared.plain, 4096);
        if (prepared.freeable == nullptr) b.cu->mem_host_alloc(&prepared.freeable, 64, 0);
        return under_capture(b, probed, static_cast<CUstreamCaptureMode>(mode), flags, elsewhere);
      };
      facts.text(std::string{probed.description} + ", mode " + std::to_string(mode),
                 "non-blocking " + row(CU_STREAM_NON_BLOCKING, false) + " | blocking " +
                     row(CU_STREAM_DEFAULT, false) + " | other thread " +
                     row(CU_STREAM_NON_BLOCKING, true));
    }
  }
}

}  // namespace
}  // namespace weir::testing_support

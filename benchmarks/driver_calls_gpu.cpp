// SPDX-License-Identifier: Apache-2.0
// What the calls that weir leans on cost on a real driver, and what loading it costs.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>

#include "weir/driver/table.hpp"

namespace {

using namespace weir::driver;

/// The driver with a context current and a stream and an event at hand. Leaks on purpose: the
/// driver outlives every benchmark.
struct gpu {
  const table* cuda = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
};

const gpu* the_gpu() {
  static const gpu* const instance = []() -> const gpu* {
    auto library = load();
    if (!library) return nullptr;
    static const std::unique_ptr<weir::driver::library> kept = std::move(*library);
    const table& cuda = kept->calls;
    CUcontext context = nullptr;
    auto* const fresh = new gpu{.cuda = &cuda};
    if (cuda.init(0) != CUDA_SUCCESS ||
        cuda.device_primary_ctx_retain(&context, 0) != CUDA_SUCCESS ||
        cuda.ctx_set_current(context) != CUDA_SUCCESS ||
        cuda.stream_create(&fresh->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        cuda.event_create(&fresh->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
      return nullptr;
    }
    return fresh;
  }();
  return instance;
}

/// Runs `call` in a loop; what it answers must be success.
template <class Call>
void measure(benchmark::State& state, Call call) {
  const gpu* const g = the_gpu();
  if (g == nullptr) {
    state.SkipWithError("no usable GPU driver");
    return;
  }
  for (auto _ : state) {
    if (call(*g) != CUDA_SUCCESS) {
      state.SkipWithError("the driver refused");
      break;
    }
  }
}

void load_driver(benchmark::State& state) {
  for (auto _ : state) {
    if (!load()) {
      state.SkipWithError("no usable GPU driver");
      break;
    }
  }
}
BENCHMARK(load_driver)->Unit(benchmark::kMicrosecond);

void event_record(benchmark::State& state) {
  measure(state, [](const gpu& g) { return g.cuda->event_record(g.event, g.stream); });
}
BENCHMARK(event_record);

void event_query(benchmark::State& state) {
  if (const gpu* const g = the_gpu()) {
    g->cuda->event_record(g->event, g->stream);
    g->cuda->stream_synchronize(g->stream);
  }
  measure(state, [](const gpu& g) { return g.cuda->event_query(g.event); });
}
BENCHMARK(event_query);

void stream_get_id(benchmark::State& state) {
  unsigned long long id = 0;
  measure(state, [&](const gpu& g) { return g.cuda->stream_get_id(g.stream, &id); });
}
BENCHMARK(stream_get_id);

void pool_alloc_and_free(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0));
  if (const gpu* const g = the_gpu()) {  // keep what is freed, so that the loop hits
    CUmemoryPool pool = nullptr;
    std::uint64_t all = ~std::uint64_t{0};
    g->cuda->device_get_default_mem_pool(&pool, 0);
    g->cuda->mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
  }
  measure(state, [&](const gpu& g) {
    CUdeviceptr block = 0;
    const CUresult status = g.cuda->mem_alloc_async(&block, size, g.stream);
    return status != CUDA_SUCCESS ? status : g.cuda->mem_free_async(block, g.stream);
  });
}
BENCHMARK(pool_alloc_and_free)->Arg(512)->Arg(1 << 20)->Arg(64 << 20);

/// One physical handle from nothing to usable and back.
void handle_life(benchmark::State& state) {
  const auto size = static_cast<std::size_t>(state.range(0)) << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address = 0;
  const gpu* const g = the_gpu();
  if (g != nullptr) g->cuda->mem_address_reserve(&address, size, 0, 0, 0);
  measure(state, [&](const gpu& target) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult status = target.cuda->mem_create(&handle, size, &properties, 0);
    if (status == CUDA_SUCCESS) status = target.cuda->mem_map(address, size, 0, handle, 0);
    if (status == CUDA_SUCCESS) status = target.cuda->mem_set_access(address, size, &access, 1);
    if (status == CUDA_SUCCESS) status = target.cuda->mem_unmap(address, size);
    if (status == CUDA_SUCCESS) status = target.cuda->mem_release(handle);
    return status;
  });
  if (g != nullptr) g->cuda->mem_address_free(address, size);
}
BENCHMARK(handle_life)->ArgName("MiB")->Arg(2)->Arg(64)->Unit(benchmark::kMicrosecond);

}  // namespace

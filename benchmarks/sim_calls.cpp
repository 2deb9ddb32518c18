// SPDX-License-Identifier: Apache-2.0
// What calls of the simulated machine cost, with every access checked.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace {

using namespace weir::driver;  // NOLINT(google-build-using-namespace): the calls measured
using seconds = std::chrono::duration<double>;

/// A machine with a current context, a stream and an event.
struct ready_machine {
  ready_machine() {
    cuda.init(0);
    cuda.device_primary_ctx_retain(&context, 0);
    cuda.ctx_set_current(context);
    cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING);
    cuda.event_create(&event, CU_EVENT_DISABLE_TIMING);
  }
  std::shared_ptr<weir::sim::machine> machine = weir::sim::machine::create().value();
  const table& cuda = machine->driver();
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
};

void event_record(benchmark::State& state) {
  const ready_machine m;
  for (auto _ : state) benchmark::DoNotOptimize(m.cuda.event_record(m.event, m.stream));
}
BENCHMARK(event_record);

void event_query(benchmark::State& state) {
  const ready_machine m;
  m.cuda.event_record(m.event, m.stream);
  if (state.range(0) != 0) {
    m.cuda.stream_synchronize(m.stream);
  } else {
    m.machine->hold(m.stream);
  }
  for (auto _ : state) benchmark::DoNotOptimize(m.cuda.event_query(m.event));
}
BENCHMARK(event_query)->ArgName("ready")->Arg(0)->Arg(1);

void stream_query(benchmark::State& state) {
  const ready_machine m;
  for (auto _ : state) benchmark::DoNotOptimize(m.cuda.stream_query(m.stream));
}
BENCHMARK(stream_query);

void pool_alloc_and_free(benchmark::State& state) {
  const ready_machine m;
  const auto size = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    CUdeviceptr block = 0;
    m.cuda.mem_alloc_async(&block, size, m.stream);
    m.cuda.mem_free_async(block, m.stream);
  }
}
BENCHMARK(pool_alloc_and_free)->Arg(512)->Arg(1 << 20)->Arg(1 << 30);

/// One of the two alone: batches of either, of which only one is timed.
void pool_call(benchmark::State& state, bool measure_free) {
  constexpr int batch = 64;
  const ready_machine m;
  std::vector<CUdeviceptr> blocks(batch);
  // A live neighbour on each side, so that the blocks stay apart.
  for (CUdeviceptr& each : blocks) {
    CUdeviceptr between = 0;
    m.cuda.mem_alloc_async(&each, 4096, m.stream);
    m.cuda.mem_alloc_async(&between, 512, m.stream);
  }
  for (const CUdeviceptr each : blocks) m.cuda.mem_free_async(each, m.stream);
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    for (CUdeviceptr& each : blocks) m.cuda.mem_alloc_async(&each, 4096, m.stream);
    const auto middle = std::chrono::steady_clock::now();
    for (const CUdeviceptr each : blocks) m.cuda.mem_free_async(each, m.stream);
    const auto end = std::chrono::steady_clock::now();
    state.SetIterationTime(seconds(measure_free ? end - middle : middle - start).count());
  }
  state.counters["call"] = benchmark::Counter(
      batch, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK_CAPTURE(pool_call, alloc, false)->UseManualTime();
BENCHMARK_CAPTURE(pool_call, free, true)->UseManualTime();

std::uint64_t resident_bytes() {
  std::ifstream facts{"/proc/self/statm"};
  std::uint64_t all = 0;
  std::uint64_t resident = 0;
  facts >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void create_machine(benchmark::State& state) {
  std::uint64_t taken = 0;
  for (auto _ : state) {
    const std::uint64_t before = resident_bytes();
    const ready_machine m;
    const std::uint64_t now = resident_bytes();
    taken = std::max(taken, now > before ? now - before : 0);
  }
  state.counters["resident"] = static_cast<double>(taken);
  state.counters["process"] = static_cast<double>(resident_bytes());
}
BENCHMARK(create_machine)->Unit(benchmark::kMicrosecond);

#ifdef WEIR_FAKE_DRIVER
void load_driver(benchmark::State& state) {
  for (auto _ : state) {
    auto loaded = load(WEIR_FAKE_DRIVER);
    if (!loaded) state.SkipWithError(loaded.error().message().c_str());
  }
}
// The first time finds the library and relocates it; later times resolve the table only.
BENCHMARK(load_driver)->Name("load_driver/first")->Iterations(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(load_driver)->Name("load_driver/again")->Unit(benchmark::kMicrosecond);
#endif

}  // namespace

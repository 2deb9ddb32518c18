// What a recorder costs: the same pairs with and without one, in one run, on the simulated GPU. The
// difference of two counters is two events. Bursts are what a thread's ring holds; the sustained
// rate is what the writing thread can take off.
#include <benchmark/benchmark.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <string>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"
#include "weir/trace/recorder.hpp"

namespace {

using namespace weir;

/// Receives and forgets: what the allocator itself pays for being watched.
class nothing_sink final : public event_sink {
 public:
  void on_event(const memory_event& what) noexcept override {
    auto seen = what.address;
    benchmark::DoNotOptimize(seen);
  }
};

/// One simulated machine and allocator for the whole program.
struct bench {
  std::shared_ptr<sim::machine> machine = [] {
    sim::machine_options options;
    options.check_hazards = false;
    options.costs = sim::cost_table::free();
    return sim::machine::create(options).value();
  }();
  std::shared_ptr<runtime> opened = runtime::open_simulated(machine).value();
  device gpu = opened->device(device_id{0}).value();
  caching_allocator memory = caching_allocator::create(gpu).value();

  static bench& get() {
    static bench& only = *new bench;
    return only;
  }
};

std::string scratch() {
  return (std::filesystem::temp_directory_path() / "weir_bench_recorder.weirtrace").string();
}

/// What the calling thread itself has used: other programs do not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

enum class watched { not_at_all, by_nothing, by_recorder };

/// Pairs in bursts that fit into a ring; what happens between bursts is not counted.
void burst(benchmark::State& state, watched how) {
  constexpr int pairs = 4096;
  bench& all = bench::get();
  const stream own = stream::create(all.gpu).value();
  const stream_ref on = own;
  nothing_sink nothing;
  std::unique_ptr<recorder> tape;
  if (how == watched::by_recorder) tape = recorder::start(scratch()).value();
  if (how == watched::by_nothing) all.memory.set_observer(&nothing);
  if (how == watched::by_recorder) all.memory.set_observer(tape.get());
  for (auto _ : state) {
    const double from = thread_seconds();
    for (int i = 0; i < pairs; ++i) {
      void* p = all.memory.allocate(bytes{4096}, on);
      benchmark::DoNotOptimize(p);
      all.memory.deallocate(p, on);
    }
    state.SetIterationTime((thread_seconds() - from) / pairs);
    if (tape != nullptr) tape->flush().value();
  }
  all.memory.set_observer(nullptr);
  if (tape != nullptr) {
    tape->stop().value();
    state.counters["dropped"] = static_cast<double>(tape->stats().dropped);
    std::filesystem::remove(scratch());
  }
}
BENCHMARK_CAPTURE(burst, alone, watched::not_at_all)->UseManualTime()->MinTime(0.0002);
BENCHMARK_CAPTURE(burst, empty_observer, watched::by_nothing)->UseManualTime()->MinTime(0.0002);
BENCHMARK_CAPTURE(burst, recorder, watched::by_recorder)->UseManualTime()->MinTime(0.0002);

/// Without a pause: the thread waits when its ring is full, so this is the writer's speed.
void sustained(benchmark::State& state) {
  bench& all = bench::get();
  const stream own = stream::create(all.gpu).value();
  const stream_ref on = own;
  const auto tape = recorder::start(scratch()).value();
  all.memory.set_observer(tape.get());
  for (auto _ : state) {
    void* p = all.memory.allocate(bytes{4096}, on);
    benchmark::DoNotOptimize(p);
    all.memory.deallocate(p, on);
  }
  all.memory.set_observer(nullptr);
  tape->stop().value();
  state.SetItemsProcessed(2 * state.iterations());
  state.counters["bytes_per_event"] =
      static_cast<double>(tape->stats().file_bytes) / static_cast<double>(tape->stats().written);
  std::filesystem::remove(scratch());
}
BENCHMARK(sustained)->UseRealTime();

}  // namespace

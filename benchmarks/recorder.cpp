// SPDX-License-Identifier: Apache-2.0
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

/// Receives and forgets: what the allocator itself pays for an observer.
class nothing_sink final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override {
    auto seen = event.address;
    benchmark::DoNotOptimize(seen);
  }
};

/// One simulated machine and allocator for the whole program.
struct simulated_machine {
  std::shared_ptr<sim::machine> machine = [] {
    sim::machine_options options;
    options.check_hazards = false;
    options.costs = sim::cost_table::free();
    return sim::machine::create(options).value();
  }();
  std::shared_ptr<runtime> opened = runtime::open_simulated(machine).value();
  device gpu = opened->device(device_id{0}).value();
  caching_allocator memory = caching_allocator::create(gpu).value();

  static simulated_machine& get() {
    static simulated_machine& instance = *new simulated_machine;
    return instance;
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

enum class observer_kind { not_at_all, by_nothing, by_recorder };

/// Pairs in bursts that fit into a ring; what happens between bursts is not counted.
void burst(benchmark::State& state, observer_kind observed) {
  constexpr int pairs = 4096;
  simulated_machine& machine = simulated_machine::get();
  const stream own = stream::create(machine.gpu).value();
  const stream_ref queue = own;
  nothing_sink nothing;
  std::unique_ptr<recorder> running;
  if (observed == observer_kind::by_recorder) running = recorder::start(scratch()).value();
  observer_registration registration;
  if (observed == observer_kind::by_nothing)
    registration = machine.memory.add_observer(nothing).value();
  if (observed == observer_kind::by_recorder)
    registration = machine.memory.add_observer(*running).value();
  for (auto _ : state) {
    const double from = thread_seconds();
    for (int i = 0; i < pairs; ++i) {
      void* p = machine.memory.allocate(bytes{4096}, queue);
      benchmark::DoNotOptimize(p);
      machine.memory.deallocate(p, queue);
    }
    state.SetIterationTime((thread_seconds() - from) / pairs);
    if (running != nullptr) running->flush().value();
  }
  registration.close();
  if (running != nullptr) {
    running->close().value();
    state.counters["dropped"] = static_cast<double>(running->stats().dropped);
    std::filesystem::remove(scratch());
  }
}
BENCHMARK_CAPTURE(burst, alone, observer_kind::not_at_all)->UseManualTime()->MinTime(0.0002);
BENCHMARK_CAPTURE(burst, empty_observer, observer_kind::by_nothing)
    ->UseManualTime()
    ->MinTime(0.0002);
BENCHMARK_CAPTURE(burst, recorder, observer_kind::by_recorder)->UseManualTime()->MinTime(0.0002);

/// Without a pause: the thread waits when its ring is full, so this is the writer's speed.
void sustained(benchmark::State& state) {
  simulated_machine& machine = simulated_machine::get();
  const stream own = stream::create(machine.gpu).value();
  const stream_ref queue = own;
  const auto running = recorder::start(scratch()).value();
  observer_registration registration = machine.memory.add_observer(*running).value();
  for (auto _ : state) {
    void* p = machine.memory.allocate(bytes{4096}, queue);
    benchmark::DoNotOptimize(p);
    machine.memory.deallocate(p, queue);
  }
  registration.close();
  running->close().value();
  state.SetItemsProcessed(2 * state.iterations());
  state.counters["bytes_per_event"] = static_cast<double>(running->stats().file_size.count()) /
                                      static_cast<double>(running->stats().written);
  std::filesystem::remove(scratch());
}
BENCHMARK(sustained)->UseRealTime();

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// What a live page costs the program that publishes it: the same work with and without one, by
// turns in one run, on the simulated GPU, while the allocator holds few blocks and many.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"
#include "weir/trace/live_page.hpp"

namespace {

using namespace weir;
using clock_type = std::chrono::steady_clock;

/// What the calling thread itself has used.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A machine whose allocator holds `count` blocks of mixed sizes on four streams, with holes
/// between.
class loaded {
 public:
  explicit loaded(std::int64_t count) {
    std::vector<void*> freed;
    for (std::int64_t i = 0; i < count + count / 4; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const bytes size{std::uint64_t{1024} << (index % 7)};
      void* const block = memory.allocate(size, streams[index % streams.size()]);
      (index % 5 == 4 ? freed : held).push_back(block);
    }
    for (void* const each : freed) memory.deallocate(each);
  }
  ~loaded() {
    for (void* const each : held) memory.deallocate(each);
  }
  loaded(const loaded&) = delete;
  loaded& operator=(const loaded&) = delete;

  /// Requests and frees, most by the thread's cache and some by the heap itself, for that long.
  /// Returns how many this thread does in a second of its own: other programs do not count.
  double work(std::chrono::milliseconds time) {
    const stream_ref queue = streams[0];
    const auto until = clock_type::now() + time;
    const double from = thread_seconds();
    double pairs = 0;
    while (clock_type::now() < until) {
      for (int round = 0; round < 100; ++round) {
        for (int i = 0; i < 64; ++i) {
          void* const small = memory.allocate(bytes{4096}, queue);
          memory.deallocate(small, queue);
        }
        void* const large = memory.allocate(bytes{3 << 20}, queue);
        memory.deallocate(large, queue);
      }
      pairs += 6500;
    }
    return pairs / (thread_seconds() - from);
  }
  /// What a live page costs the allocator: for that long it stands still.
  double snapshot_seconds() const {
    double least = 1;
    for (int i = 0; i < 5; ++i) {
      const auto from = clock_type::now();
      benchmark::DoNotOptimize(memory.stats_by_tag());
      benchmark::DoNotOptimize(memory.snapshot());
      least = std::min(least, std::chrono::duration<double>(clock_type::now() - from).count());
    }
    return least;
  }

  std::shared_ptr<sim::machine> machine = [] {
    sim::machine_options options;
    options.check_hazards = false;
    options.costs = sim::cost_table::free();
    return sim::machine::create(options).value();
  }();
  std::shared_ptr<runtime> opened = runtime::open_simulated(machine).value();
  device gpu = opened->device(device_id{0}).value();
  caching_allocator memory = caching_allocator::create(gpu).value();
  std::array<stream, 4> streams{stream::create(gpu).value(), stream::create(gpu).value(),
                                stream::create(gpu).value(), stream::create(gpu).value()};
  std::vector<void*> held;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// A reader that asks once a period, as `weir top` does.
class reader {
 public:
  explicit reader(std::chrono::milliseconds period)
      : thread_{[this, period] {
          while (!over_.load()) {
            benchmark::DoNotOptimize(read_live_pages(::getpid()));
            std::this_thread::sleep_for(period);
          }
        }} {}
  ~reader() {
    over_.store(true);
    thread_.join();
  }
  reader(const reader&) = delete;
  reader& operator=(const reader&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

/// Arguments: blocks, the time between two reads in milliseconds, and whether anybody reads.
///
/// stopped_pct is the time for which the allocator stood still, slower_pct what its threads lost
/// besides, for finding their caches stopped. Their sum is what the page costs.
void published(benchmark::State& state) {
  loaded all{state.range(0)};
  const std::chrono::milliseconds period{state.range(1)};
  const auto turn = std::max<std::chrono::milliseconds>(period * 2, std::chrono::milliseconds{500});
  std::vector<double> ratios;
  double updates = 0;
  double seconds = 0;
  for (auto _ : state) {
    const double before = all.work(turn);
    double with = 0;
    {
      const auto page = live_page::publish(all.memory, {.period = period}).value();
      std::optional<reader> watching;
      if (state.range(2) != 0) watching.emplace(period);
      const auto from = clock_type::now();
      with = all.work(2 * turn);
      seconds += std::chrono::duration<double>(clock_type::now() - from).count();
      watching.reset();
      // Without the one of the publication.
      updates += static_cast<double>(read_live_pages(::getpid()).value().at(0).updates - 1);
    }
    ratios.push_back(2 * with / (before + all.work(turn)));
  }
  state.counters["looks_per_s"] = updates / seconds;
  state.counters["stopped_pct"] = 100 * updates * all.snapshot_seconds() / seconds;
  state.counters["slower_pct"] = 100 * (1 - median(ratios));
}
BENCHMARK(published)
    ->ArgNames({"blocks", "period_ms", "watched"})
    ->ArgsProduct({{10'000, 100'000}, {500, 50}, {0, 1}})
    ->Iterations(3)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// One snapshot.
void one_look(benchmark::State& state) {
  const loaded all{state.range(0)};
  for (auto _ : state) {
    benchmark::DoNotOptimize(all.memory.stats_by_tag());
    benchmark::DoNotOptimize(all.memory.snapshot());
  }
}
BENCHMARK(one_look)->ArgName("blocks")->Arg(100)->Arg(10'000)->Arg(100'000)->Unit(
    benchmark::kMicrosecond);

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// How the cost of a pair of random sizes grows: with the live blocks, the streams, the threads and
// the devices; and how long a snapshot and a report over many blocks take. On the simulated H200,
// whose driver calls cost no time here; they are counted. Beside weir's policy stands PyTorch's
// (classic), in the same run. docs/measurements/request-cost.md has the curves.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace {

using namespace weir;
using namespace weir::literals;

/// A machine whose devices are never full, and an allocator for each of them.
class playground {
 public:
  explicit playground(placement_policy policy, std::size_t devices = 1) {
    sim::machine_options options;
    options.devices.assign(devices, options.devices.front());
    for (auto& each : options.devices) each.capacity = 1_TiB;
    options.check_hazards = false;
    options.watch_blocks = false;
    options.back_memory = false;  // nobody touches it
    options.costs = sim::cost_table::free();
    machine_ = sim::machine::create(options).value();
    runtime_ = runtime::open_simulated(machine_).value();
    allocator_options chosen;
    chosen.policy = policy;
    for (std::size_t i = 0; i < devices; ++i) {
      const auto id = device_id{static_cast<int>(i)};
      memory_.push_back(caching_allocator::create(runtime_->device(id).value(), chosen).value());
    }
  }

  [[nodiscard]] caching_allocator& memory(std::size_t device = 0) { return memory_[device]; }
  [[nodiscard]] stream make_stream(std::size_t device = 0) {
    return stream::create(memory_[device].device()).value();
  }
  [[nodiscard]] std::uint64_t driver_calls() const { return machine_->calls(); }

 private:
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::vector<caching_allocator> memory_;
};

/// Random numbers at the cost of a few instructions, so that the pair is what is measured.
class fast_random {
 public:
  explicit fast_random(std::uint64_t seed) noexcept : state_{seed * 0x9e37'79b9'7f4a'7c15u + 1} {}
  [[nodiscard]] std::size_t below(std::size_t limit) noexcept {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::size_t>((state_ >> 32) * limit >> 32);
  }

 private:
  std::uint64_t state_;
};

/// Sizes from 512 bytes to 1 MiB, every order of magnitude as likely as another.
const std::vector<std::uint32_t>& random_sizes() {
  static const std::vector<std::uint32_t> sizes = [] {
    std::mt19937_64 random{1};
    std::uniform_real_distribution<double> exponent{9, 20};
    std::vector<std::uint32_t> drawn(1 << 16);
    for (auto& each : drawn) each = static_cast<std::uint32_t>(std::exp2(exponent(random)));
    return drawn;
  }();
  return sizes;
}

/// So many live blocks, of which one, whichever, is replaced at a time. Each belongs to one of the
/// places: an allocator and a stream.
class population {
 public:
  struct place {
    caching_allocator* memory = nullptr;
    stream_ref queue;
  };

  population(std::vector<place> places, std::size_t live, std::uint64_t seed)
      : random_{seed}, places_{std::move(places)}, blocks_(live) {
    for (auto& each : blocks_) take(each);
  }
  ~population() {
    for (auto& each : blocks_) free(each);
  }
  population(const population&) = delete;
  population& operator=(const population&) = delete;

  void replace_one() {
    block& chosen = blocks_[random_.below(blocks_.size())];
    free(chosen);
    take(chosen);
  }

 private:
  struct block {
    void* address = nullptr;
    std::size_t at = 0;  // which place
  };

  void take(block& into) {
    const auto& sizes = random_sizes();
    into.at = random_.below(places_.size());
    const place& chosen = places_[into.at];
    into.address = chosen.memory->allocate(bytes{sizes[random_.below(sizes.size())]}, chosen.queue);
  }
  void free(const block& old) {
    const place& owner = places_[old.at];
    owner.memory->deallocate(old.address, owner.queue);
  }

  fast_random random_;
  std::vector<place> places_;
  std::vector<block> blocks_;
};

/// Each iteration is one pair. The first pairs, for which memory is reserved, are not measured.
void replace(benchmark::State& state, playground& on, population& blocks) {
  for (int pair = 0; pair < 20'000; ++pair) blocks.replace_one();
  const std::uint64_t calls = on.driver_calls();
  for (auto _ : state) blocks.replace_one();
  state.counters["driver_calls"] = benchmark::Counter(
      static_cast<double>(on.driver_calls() - calls), benchmark::Counter::kAvgIterations);
}

// --- Pairs ---------------------------------------------------------------------------------------

void live_blocks(benchmark::State& state, placement_policy policy) {
  playground on{policy};
  const stream queue = on.make_stream();
  population blocks{{{&on.memory(), queue}}, static_cast<std::size_t>(state.range(0)), 1};
  replace(state, on, blocks);
}

/// One thread; every request and free for one of the streams, whichever.
void streams(benchmark::State& state, placement_policy policy) {
  playground on{policy};
  std::vector<stream> queues;
  std::vector<population::place> places;
  for (std::int64_t i = 0; i < state.range(0); ++i) queues.push_back(on.make_stream());
  for (const stream& each : queues) places.push_back({&on.memory(), each});
  population blocks{std::move(places), 1'000, 1};
  replace(state, on, blocks);
}

/// One thread; every request and free on one of the devices, whichever.
void devices(benchmark::State& state, placement_policy policy) {
  const auto count = static_cast<std::size_t>(state.range(0));
  playground on{policy, count};
  std::vector<stream> queues;
  std::vector<population::place> places;
  for (std::size_t i = 0; i < count; ++i) queues.push_back(on.make_stream(i));
  for (std::size_t i = 0; i < count; ++i) places.push_back({&on.memory(i), queues[i]});
  population blocks{std::move(places), 1'000, 1};
  replace(state, on, blocks);
}

/// Each with a stream and 1,000 blocks of its own. The time is the processor time of all threads
/// for one pair, with the time in which they waited for one another's lock.
void threads(benchmark::State& state, placement_policy policy) {
  constexpr int pairs = 2'000;
  playground on{policy};
  const auto count = static_cast<std::size_t>(state.range(0));
  std::vector<stream> queues;
  for (std::size_t i = 0; i < count; ++i) queues.push_back(on.make_stream());
  const std::uint64_t calls = on.driver_calls();
  for (auto _ : state) {
    std::vector<std::thread> running;
    for (std::size_t i = 0; i < count; ++i) {
      running.emplace_back([&, i] {
        population blocks{{{&on.memory(), queues[i]}}, 1'000, i + 1};
        for (int pair = 0; pair < pairs; ++pair) blocks.replace_one();
      });
    }
    for (std::thread& each : running) each.join();
  }
  // The blocks that a thread takes first and frees last are pairs, too.
  const auto done = static_cast<double>(count) * (pairs + 1'000);
  state.counters["pair"] = benchmark::Counter(
      done, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["driver_calls"] = benchmark::Counter(
      static_cast<double>(on.driver_calls() - calls) / done, benchmark::Counter::kAvgIterations);
}

// --- Questions -----------------------------------------------------------------------------------

template <class Question>
void ask(benchmark::State& state, const Question& question) {
  playground on{placement_policy::balanced};
  const stream queue = on.make_stream();
  const population blocks{{{&on.memory(), queue}}, static_cast<std::size_t>(state.range(0)), 1};
  for (auto _ : state) question(on.memory(), queue);
}
void snapshot(benchmark::State& state) {
  ask(state, [](const caching_allocator& memory, const stream&) {
    benchmark::DoNotOptimize(memory.snapshot());
  });
}
void report(benchmark::State& state) {
  ask(state, [](const caching_allocator& memory, const stream& queue) {
    benchmark::DoNotOptimize(memory.explain(4_GiB, queue));
  });
}

using curve = void(benchmark::State&, placement_policy);

/// Many short runs: the whole program takes less than a minute.
const bool registered = [] {
  const auto add = [](std::string_view name, curve* measured, std::vector<std::int64_t> points) {
    for (const auto policy : {placement_policy::balanced, placement_policy::classic}) {
      const std::string full = "growth/" + std::string{name} + "/" + std::string{to_string(policy)};
      auto* const entry = benchmark::RegisterBenchmark(full.c_str(), measured, policy);
      for (const std::int64_t point : points) entry->Arg(point);
      if (measured == threads)
        entry->Iterations(4)->MeasureProcessCPUTime();
      else
        entry->Iterations(1 << 17);
    }
  };
  add("live_blocks", live_blocks, {100, 1'000, 10'000, 100'000, 1'000'000});
  add("streams", streams, {1, 8, 64, 128, 512});
  add("threads", threads, {1, 4, 16, 64});
  add("devices", devices, {1, 2, 4, 8});
  const auto add_question = [](const char* name, void (*measured)(benchmark::State&)) {
    benchmark::RegisterBenchmark(name, measured)
        ->Arg(1'000'000)
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  };
  add_question("growth/snapshot", snapshot);
  add_question("growth/report", report);
  return true;
}();

}  // namespace

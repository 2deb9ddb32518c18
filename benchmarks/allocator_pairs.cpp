// SPDX-License-Identifier: Apache-2.0
// allocate + free pairs through weir, beside mimalloc (the C library where that is missing): its
// pair of 64 bytes, and the same work as ours where that is more than a pair. On the
// simulated GPU, so the host's cost alone; no driver call is made in any timed loop but where
// memory is first taken.
#include <benchmark/benchmark.h>
#ifdef WEIR_HAS_MIMALLOC
#include <mimalloc.h>
#endif

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace {

using namespace weir;

#ifdef WEIR_HAS_MIMALLOC
void* peer_malloc(std::size_t size) { return mi_malloc(size); }
void peer_free(void* p) { mi_free(p); }
#define WEIR_PEER(name) "mimalloc_" name
#else
void* peer_malloc(std::size_t size) { return std::malloc(size); }
void peer_free(void* p) { std::free(p); }
#define WEIR_PEER(name) "malloc_" name
#endif

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

void peer_64(benchmark::State& state) {
  for (auto _ : state) {
    void* p = peer_malloc(64);
    benchmark::DoNotOptimize(p);
    peer_free(p);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(peer_64)->Name(WEIR_PEER("64"))->ThreadRange(1, 2)->UseRealTime();

void cached_pair(benchmark::State& state) {
  bench& all = bench::get();
  const stream own = stream::create(all.gpu).value();
  const stream_ref queue = own;
  const bytes size{static_cast<std::uint64_t>(state.range(0))};
  for (auto _ : state) {
    void* p = all.memory.allocate(size, queue);
    benchmark::DoNotOptimize(p);
    all.memory.deallocate(p, queue);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(cached_pair)
    ->Arg(512)
    ->Arg(4 << 10)
    ->Arg(64 << 10)
    ->Arg(512 << 10)
    ->Arg(1 << 20)
    ->Arg(2 << 20)
    ->Arg(64 << 20)
    ->Arg(1 << 30);
BENCHMARK(cached_pair)->Name("cached_pair_threads")->Arg(4 << 10)->ThreadRange(1, 2)->UseRealTime();

/// Sizes up to a power of two: every order of magnitude as likely as another, as the sizes of
/// tensors are, or every size.
struct random_kind {
  bool by_magnitude = true;
  int log2_most = 20;
};

/// One of `live` blocks, chosen at random, is freed and another of random size taken.
template <class Allocate, class Free>
void play_random_sizes(benchmark::State& state, random_kind kind, const Allocate& allocate,
                       const Free& free) {
  std::mt19937_64 random{1};
  std::vector<void*> live(static_cast<std::size_t>(state.range(0)));
  std::vector<std::uint32_t> choices(1 << 16);
  std::vector<std::uint32_t> sizes(1 << 16);
  for (auto& each : choices) each = static_cast<std::uint32_t>(random() % live.size());
  std::uniform_real_distribution<double> exponent{9, static_cast<double>(kind.log2_most)};
  for (auto& each : sizes)
    each = static_cast<std::uint32_t>(
        kind.by_magnitude ? std::exp2(exponent(random))
                          : static_cast<double>(random() % (1u << kind.log2_most) + 1));
  std::size_t at = 0;
  for (auto& each : live) each = allocate(sizes[at++ % sizes.size()]);
  for (auto _ : state) {
    void*& p = live[choices[at % choices.size()]];
    free(p);
    p = allocate(sizes[++at % sizes.size()]);
  }
  state.SetItemsProcessed(state.iterations());
  for (void* each : live) free(each);
}

void random_sizes(benchmark::State& state, random_kind kind) {
  bench& all = bench::get();
  const stream own = stream::create(all.gpu).value();
  const stream_ref queue = own;
  play_random_sizes(
      state, kind, [&](std::uint32_t size) { return all.memory.allocate(bytes{size}, queue); },
      [&](void* p) { all.memory.deallocate(p, queue); });
  static_cast<void>(all.memory.empty_cache());
}
constexpr random_kind magnitudes{};
constexpr random_kind uniform{.by_magnitude = false};
// As benchmarks/torch/micro.cpp plays them against PyTorch's own.
constexpr random_kind to_8_mib{.log2_most = 23};
constexpr random_kind to_64_kib{.log2_most = 16};
BENCHMARK_CAPTURE(random_sizes, magnitudes, magnitudes)->Arg(1'000)->Arg(100'000);
BENCHMARK_CAPTURE(random_sizes, uniform, uniform)->Arg(1'000)->Arg(100'000);
BENCHMARK_CAPTURE(random_sizes, to_8_MiB, to_8_mib)->Arg(1'000);
BENCHMARK_CAPTURE(random_sizes, to_64_KiB, to_64_kib)->Arg(100'000);

/// The same through the peer. Not every size with 100,000 live: that would be 50 GiB of host
/// memory.
void peer_random_sizes(benchmark::State& state, random_kind kind) {
  play_random_sizes(state, kind, peer_malloc, peer_free);
}
BENCHMARK_CAPTURE(peer_random_sizes, magnitudes, magnitudes)
    ->Name(WEIR_PEER("random_sizes/magnitudes"))
    ->Arg(1'000)
    ->Arg(100'000);
BENCHMARK_CAPTURE(peer_random_sizes, uniform, uniform)
    ->Name(WEIR_PEER("random_sizes/uniform"))
    ->Arg(1'000);
BENCHMARK_CAPTURE(peer_random_sizes, to_8_MiB, to_8_mib)
    ->Name(WEIR_PEER("random_sizes/to_8_MiB"))
    ->Arg(1'000);
BENCHMARK_CAPTURE(peer_random_sizes, to_64_KiB, to_64_kib)
    ->Name(WEIR_PEER("random_sizes/to_64_KiB"))
    ->Arg(100'000);

/// One thread allocates, another frees: pointers travel through a ring.
template <class Allocate, class Free>
void play_freed_by_another_thread(benchmark::State& state, const Allocate& allocate,
                                  const Free& free) {
  constexpr std::size_t size = 1024;
  std::vector<std::atomic<void*>> ring(size);
  std::atomic<bool> done{false};
  std::thread other{[&] {
    for (std::size_t at = 0;; ++at) {
      void* p = nullptr;
      while ((p = ring[at % size].exchange(nullptr, std::memory_order_acquire)) == nullptr)
        if (done.load(std::memory_order_relaxed)) return;
      free(p);
    }
  }};
  const auto wanted = static_cast<std::uint64_t>(state.range(0));
  std::size_t at = 0;
  for (auto _ : state) {
    void* p = allocate(wanted);
    auto& place = ring[at++ % size];
    while (place.load(std::memory_order_relaxed) != nullptr) {
    }
    place.store(p, std::memory_order_release);
  }
  state.SetItemsProcessed(state.iterations());
  done = true;
  other.join();
  for (auto& each : ring)
    if (void* p = each.exchange(nullptr)) free(p);
}

void freed_by_another_thread(benchmark::State& state) {
  bench& all = bench::get();
  const stream own = stream::create(all.gpu).value();
  const stream_ref queue = own;
  play_freed_by_another_thread(
      state, [&](std::uint64_t size) { return all.memory.allocate(bytes{size}, queue); },
      [&](void* p) { all.memory.deallocate(p, queue); });
}
BENCHMARK(freed_by_another_thread)->Arg(4 << 10)->Arg(64 << 10)->UseRealTime();

/// The same through the peer.
void peer_freed_by_another_thread(benchmark::State& state) {
  play_freed_by_another_thread(state, peer_malloc, peer_free);
}
BENCHMARK(peer_freed_by_another_thread)
    ->Name(WEIR_PEER("freed_by_another_thread"))
    ->Arg(4 << 10)
    ->Arg(64 << 10)
    ->UseRealTime();

}  // namespace

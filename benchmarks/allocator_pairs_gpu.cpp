// SPDX-License-Identifier: Apache-2.0
// allocate + free pairs on a GPU: through weir, and through the driver's own stream-ordered pool.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

namespace {

using namespace weir;

/// The device and one allocator, for the whole program. Leaks on purpose: the driver outlives every
/// benchmark.
struct gpu {
  std::shared_ptr<runtime> opened;
  weir::device device;
  caching_allocator memory;
};

gpu* the_gpu() {
  static gpu* const instance = []() -> gpu* {
    auto opened = runtime::open_cuda();
    if (!opened) return nullptr;
    const auto card = (*opened)->device(device_id{0});
    if (!card) return nullptr;
    auto memory = caching_allocator::create(*card);
    const auto context = card->context();
    if (!memory || !context) return nullptr;
    // The driver's pool keeps what is freed, so that it hits, too.
    const driver::table& cuda = card->driver();
    driver::CUmemoryPool pool = nullptr;
    std::uint64_t all = ~std::uint64_t{0};
    if (cuda.device_get_default_mem_pool(&pool, 0) != driver::CUDA_SUCCESS ||
        cuda.mem_pool_set_attribute(pool, driver::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all) !=
            driver::CUDA_SUCCESS)
      return nullptr;
    return new gpu{*std::move(opened), *card, *std::move(memory)};
  }();
  return instance;
}

/// One thread's way to memory through weir.
class through_weir {
 public:
  explicit through_weir(gpu& target)
      : memory_{target.memory}, stream_{stream::create(target.device).value()} {}
  ~through_weir() { (void)memory_.release_stream(stream_); }
  through_weir(const through_weir&) = delete;
  through_weir& operator=(const through_weir&) = delete;

  void* allocate(std::uint64_t size) { return memory_.allocate(bytes{size}, stream_ref{stream_}); }
  void free(void* pointer) { memory_.deallocate(pointer, stream_ref{stream_}); }
  [[nodiscard]] static bool failed() { return false; }  // it would have thrown

 private:
  caching_allocator& memory_;
  stream stream_;
};

/// The same with an allocator of its own whose blocks are checked.
template <debug_checks Checks>
class through_checks {
 public:
  explicit through_checks(gpu& target)
      : memory_{caching_allocator::create(target.device, {.debug = Checks}).value()},
        stream_{stream::create(target.device).value()} {}

  void* allocate(std::uint64_t size) { return memory_.allocate(bytes{size}, stream_ref{stream_}); }
  void free(void* pointer) { memory_.deallocate(pointer, stream_ref{stream_}); }
  [[nodiscard]] static bool failed() { return false; }

 private:
  caching_allocator memory_;
  stream stream_;
};

/// The same through cuMemAllocAsync and cuMemFreeAsync.
class through_driver {
 public:
  explicit through_driver(gpu& target)
      : cuda_{target.device.driver()}, stream_{stream::create(target.device).value()} {
    if (cuda_.ctx_set_current(target.device.context().value()) != driver::CUDA_SUCCESS)
      failed_ = true;
  }
  ~through_driver() { (void)stream_.synchronize(); }
  through_driver(const through_driver&) = delete;
  through_driver& operator=(const through_driver&) = delete;

  void* allocate(std::uint64_t size) {
    driver::CUdeviceptr block = 0;
    if (cuda_.mem_alloc_async(&block, size, stream_.handle()) != driver::CUDA_SUCCESS)
      failed_ = true;
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(block));
  }
  void free(void* pointer) {
    const auto address =
        static_cast<driver::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
    if (cuda_.mem_free_async(address, stream_.handle()) != driver::CUDA_SUCCESS) failed_ = true;
  }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  const driver::table& cuda_;
  stream stream_;
  bool failed_ = false;
};

/// Runs `pair(way)` in a loop with a way of this thread's own; `prepare(way)` and `clean(way)` are
/// not timed. pair_ns is what a pair takes a thread, however many there are.
template <class Way, class Prepare, class Pair, class Clean>
void measure(benchmark::State& state, Prepare prepare, Pair pair, Clean clean) {
  gpu* const target = the_gpu();
  if (target == nullptr) {
    state.SkipWithError("no usable GPU driver");
    return;
  }
  Way way{*target};
  prepare(way);
  const auto begun = std::chrono::steady_clock::now();
  for (auto _ : state) pair(way);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begun;
  clean(way);
  if (way.failed()) state.SkipWithError("the driver refused");
  state.SetItemsProcessed(state.iterations());
  state.counters["pair_ns"] = benchmark::Counter{
      took.count() / static_cast<double>(state.iterations()), benchmark::Counter::kAvgThreads};
}

/// The same size again and again.
template <class Way>
void pair(benchmark::State& state) {
  const auto size = static_cast<std::uint64_t>(state.range(0));
  const auto once = [size](Way& way) {
    void* const block = way.allocate(size);
    benchmark::DoNotOptimize(block);
    way.free(block);
  };
  measure<Way>(state, once, once, [](Way&) {});
}

/// Random sizes of 512 B to 8 MiB, every power of two as likely as the others, with many blocks
/// live: a random one is freed and another allocated.
template <class Way>
void random_sizes(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  std::mt19937_64 random{1};
  std::vector<std::uint64_t> sizes(1 << 16);
  std::vector<std::size_t> places(sizes.size());
  std::uniform_real_distribution<double> exponent{9, 23};
  for (auto& each : sizes) each = static_cast<std::uint64_t>(std::exp2(exponent(random)));
  for (auto& each : places) each = random() % count;
  std::vector<void*> live(count);
  std::size_t next = 0;
  const auto take = [&](Way& way) {
    void*& place = live[places[next]];
    way.free(place);
    place = way.allocate(sizes[next]);
    next = (next + 1) % sizes.size();
  };
  measure<Way>(
      state,
      [&](Way& way) {
        for (std::size_t i = 0; i < count; ++i) live[i] = way.allocate(sizes[i]);
        for (std::size_t i = 0; i < 4 * count; ++i) take(way);  // the memory is there
      },
      take,
      [&](Way& way) {
        for (void* const each : live) way.free(each);
      });
}

void sizes_of_pairs(benchmark::internal::Benchmark* each) {
  constexpr std::int64_t kib = 1 << 10, mib = 1 << 20;
  for (const std::int64_t size : {std::int64_t{512}, 4 * kib, 64 * kib, 512 * kib, mib, 2 * mib,
                                  16 * mib, 128 * mib, 1024 * mib})
    each->Arg(size);
  each->ArgName("bytes")->MinTime(0.1);
}
BENCHMARK_TEMPLATE(pair, through_weir)->Apply(sizes_of_pairs);
BENCHMARK_TEMPLATE(pair, through_driver)->Apply(sizes_of_pairs);

void sizes_of_checked_pairs(benchmark::internal::Benchmark* each) {
  for (const std::int64_t size : {1000, 64 << 10, 16 << 20}) each->Arg(size);
  each->ArgName("bytes")->MinTime(0.05);
}
BENCHMARK_TEMPLATE(pair, through_checks<debug_checks::red_zones>)->Apply(sizes_of_checked_pairs);
BENCHMARK_TEMPLATE(pair, through_checks<debug_checks::guard_pages>)->Apply(sizes_of_checked_pairs);

BENCHMARK_TEMPLATE(random_sizes, through_weir)->ArgName("live")->Arg(1000)->MinTime(0.2);
BENCHMARK_TEMPLATE(random_sizes, through_driver)->ArgName("live")->Arg(1000)->MinTime(0.2);

void threads_with_own_streams(benchmark::internal::Benchmark* each) {
  each->ArgName("bytes")->Arg(64 << 10)->ThreadRange(1, 16)->UseRealTime()->MinTime(0.1);
}
BENCHMARK_TEMPLATE(pair, through_weir)->Apply(threads_with_own_streams);
BENCHMARK_TEMPLATE(pair, through_driver)->Apply(threads_with_own_streams);

}  // namespace

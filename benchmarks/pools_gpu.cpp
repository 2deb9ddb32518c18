// SPDX-License-Identifier: Apache-2.0
// The same work on four streams through each way to device memory: the caching allocator, the
// driver's pool, the bin pool, and the driver without any.
#include <benchmark/benchmark.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/runtime.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/stream_pool.hpp"
#include "weir/resource/plain_resource.hpp"
#include "weir/resource/resource.hpp"

namespace {

using namespace weir;

constexpr std::size_t streams = 4;
constexpr std::size_t blocks_a_step = 8;

/// A step of one stream: blocks of 4 KiB to 16 MiB, each written to, then freed newest first.
struct step {
  std::array<bytes, blocks_a_step> sizes;
};

/// The same steps for every pool.
std::vector<step> make_steps() {
  std::mt19937_64 random{1};
  std::uniform_real_distribution<double> exponent{12, 24};
  std::vector<step> steps(256);
  for (step& each : steps)
    for (bytes& size : each.sizes)
      size = bytes{static_cast<std::uint64_t>(std::exp2(exponent(random)))};
  return steps;
}

struct gpu {
  std::shared_ptr<runtime> opened;
  weir::device device;
};

/// Leaks on purpose: the driver outlives every benchmark.
gpu* the_gpu() {
  static gpu* const instance = []() -> gpu* {
    auto opened = runtime::open_cuda();
    if (!opened) return nullptr;
    const auto card = (*opened)->device(device_id{0});
    if (!card) return nullptr;
    return new gpu{*std::move(opened), *card};
  }();
  return instance;
}

using maker = any_resource (*)(device);

void multi_stream_work(benchmark::State& state, maker make) {
  gpu* const target = the_gpu();
  if (target == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  const any_resource memory = make(target->device);
  std::vector<stream> queues;
  for (std::size_t i = 0; i < streams; ++i)
    queues.push_back(stream::create(target->device).value());
  const std::vector<step> steps = make_steps();
  std::size_t at = 0;
  for (auto _ : state) {
    const stream_ref queue = queues[at % streams];
    const step& now = steps[at++ % steps.size()];
    std::array<void*, blocks_a_step> blocks{};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = memory.allocate(now.sizes[i], queue);
      fill_bytes(blocks[i], 1, bytes{256}, queue).value();
    }
    for (std::size_t i = blocks.size(); i-- > 0;) memory.deallocate(blocks[i], now.sizes[i], queue);
  }
  for (const stream& each : queues) each.synchronize().value();
  // An allocation, its fill and its free.
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(blocks_a_step));
}

any_resource caching(device card) { return caching_allocator::create(card).value(); }
any_resource driver_pool(device card) { return stream_pool::create(card).value(); }
any_resource bins(device card) { return bin_pool::create(card).value(); }
any_resource plain(device card) { return plain_resource::create(card).value(); }

BENCHMARK_CAPTURE(multi_stream_work, caching_allocator, caching)->UseRealTime();
BENCHMARK_CAPTURE(multi_stream_work, stream_pool, driver_pool)->UseRealTime();
BENCHMARK_CAPTURE(multi_stream_work, bin_pool, bins)->UseRealTime();
BENCHMARK_CAPTURE(multi_stream_work, plain_cuMemAlloc, plain)->UseRealTime();

}  // namespace

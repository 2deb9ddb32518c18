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

/// The same steps for everybody.
std::vector<step> make_steps() {
  std::mt19937_64 random{1};
  std::uniform_real_distribution<double> exponent{12, 24};
  std::vector<step> made(256);
  for (step& each : made)
    for (bytes& size : each.sizes)
      size = bytes{static_cast<std::uint64_t>(std::exp2(exponent(random)))};
  return made;
}

struct gpu {
  std::shared_ptr<runtime> opened;
  device where;
};

/// Leaks on purpose: the driver outlives every benchmark.
gpu* the_gpu() {
  static gpu* const found = []() -> gpu* {
    auto opened = runtime::open_cuda();
    if (!opened) return nullptr;
    const auto where = (*opened)->device(device_id{0});
    if (!where) return nullptr;
    return new gpu{*std::move(opened), *where};
  }();
  return found;
}

using maker = any_resource (*)(device);

void multi_stream_work(benchmark::State& state, maker make) {
  gpu* const found = the_gpu();
  if (found == nullptr) {
    state.SkipWithError("no GPU");
    return;
  }
  const any_resource memory = make(found->where);
  std::vector<stream> queues;
  for (std::size_t i = 0; i < streams; ++i) queues.push_back(stream::create(found->where).value());
  const std::vector<step> steps = make_steps();
  std::size_t at = 0;
  for (auto _ : state) {
    const stream_ref on = queues[at % streams];
    const step& now = steps[at++ % steps.size()];
    std::array<void*, blocks_a_step> blocks{};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = memory.allocate(now.sizes[i], on);
      fill_bytes(blocks[i], 1, bytes{256}, on).value();
    }
    for (std::size_t i = blocks.size(); i-- > 0;) memory.deallocate(blocks[i], now.sizes[i], on);
  }
  for (const stream& each : queues) each.synchronize().value();
  // An allocation, its fill and its free.
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(blocks_a_step));
}

any_resource caching(device where) { return caching_allocator::create(where).value(); }
any_resource driver_pool(device where) { return stream_pool::create(where).value(); }
any_resource bins(device where) { return bin_pool::create(where).value(); }
any_resource plain(device where) { return plain_resource::create(where).value(); }

BENCHMARK_CAPTURE(multi_stream_work, caching_allocator, caching)->UseRealTime();
BENCHMARK_CAPTURE(multi_stream_work, stream_pool, driver_pool)->UseRealTime();
BENCHMARK_CAPTURE(multi_stream_work, bin_pool, bins)->UseRealTime();
BENCHMARK_CAPTURE(multi_stream_work, plain_cuMemAlloc, plain)->UseRealTime();

}  // namespace

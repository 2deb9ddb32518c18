// SPDX-License-Identifier: Apache-2.0
// How quickly bytes go between host and device: pinned buffers beside raw pinned memory, staging
// beside the driver's own way with pageable memory, and managed prefetches; the limits measured in
// the same run.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/pinned_buffer.hpp"
#include "weir/buffer/staging.hpp"
#include "weir/buffer/unified_buffer.hpp"
#include "weir/device/runtime.hpp"
#include "weir/driver/table.hpp"

namespace {

using namespace weir;

/// A GPU with what every benchmark needs. Leaks on purpose: the driver outlives every benchmark.
struct gpu {
  std::shared_ptr<runtime> machine;
  weir::device device;
  weir::stream stream;
  caching_allocator memory;
  pinned_pool pinned;
};

gpu* the_gpu() {
  static gpu* const instance = []() -> gpu* {
    auto machine = runtime::open_cuda();
    if (!machine) return nullptr;
    const auto device = (*machine)->device(device_id{0}).value();
    return new gpu{*machine, device, stream::create(device).value(),
                   caching_allocator::create(device).value(), pinned_pool::create(device).value()};
  }();
  return instance;
}

/// Runs `once`, which queues or does one transfer of `size` bytes, and waits for the stream; the
/// first few runs, which touch pages and warm the driver, are not counted.
template <class Once>
void measure(benchmark::State& state, gpu& target, std::size_t size, Once once) {
  const auto run = [&] { return once() && target.stream.synchronize(); };
  for (int i = 0; i < 2; ++i) {
    if (!run()) return state.SkipWithError("the driver refused");
  }
  for (auto _ : state) {
    if (!run()) return state.SkipWithError("the driver refused");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(size) * state.iterations());
}

/// The sizes of all of them.
std::size_t size_of(const benchmark::State& state) {
  return static_cast<std::size_t>(state.range(0)) << 20;
}

#define WEIR_NEEDS_GPU(variable)                                                       \
  gpu* const variable##_found = the_gpu();                                             \
  if (variable##_found == nullptr) return state.SkipWithError("no usable GPU driver"); \
  gpu& variable = *variable##_found

enum class direction { up, down };

/// The limit: memory of cuMemHostAlloc and the driver's copy.
void raw_pinned(benchmark::State& state, direction way) {
  WEIR_NEEDS_GPU(target);
  const std::size_t size = size_of(state);
  const context_scope bound{target.device};
  const auto& cuda = bound.driver();
  void* host = nullptr;
  driver::CUdeviceptr there = 0;
  if (cuda.mem_host_alloc(&host, size, driver::host_alloc_portable) != driver::CUDA_SUCCESS ||
      cuda.mem_alloc(&there, size) != driver::CUDA_SUCCESS) {
    return state.SkipWithError("no memory");
  }
  std::memset(host, 1, size);
  measure(state, target, size, [&] {
    const auto status = way == direction::up
                            ? cuda.memcpy_htod_async(there, host, size, target.stream.handle())
                            : cuda.memcpy_dtoh_async(host, there, size, target.stream.handle());
    return status == driver::CUDA_SUCCESS;
  });
  cuda.mem_free(there);
  cuda.mem_free_host(host);
}
BENCHMARK_CAPTURE(raw_pinned, up, direction::up)->ArgName("MiB")->Arg(64)->Arg(1024)->UseRealTime();
BENCHMARK_CAPTURE(raw_pinned, down, direction::down)
    ->ArgName("MiB")
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();

void pinned_buffer_copy(benchmark::State& state, direction way) {
  WEIR_NEEDS_GPU(target);
  const std::size_t size = size_of(state);
  auto host = pinned_buffer<std::byte>::zeroed(target.pinned, size, target.stream).value();
  auto there = device_buffer::create(target.memory, bytes{size}, target.stream).value();
  measure(state, target, size, [&] {
    return way == direction::up
               ? copy_bytes(there.data(), host.data(), bytes{size}, target.stream).has_value()
               : copy_bytes(host.data(), there.data(), bytes{size}, target.stream).has_value();
  });
}
BENCHMARK_CAPTURE(pinned_buffer_copy, up, direction::up)
    ->ArgName("MiB")
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();
BENCHMARK_CAPTURE(pinned_buffer_copy, down, direction::down)
    ->ArgName("MiB")
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();

/// Pageable memory handed to the driver as it is.
void pageable_copy(benchmark::State& state, direction way) {
  WEIR_NEEDS_GPU(target);
  const std::size_t size = size_of(state);
  std::vector<std::byte> host(size, std::byte{1});
  auto there = device_buffer::create(target.memory, bytes{size}, target.stream).value();
  measure(state, target, size, [&] {
    return way == direction::up
               ? copy_bytes(there.data(), host.data(), bytes{size}, target.stream).has_value()
               : copy_bytes(host.data(), there.data(), bytes{size}, target.stream).has_value();
  });
}
BENCHMARK_CAPTURE(pageable_copy, up, direction::up)
    ->ArgName("MiB")
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();
BENCHMARK_CAPTURE(pageable_copy, down, direction::down)
    ->ArgName("MiB")
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();

/// The same memory through a staging buffer; the second argument is its chunk.
void staging_copy(benchmark::State& state, direction way) {
  WEIR_NEEDS_GPU(target);
  const std::size_t size = size_of(state);
  const bytes chunk{static_cast<std::uint64_t>(state.range(1)) << 20};
  std::vector<std::byte> host(size, std::byte{1});
  auto there = device_buffer::create(target.memory, bytes{size}, target.stream).value();
  auto stage = staging_buffer::create(target.pinned, target.stream, {.chunk = chunk}).value();
  measure(state, target, size, [&] {
    return way == direction::up ? stage.upload(there.data(), host).has_value()
                                : stage.download(host, there.data()).has_value();
  });
}
BENCHMARK_CAPTURE(staging_copy, up, direction::up)
    ->ArgNames({"MiB", "chunk_MiB"})
    ->ArgsProduct({{64, 1024}, {1, 4, 16}})
    ->UseRealTime();
BENCHMARK_CAPTURE(staging_copy, down, direction::down)
    ->ArgNames({"MiB", "chunk_MiB"})
    ->ArgsProduct({{64, 1024}, {1, 4, 16}})
    ->UseRealTime();

/// Staging without the host's copy: the bus alone.
void staging_in_place(benchmark::State& state) {
  WEIR_NEEDS_GPU(target);
  const std::size_t size = size_of(state);
  auto there = device_buffer::create(target.memory, bytes{size}, target.stream).value();
  auto stage = staging_buffer::create(target.pinned, target.stream).value();
  measure(state, target, size, [&] {
    return stage
        .upload_with(there.data(), bytes{size},
                     [](std::span<std::byte> piece, bytes) { piece[0] = std::byte{1}; })
        .has_value();
  });
}
BENCHMARK(staging_in_place)->ArgName("MiB")->Arg(64)->Arg(1024)->UseRealTime();

/// Managed pages there and, uncounted, back: every prefetch moves all of them.
void managed_prefetch(benchmark::State& state, direction way) {
  WEIR_NEEDS_GPU(target);
  const std::size_t size = size_of(state);
  auto pages = unified_buffer<std::byte>::zeroed(size, target.stream).value();
  const managed_place destination =
      way == direction::up ? managed_place{target.device} : managed_place::host();
  const managed_place back =
      way == direction::up ? managed_place::host() : managed_place{target.device};
  const auto send = [&](managed_place place) {
    return pages.prefetch(place, target.stream) && target.stream.synchronize();
  };
  if (!send(destination) || !send(back)) return state.SkipWithError("the driver refused");
  for (auto _ : state) {
    const bool there = send(destination);
    state.PauseTiming();
    if (!there || !send(back)) return state.SkipWithError("the driver refused");
    state.ResumeTiming();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(size) * state.iterations());
}
BENCHMARK_CAPTURE(managed_prefetch, up, direction::up)
    ->ArgName("MiB")
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();
BENCHMARK_CAPTURE(managed_prefetch, down, direction::down)
    ->ArgName("MiB")
    ->Arg(64)
    ->Arg(1024)
    ->UseRealTime();

/// A batch of small copies, in one call and one by one.
void small_copies(benchmark::State& state, bool batched) {
  WEIR_NEEDS_GPU(target);
  constexpr std::size_t piece = 4096;
  const auto count = static_cast<std::size_t>(state.range(0));
  auto host = pinned_buffer<std::byte>::zeroed(target.pinned, piece * count, target.stream).value();
  auto there =
      device_buffer::create(target.memory, bytes{2 * piece * count}, target.stream).value();
  std::vector<copy_item> items;
  for (std::size_t i = 0; i < count; ++i) {
    items.push_back({static_cast<std::byte*>(there.data()) + 2 * piece * i, host.data() + piece * i,
                     bytes{piece}});
  }
  measure(state, target, piece * count, [&] {
    if (batched) return copy_batch(items, target.stream).has_value();
    for (const copy_item& each : items) {
      if (!copy_bytes(each.to, each.from, each.size, target.stream)) return false;
    }
    return true;
  });
}
BENCHMARK_CAPTURE(small_copies, batched, true)->ArgName("copies")->Arg(256)->UseRealTime();
BENCHMARK_CAPTURE(small_copies, one_by_one, false)->ArgName("copies")->Arg(256)->UseRealTime();

}  // namespace

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
  static gpu* const found = []() -> gpu* {
    auto machine = runtime::open_cuda();
    if (!machine) return nullptr;
    const auto device = (*machine)->device(device_id{0}).value();
    return new gpu{*machine, device, stream::create(device).value(),
                   caching_allocator::create(device).value(), pinned_pool::create(device).value()};
  }();
  return found;
}

/// Runs `once`, which queues or does one transfer of `size` bytes, and waits for the stream; the
/// first few runs, which touch pages and warm the driver, are not counted.
template <class Once>
void measure(benchmark::State& state, gpu& on, std::size_t size, Once once) {
  const auto run = [&] { return once() && on.stream.synchronize(); };
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
  WEIR_NEEDS_GPU(on);
  const std::size_t size = size_of(state);
  const context_scope bound{on.device};
  const auto& cuda = bound.driver();
  void* host = nullptr;
  driver::CUdeviceptr there = 0;
  if (cuda.mem_host_alloc(&host, size, driver::host_alloc_portable) != driver::CUDA_SUCCESS ||
      cuda.mem_alloc(&there, size) != driver::CUDA_SUCCESS) {
    return state.SkipWithError("no memory");
  }
  std::memset(host, 1, size);
  measure(state, on, size, [&] {
    const auto answer = way == direction::up
                            ? cuda.memcpy_htod_async(there, host, size, on.stream.handle())
                            : cuda.memcpy_dtoh_async(host, there, size, on.stream.handle());
    return answer == driver::CUDA_SUCCESS;
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
  WEIR_NEEDS_GPU(on);
  const std::size_t size = size_of(state);
  auto host = pinned_buffer<std::byte>::zeroed(on.pinned, size, on.stream).value();
  auto there = device_buffer::create(on.memory, bytes{size}, on.stream).value();
  measure(state, on, size, [&] {
    return way == direction::up
               ? copy_bytes(there.data(), host.data(), bytes{size}, on.stream).has_value()
               : copy_bytes(host.data(), there.data(), bytes{size}, on.stream).has_value();
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
  WEIR_NEEDS_GPU(on);
  const std::size_t size = size_of(state);
  std::vector<std::byte> host(size, std::byte{1});
  auto there = device_buffer::create(on.memory, bytes{size}, on.stream).value();
  measure(state, on, size, [&] {
    return way == direction::up
               ? copy_bytes(there.data(), host.data(), bytes{size}, on.stream).has_value()
               : copy_bytes(host.data(), there.data(), bytes{size}, on.stream).has_value();
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
  WEIR_NEEDS_GPU(on);
  const std::size_t size = size_of(state);
  const bytes chunk{static_cast<std::uint64_t>(state.range(1)) << 20};
  std::vector<std::byte> host(size, std::byte{1});
  auto there = device_buffer::create(on.memory, bytes{size}, on.stream).value();
  auto stage = staging_buffer::create(on.pinned, on.stream, {.chunk = chunk}).value();
  measure(state, on, size, [&] {
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
  WEIR_NEEDS_GPU(on);
  const std::size_t size = size_of(state);
  auto there = device_buffer::create(on.memory, bytes{size}, on.stream).value();
  auto stage = staging_buffer::create(on.pinned, on.stream).value();
  measure(state, on, size, [&] {
    return stage
        .upload_with(there.data(), bytes{size},
                     [](std::span<std::byte> piece, bytes) { piece[0] = std::byte{1}; })
        .has_value();
  });
}
BENCHMARK(staging_in_place)->ArgName("MiB")->Arg(64)->Arg(1024)->UseRealTime();

/// Managed pages there and, uncounted, back: every prefetch moves all of them.
void managed_prefetch(benchmark::State& state, direction way) {
  WEIR_NEEDS_GPU(on);
  const std::size_t size = size_of(state);
  auto pages = unified_buffer<std::byte>::zeroed(size, on.stream).value();
  const managed_place to = way == direction::up ? managed_place{on.device} : managed_place::host();
  const managed_place back =
      way == direction::up ? managed_place::host() : managed_place{on.device};
  const auto send = [&](managed_place where) {
    return pages.prefetch(where, on.stream) && on.stream.synchronize();
  };
  if (!send(to) || !send(back)) return state.SkipWithError("the driver refused");
  for (auto _ : state) {
    const bool there = send(to);
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
  WEIR_NEEDS_GPU(on);
  constexpr std::size_t piece = 4096;
  const auto count = static_cast<std::size_t>(state.range(0));
  auto host = pinned_buffer<std::byte>::zeroed(on.pinned, piece * count, on.stream).value();
  auto there = device_buffer::create(on.memory, bytes{2 * piece * count}, on.stream).value();
  std::vector<copy_item> items;
  for (std::size_t i = 0; i < count; ++i) {
    items.push_back({static_cast<std::byte*>(there.data()) + 2 * piece * i, host.data() + piece * i,
                     bytes{piece}});
  }
  measure(state, on, piece * count, [&] {
    if (batched) return copy_batch(items, on.stream).has_value();
    for (const copy_item& each : items) {
      if (!copy_bytes(each.to, each.from, each.size, on.stream)) return false;
    }
    return true;
  });
}
BENCHMARK_CAPTURE(small_copies, batched, true)->ArgName("copies")->Arg(256)->UseRealTime();
BENCHMARK_CAPTURE(small_copies, one_by_one, false)->ArgName("copies")->Arg(256)->UseRealTime();

}  // namespace

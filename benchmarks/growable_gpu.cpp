// SPDX-License-Identifier: Apache-2.0
// Growable memory on a GPU: commits with a recycled handle, commits of parked pages, decommits, and
// the speed of fills and copies over pages of several sizes beside one plain allocation.
//
// One iteration is one call for one page of `page_MiB`. The opposite call is not timed.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/driver/table.hpp"
#include "weir/growable/growable_memory.hpp"

namespace {

using namespace weir;
using namespace weir::literals;

std::optional<device> the_gpu(benchmark::State& state) {
  static const auto opened = runtime::open();
  if (opened) {
    if (const auto first = (*opened)->device(device_id{0})) return *first;
  }
  state.SkipWithError("no usable GPU driver");
  return std::nullopt;
}

bytes mebibytes(std::int64_t count) { return bytes{static_cast<std::uint64_t>(count) << 20}; }

/// An allocator with growable memory of so many pages.
struct setting {
  setting(device gpu, bytes page, std::uint64_t pages)
      : on{stream::create(gpu).value()},
        memory{caching_allocator::create(gpu).value()},
        cache{growable_memory::reserve(memory, page * pages, {.page = page}).value()} {}

  stream on;
  caching_allocator memory;
  growable_memory cache;
};

/// One handle goes from page to page: each commit maps it and sets its access rights.
void commit_recycled(benchmark::State& state) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  const bytes page = mebibytes(state.range(0));
  constexpr std::uint64_t pages = 512;
  const setting with{*gpu, page, pages};
  std::uint64_t at = 0;
  for (auto _ : state) {
    if (!with.cache.commit(page * at, page, with.on)) return state.SkipWithError("no memory");
    state.PauseTiming();
    with.cache.decommit(page * at, page, with.on).value();
    if (++at == pages) {  // no mapping may be left where the handle comes next
      with.on.synchronize().value();
      static_cast<void>(with.cache.trim().value());
      at = 0;
    }
    state.ResumeTiming();
  }
}
BENCHMARK(commit_recycled)->ArgName("page_MiB")->Arg(2)->Arg(16)->Arg(64)->Arg(256)->UseRealTime();

/// The same page again and again: its mapping was parked.
void commit_parked(benchmark::State& state) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  const bytes page = mebibytes(state.range(0));
  const setting with{*gpu, page, 4};
  for (auto _ : state) {
    if (!with.cache.commit(0_B, page, with.on)) return state.SkipWithError("no memory");
    state.PauseTiming();
    with.cache.decommit(0_B, page, with.on).value();
    state.ResumeTiming();
  }
}
BENCHMARK(commit_parked)->ArgName("page_MiB")->Arg(2)->Arg(16)->Arg(64)->UseRealTime();

/// What a decommit takes while kernels are queued that use the page.
void decommit(benchmark::State& state) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  const bytes page = mebibytes(state.range(0));
  const setting with{*gpu, page, 4};
  const context_scope bound{*gpu};
  for (auto _ : state) {
    state.PauseTiming();
    with.cache.commit(0_B, page, with.on).value();
    static_cast<void>(bound.driver().memset_d8_async(
        reinterpret_cast<device_address>(with.cache.data()), 1, page.count(), with.on.handle()));
    state.ResumeTiming();
    with.cache.decommit(0_B, page, with.on).value();
  }
}
BENCHMARK(decommit)->ArgName("page_MiB")->Arg(16)->UseRealTime();

/// A commit of 64 pages as one batch, with recycled handles.
void commit_batch(benchmark::State& state) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  const bytes page = mebibytes(state.range(0));
  constexpr std::uint64_t pages = 64;
  const setting with{*gpu, page, 2 * pages};
  std::uint64_t half = 0;
  for (auto _ : state) {
    if (!with.cache.commit(page * pages * half, page * pages, with.on))
      return state.SkipWithError("no memory");
    state.PauseTiming();
    with.cache.decommit(page * pages * half, page * pages, with.on).value();
    with.on.synchronize().value();
    static_cast<void>(with.cache.trim().value());
    half = 1 - half;
    state.ResumeTiming();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(pages) * state.iterations());
}
BENCHMARK(commit_batch)->ArgName("page_MiB")->Arg(16)->UseRealTime();

constexpr bytes range = 2_GiB;

/// Fills and copies `range` bytes; page 0 stands for a plain allocation of the allocator.
void kernel_speed(benchmark::State& state) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  const bytes page = mebibytes(state.range(0));
  const setting with{*gpu, page == 0_B ? 16_MiB : page, 2 * range / (page == 0_B ? 16_MiB : page)};
  void* plain = nullptr;
  device_address memory = reinterpret_cast<device_address>(with.cache.data());
  if (page == 0_B) {
    plain = with.memory.allocate(2 * range, with.on);
    memory = reinterpret_cast<device_address>(plain);
  } else if (!with.cache.commit(0_B, 2 * range, with.on)) {
    return state.SkipWithError("no memory");
  }
  const context_scope bound{*gpu};
  const auto& cuda = bound.driver();
  with.on.synchronize().value();
  for (auto _ : state) {
    static_cast<void>(cuda.memset_d8_async(memory, 1, range.count(), with.on.handle()));
    static_cast<void>(
        cuda.memcpy_dtod_async(memory + range.count(), memory, range.count(), with.on.handle()));
    with.on.synchronize().value();
  }
  // A fill writes the bytes once; a copy reads and writes them.
  state.SetBytesProcessed(3 * static_cast<std::int64_t>(range.count()) * state.iterations());
  if (plain != nullptr) with.memory.deallocate(plain, with.on);
}
BENCHMARK(kernel_speed)
    ->ArgName("page_MiB")
    ->Arg(0)
    ->Arg(2)
    ->Arg(16)
    ->Arg(64)
    ->Arg(256)
    ->UseRealTime();

}  // namespace

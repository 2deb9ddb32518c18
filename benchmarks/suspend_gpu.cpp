// SPDX-License-Identifier: Apache-2.0
// Suspend and resume of 8 GiB in tensors of 64 MiB, beside a plain copy of the same size and beside
// a model of what vLLM's allocator does: a reserve, create, map and blocking copy for each tensor.
//
// One iteration is one suspend or one resume; its opposite is not timed. bytes_per_second counts
// live bytes; the discarding ones have ms_per_GB as a counter (GB is 10^9 bytes).
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/driver/table.hpp"

namespace {

using namespace weir;
using namespace weir::literals;
using driver::CUDA_SUCCESS;

constexpr bytes tensor = 64_MiB;
constexpr std::size_t tensors = 128;
constexpr std::uint64_t total = tensor.count() * tensors;

/// The first device of the machine, or why there is none.
std::optional<device> the_gpu(benchmark::State& state) {
  static const auto opened = runtime::open();
  if (opened) {
    if (const auto first = (*opened)->device(device_id{0})) return *first;
  }
  state.SkipWithError("no usable GPU driver");
  return std::nullopt;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void report(benchmark::State& state) {
  const auto moved = static_cast<std::int64_t>(total) * state.iterations();
  state.SetBytesProcessed(moved);
  state.counters["ms_per_GB"] = benchmark::Counter(
      static_cast<double>(moved) / 1e12, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

/// Tensors under a tag, which go and come.
class workload {
 public:
  explicit workload(device gpu)
      : stream_{stream::create(gpu).value()}, memory_{caching_allocator::create(gpu).value()} {
    memory_.declare_suspendable(weights).value();
    const tag_scope scope{weights};
    for (std::size_t i = 0; i < tensors; ++i) live_.push_back(memory_.allocate(tensor, stream_));
  }
  ~workload() {
    static_cast<void>(memory_.resume(weights));
    for (void* const each : live_) memory_.deallocate(each, stream_);
  }
  workload(const workload&) = delete;
  workload& operator=(const workload&) = delete;

  bool suspend(const suspend_options& with) { return memory_.suspend(weights, with).has_value(); }
  bool resume() { return memory_.resume(weights).has_value(); }

 private:
  const tag weights = tag::named("weights").value();
  stream stream_;
  caching_allocator memory_;
  std::vector<void*> live_;
};

/// What is timed is one direction. The first cycle, which pins the host memory, is not.
void cycle(benchmark::State& state, const suspend_options& with, bool timed_suspend) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  workload work{*gpu};
  if (!work.suspend(with) || !work.resume()) {
    state.SkipWithError("no memory");
    return;
  }
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    bool done = work.suspend(with);
    const double out = seconds_since(start);
    const auto back = std::chrono::steady_clock::now();
    done = work.resume() && done;
    state.SetIterationTime(timed_suspend ? out : seconds_since(back));
    if (!done) {
      state.SkipWithError("it failed");
      return;
    }
  }
  report(state);
}

suspend_options tie_to_graph(std::int64_t chunk) {
  return {.chunk = bytes{static_cast<std::uint64_t>(chunk) << 20}};
}

void suspend_keep(benchmark::State& state) { cycle(state, tie_to_graph(state.range(0)), true); }
void resume_keep(benchmark::State& state) { cycle(state, tie_to_graph(state.range(0)), false); }
void suspend_pageable(benchmark::State& state) {
  cycle(state, {.to = host_memory_kind::pageable}, true);
}
void resume_pageable(benchmark::State& state) {
  cycle(state, {.to = host_memory_kind::pageable}, false);
}
void suspend_discard(benchmark::State& state) {
  cycle(state, {.contents = suspended_contents::discard}, true);
}
void resume_discard(benchmark::State& state) {
  cycle(state, {.contents = suspended_contents::discard}, false);
}

/// The first suspend of a process, which pins the host memory.
void first_suspend(benchmark::State& state) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  for (auto _ : state) {
    workload work{*gpu};
    const auto start = std::chrono::steady_clock::now();
    const bool done = work.suspend({});
    state.SetIterationTime(seconds_since(start));
    if (!done) {
      state.SkipWithError("it failed");
      return;
    }
  }
  report(state);
}

/// One blocking copy of everything, pinned memory on the host's side.
void plain_copy(benchmark::State& state, bool to_host) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  const context_scope bound{*gpu};
  const driver::table& cuda = bound.driver();
  driver::CUdeviceptr on_device = 0;
  void* host = nullptr;
  if (cuda.mem_alloc(&on_device, total) != CUDA_SUCCESS ||
      cuda.mem_host_alloc(&host, total, 0) != CUDA_SUCCESS) {
    state.SkipWithError("no memory");
  } else {
    for (auto _ : state) {
      const auto start = std::chrono::steady_clock::now();
      const auto done = to_host ? cuda.memcpy_dtoh(host, on_device, total)
                                : cuda.memcpy_htod(on_device, host, total);
      state.SetIterationTime(seconds_since(start));
      if (done != CUDA_SUCCESS) {
        state.SkipWithError("the driver refused");
        break;
      }
    }
    report(state);
  }
  if (host != nullptr) cuda.mem_free_host(host);
  if (on_device != 0) cuda.mem_free(on_device);
}
void copy_out(benchmark::State& state) { plain_copy(state, true); }
void copy_in(benchmark::State& state) { plain_copy(state, false); }

/// A tensor as vLLM's allocator has it: addresses and a handle of its own, and while it sleeps a
/// pinned host buffer of its own.
struct single_tensor {
  driver::CUdeviceptr address = 0;
  driver::CUmemGenericAllocationHandle handle = 0;
  void* host = nullptr;
};

class one_by_one {
 public:
  explicit one_by_one(const context_scope& bound) : cuda_{bound.driver()}, all_(tensors) {
    properties_.type = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, 0};
    for (single_tensor& each : all_) {
      good_ = good_ &&
              cuda_.mem_address_reserve(&each.address, tensor.count(), 0, 0, 0) == CUDA_SUCCESS;
      good_ = good_ && map(each);
    }
  }
  ~one_by_one() {
    for (const single_tensor& each : all_) {
      if (each.handle != 0) {
        cuda_.mem_unmap(each.address, tensor.count());
        cuda_.mem_release(each.handle);
      }
      if (each.host != nullptr) cuda_.mem_free_host(each.host);
      if (each.address != 0) cuda_.mem_address_free(each.address, tensor.count());
    }
  }
  one_by_one(const one_by_one&) = delete;
  one_by_one& operator=(const one_by_one&) = delete;

  [[nodiscard]] bool good() const { return good_; }
  bool sleep() {
    for (single_tensor& each : all_) {
      if (cuda_.mem_host_alloc(&each.host, tensor.count(), 0) != CUDA_SUCCESS) return false;
      if (cuda_.memcpy_dtoh(each.host, each.address, tensor.count()) != CUDA_SUCCESS) return false;
      cuda_.mem_unmap(each.address, tensor.count());
      cuda_.mem_release(each.handle);
      each.handle = 0;
    }
    return true;
  }
  bool wake() {
    for (single_tensor& each : all_) {
      if (!map(each)) return false;
      if (cuda_.memcpy_htod(each.address, each.host, tensor.count()) != CUDA_SUCCESS) return false;
      cuda_.mem_free_host(each.host);
      each.host = nullptr;
    }
    return true;
  }

 private:
  bool map(single_tensor& each) {
    const driver::CUmemAccessDesc access{properties_.location,
                                         driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuda_.mem_create(&each.handle, tensor.count(), &properties_, 0) == CUDA_SUCCESS &&
           cuda_.mem_map(each.address, tensor.count(), 0, each.handle, 0) == CUDA_SUCCESS &&
           cuda_.mem_set_access(each.address, tensor.count(), &access, 1) == CUDA_SUCCESS;
  }

  const driver::table& cuda_;
  driver::CUmemAllocationProp properties_{};
  std::vector<single_tensor> all_;
  bool good_ = true;
};

void sleep_and_wake(benchmark::State& state, bool timed_sleep) {
  const auto gpu = the_gpu(state);
  if (!gpu) return;
  const context_scope bound{*gpu};
  one_by_one work{bound};
  if (!work.good()) {
    state.SkipWithError("no memory");
    return;
  }
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    bool done = work.sleep();
    const double out = seconds_since(start);
    const auto back = std::chrono::steady_clock::now();
    done = work.wake() && done;
    state.SetIterationTime(timed_sleep ? out : seconds_since(back));
    if (!done) {
      state.SkipWithError("it failed");
      return;
    }
  }
  report(state);
}
void one_by_one_sleep(benchmark::State& state) { sleep_and_wake(state, true); }
void one_by_one_wake(benchmark::State& state) { sleep_and_wake(state, false); }

#define WEIR_TIMED(name) \
  BENCHMARK(name)->UseManualTime()->Iterations(5)->Unit(benchmark::kMillisecond)

WEIR_TIMED(copy_out);
WEIR_TIMED(copy_in);
WEIR_TIMED(suspend_keep)->ArgName("chunk_MiB")->Arg(8)->Arg(32)->Arg(128);
WEIR_TIMED(resume_keep)->ArgName("chunk_MiB")->Arg(8)->Arg(32)->Arg(128);
WEIR_TIMED(suspend_pageable);
WEIR_TIMED(resume_pageable);
WEIR_TIMED(suspend_discard);
WEIR_TIMED(resume_discard);
BENCHMARK(first_suspend)->UseManualTime()->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(one_by_one_sleep)->UseManualTime()->Iterations(2)->Unit(benchmark::kMillisecond);
BENCHMARK(one_by_one_wake)->UseManualTime()->Iterations(2)->Unit(benchmark::kMillisecond);

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// What a kernel launch pays while another thread maps, unmaps, creates and releases memory: the
// price of making driver calls beside a program instead of inside its requests.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "weir/driver/table.hpp"

namespace {

using namespace weir::driver;
using steady = std::chrono::steady_clock;

constexpr const char* empty_kernel = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry nothing() { ret; }
)";

/// The driver with a context current, a stream and a kernel that does nothing. Leaks on purpose:
/// the driver outlives every benchmark.
struct gpu {
  const table* cuda = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUfunction kernel = nullptr;
};

const gpu* the_gpu() {
  static const gpu* const instance = []() -> const gpu* {
    auto library = load();
    if (!library) return nullptr;
    static const std::unique_ptr<weir::driver::library> kept = std::move(*library);
    const table& cuda = kept->calls;
    auto* const fresh = new gpu{.cuda = &cuda};
    CUmodule module = nullptr;
    if (cuda.init(0) != CUDA_SUCCESS ||
        cuda.device_primary_ctx_retain(&fresh->context, 0) != CUDA_SUCCESS ||
        cuda.ctx_set_current(fresh->context) != CUDA_SUCCESS ||
        cuda.stream_create(&fresh->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        cuda.module_load_data(&module, empty_kernel) != CUDA_SUCCESS ||
        cuda.module_get_function(&fresh->kernel, module, "nothing") != CUDA_SUCCESS) {
      return nullptr;
    }
    return fresh;
  }();
  return instance;
}

enum class beside : std::uint8_t { nothing, mapping, creating };

/// Maps, opens and unmaps sixteen handles, or creates and releases them, until told to stop.
class neighbour {
 public:
  neighbour(const gpu& target, beside what, std::size_t size) : gpu_{target} {
    if (what == beside::nothing) return;
    worker_ = std::thread{[this, what, size] { work(what, size); }};
  }
  ~neighbour() {
    over_ = true;
    if (worker_.joinable()) worker_.join();
  }
  neighbour(const neighbour&) = delete;
  neighbour& operator=(const neighbour&) = delete;

  [[nodiscard]] std::uint64_t handles() const noexcept { return handles_; }

 private:
  void work(beside what, std::size_t size) {
    const table& cuda = *gpu_.cuda;
    cuda.ctx_set_current(gpu_.context);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    std::vector<CUmemGenericAllocationHandle> all(16);
    CUdeviceptr base = 0;
    cuda.mem_address_reserve(&base, size * all.size(), 0, 0, 0);
    const auto create = [&] {
      for (auto& each : all) cuda.mem_create(&each, size, &properties, 0);
    };
    const auto release = [&] {
      for (const auto each : all) cuda.mem_release(each);
    };
    if (what == beside::mapping) create();
    for (; !over_; handles_ += all.size()) {
      if (what == beside::creating) {
        create();
        release();
        continue;
      }
      for (std::size_t i = 0; i < all.size(); ++i) {
        cuda.mem_map(base + i * size, size, 0, all[i], 0);
        cuda.mem_set_access(base + i * size, size, &access, 1);
      }
      for (std::size_t i = 0; i < all.size(); ++i) cuda.mem_unmap(base + i * size, size);
    }
    if (what == beside::mapping) release();
    cuda.mem_address_free(base, size * all.size());
  }

  const gpu& gpu_;
  std::atomic<bool> over_{false};
  std::atomic<std::uint64_t> handles_{0};
  std::thread worker_;
};

/// A launch every 20 µs, as a program makes them. The time is that of the launches alone.
void launch(benchmark::State& state, beside what, std::size_t size) {
  const gpu* const g = the_gpu();
  if (g == nullptr) return state.SkipWithError("no usable GPU driver");
  const neighbour busy{*g, what, size};
  std::vector<double> took;
  const auto begun = steady::now();
  for (auto _ : state) {
    const auto start = steady::now();
    if (g->cuda->launch_kernel(g->kernel, 1, 1, 1, 32, 1, 1, 0, g->stream, nullptr, nullptr) !=
        CUDA_SUCCESS) {
      state.SkipWithError("the driver refused");
      break;
    }
    const auto end = steady::now();
    took.push_back(std::chrono::duration<double>(end - start).count());
    state.SetIterationTime(took.back());
    if (took.size() % 256 == 0) g->cuda->stream_synchronize(g->stream);
    while (steady::now() - end < std::chrono::microseconds{20}) {
    }
  }
  const double seconds = std::chrono::duration<double>(steady::now() - begun).count();
  if (took.empty()) return;
  std::sort(took.begin(), took.end());
  state.counters["p99_us"] = took[took.size() * 99 / 100] * 1e6;
  state.counters["longest_us"] = took.back() * 1e6;
  if (busy.handles() != 0)
    state.counters["us_a_handle_beside"] = seconds * 1e6 / static_cast<double>(busy.handles());
}

constexpr std::size_t mib = std::size_t{1} << 20;

#define WEIR_LAUNCH(name, ...) \
  BENCHMARK_CAPTURE(launch, name, __VA_ARGS__)->UseManualTime()->Iterations(20'000)
WEIR_LAUNCH(alone, beside::nothing, 0);
WEIR_LAUNCH(beside_mapping_2_MiB, beside::mapping, 2 * mib);
WEIR_LAUNCH(beside_mapping_16_MiB, beside::mapping, 16 * mib);
WEIR_LAUNCH(beside_creating_16_MiB, beside::creating, 16 * mib);

}  // namespace
